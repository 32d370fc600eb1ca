"""Page: the demo's result as one HTML file that needs nothing else.

Headline, picture, table, claims, where the requests went, and how far the machine can be trusted.

Invariant: every figure comes from the report; all text is escaped. Called by: demo.
"""

from __future__ import annotations

from collections.abc import Iterable

from extproc.sim import report, sheet

__all__ = ["render"]

_NAMES = {report.BASELINE: "Envoy round robin", report.CANDIDATE: "kvring"}


def render(result: report.Report, svg: str | None) -> str:
    """The page of a run. `svg`: the picture on a clear ground, None where it could not be drawn."""
    setup = result.setup
    intro = (
        f"{setup.endpoints} simulated replicas behind each way of routing, {setup.users} users, "
        f"{len(setup.prefix_tokens)} shared prefixes. Both ways got the same seeded requests at the same "
        "time through one real Envoy. Times are engine time: real time "
        f"x {setup.speed:g}, as the replicas run that much faster than the hardware they model."
    )
    parts = [
        f"<h1>{sheet.text(_headline(result))}</h1>",
        f'<p class="soft">{sheet.text(intro)}</p>',
        *sheet.notes(report.doubts(result)),
        sheet.inline(svg),
        "<h2>Figures</h2>",
        _table(result),
        "<h2>Claims</h2>",
        _claims(result),
        "<h2>Requests by replica</h2>",
        _spread(result),
        "<h2>Set-up</h2>",
        _setup(result),
    ]
    return sheet.sheet(f"kvring demo, seed {setup.seed}", parts)


def _headline(result: report.Report) -> str:
    base, ours = result.arms[report.BASELINE], result.arms[report.CANDIDATE]
    if base.engine_hit is None or ours.engine_hit is None:
        return "kvring demo: nothing was measured"
    return (
        f"Prompt tokens found in the cache: {base.engine_hit:.0%} with round robin, "
        f"{ours.engine_hit:.0%} with kvring"
    )


def _table(result: report.Report) -> str:
    heads = ["", *(_NAMES.get(name, name) for name in result.arms), "ratio"]
    rows = report.rows(result.arms, result.setup.node_price_usd_per_h)
    return (
        sheet.table(heads, ([row.label, *row.values, row.ratio] for row in rows), len(result.arms))
        + '<p class="soft">Affinity hit: served where the same prefix was served last. Engine token hit: '
        "cached prompt tokens by the engines' own usage reports. TTFT: request sent to first token read. "
        f"Money: what round robin's throughput costs at ${result.setup.node_price_usd_per_h:g} an hour for "
        f"the node of {result.setup.endpoints}, {report.HOURS_PER_MONTH} hours a month.</p>"
    )


def _claims(result: report.Report) -> str:
    lines = []
    for claim in report.claims(result.arms):
        verdict = '<span class="good">holds</span>' if claim.holds else '<span class="bad">missed</span>'
        lines.append(f"<li>{verdict} · {sheet.text(claim.text)}: {sheet.text(claim.measured)}</li>")
    return f'<ul class="claims">{"".join(lines)}</ul>'


def _spread(result: report.Report) -> str:
    # Fleets name their replicas alike, so an idle one of this arm is known from the other.
    names = sorted({name for arm in result.arms.values() for name in arm.requests_by_endpoint})
    counts = {
        arm: [found.requests_by_endpoint.get(name, 0) for name in names] for arm, found in result.arms.items()
    }
    highest = max((max(row, default=0) for row in counts.values()), default=0) or 1
    sections = []
    for arm, row in counts.items():
        bars = "".join(
            f'<div class="bar"><span>{sheet.text(name or "?")}</span>'
            f'<span><i style="width:{100 * count / highest:.1f}%"></i></span><b>{count}</b></div>'
            for name, count in zip(names, row, strict=True)
        )
        kind = ' class="ours"' if arm == report.CANDIDATE else ""
        sections.append(f"<section{kind}><h3>{sheet.text(_NAMES.get(arm, arm))}</h3>{bars}</section>")
    return f'<div class="arms">{"".join(sections)}</div>'


def _setup(result: report.Report) -> str:
    setup, machine = result.setup, result.machine
    busy = "unknown" if machine.machine_cpu_share is None else f"{machine.machine_cpu_share:.0%}"
    return sheet.pairs(
        [
            ("seed", str(setup.seed)),
            ("engine model", setup.preset),
            ("prefix tokens", ", ".join(f"{tokens:,}" for tokens in setup.prefix_tokens)),
            ("measured", f"{setup.measured_s:.0f} s of engine time after {setup.warmup_s:.0f} s of warm-up"),
            ("machine", f"{machine.cores} cores, {busy} busy"),
            ("load client", f"used {machine.client_cpu_share:.0%} of one core"),
            (
                "load client's delay",
                f"P99 {machine.loop_lag_p99_ms:.1f} ms, highest {machine.loop_lag_max_ms:.0f} ms (real time)",
            ),
            *_errors(result),
        ]
    )


def _errors(result: report.Report) -> Iterable[tuple[str, str]]:
    for name, arm in result.arms.items():
        if arm.errors_by_kind:
            kinds = ", ".join(f"{kind}: {count}" for kind, count in arm.errors_by_kind.items())
            yield f"errors, {_NAMES.get(name, name)}", kinds
