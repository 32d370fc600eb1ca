"""Page: the demo's result as one HTML file that needs nothing else.

Headline, picture, table, claims, where the requests went, and how far the machine can be trusted. The
picture is inline SVG; light and dark follow the reader's setting; no script, no font, no other file.

Invariant: every figure comes from the report; all text is escaped. Called by: demo.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from extproc.sim import picture, report

__all__ = ["render"]

_NAMES = {report.BASELINE: "Envoy round robin", report.CANDIDATE: "kvring"}

_STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1f2937; --soft: #64748b; --line: #e2e8f0;
  --card: #f8fafc; --ours: #0d9488; --base: #94a3b8; --bad: #b91c1c; --good: #047857; }
@media (prefers-color-scheme: dark) { :root { --ground: #0f172a; --ink: #e2e8f0; --soft: #94a3b8;
  --line: #334155; --card: #1e293b; --ours: #2dd4bf; --bad: #f87171; --good: #34d399; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.1rem; margin: 2.6rem 0 .8rem; }
p { margin: .4rem 0; max-width: 75ch; }
.soft { color: var(--soft); }
figure { margin: 1.6rem 0 0; }
figure svg { width: 100%; height: auto; display: block; color: var(--ink); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .45rem .75rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { font-weight: 600; color: var(--soft); }
td.ours { font-weight: 600; color: var(--ours); }
ul.claims { list-style: none; padding: 0; margin: 0; }
ul.claims li { padding: .3rem 0; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.note { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--bad);
  border-radius: 6px; padding: .7rem 1rem; margin: 1rem 0; }
.arms { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 1.2rem 2.5rem; }
.arms h3 { font-size: .95rem; margin: 0 0 .4rem; }
.bar { display: grid; grid-template-columns: 5.5rem 1fr 3.5rem; gap: .6rem; align-items: center;
  font-size: .85rem; font-variant-numeric: tabular-nums; }
.bar i { display: block; height: .8rem; border-radius: 3px; background: var(--base); min-width: 1px; }
.bar b { text-align: right; font-weight: 400; }
.arms section.ours .bar i { background: var(--ours); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.5rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; }
"""


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
        f"<h1>{_text(_headline(result))}</h1>",
        f'<p class="soft">{_text(intro)}</p>',
        *(f'<p class="note">{_text(warning)}</p>' for warning in report.doubts(result)),
        f"<figure>{_inline(svg)}</figure>" if svg else "",
        "<h2>Figures</h2>",
        _table(result),
        "<h2>Claims</h2>",
        _claims(result),
        "<h2>Requests by replica</h2>",
        _spread(result),
        "<h2>Set-up</h2>",
        _setup(result),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>kvring demo, seed {setup.seed}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _headline(result: report.Report) -> str:
    base, ours = result.arms[report.BASELINE], result.arms[report.CANDIDATE]
    if base.engine_hit is None or ours.engine_hit is None:
        return "kvring demo: nothing was measured"
    return (
        f"Prompt tokens found in the cache: {base.engine_hit:.0%} with round robin, "
        f"{ours.engine_hit:.0%} with kvring"
    )


def _table(result: report.Report) -> str:
    heads = "".join(f"<th>{_text(_NAMES.get(name, name))}</th>" for name in result.arms)
    lines = []
    for row in report.rows(result.arms, result.setup.node_price_usd_per_h):
        *others, ours = row.values
        cells = "".join(f"<td>{_text(value)}</td>" for value in others)
        lines.append(
            f'<tr><td>{_text(row.label)}</td>{cells}<td class="ours">{_text(ours)}</td>'
            f"<td>{_text(row.ratio)}</td></tr>"
        )
    return (
        f'<div class="scroll"><table><thead><tr><th></th>{heads}<th>ratio</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        '<p class="soft">Affinity hit: served where the same prefix was served last. Engine token hit: '
        "cached prompt tokens by the engines' own usage reports. TTFT: request sent to first token read. "
        f"Money: what round robin's throughput costs at ${result.setup.node_price_usd_per_h:g} an hour for "
        f"the node of {result.setup.endpoints}, {report.HOURS_PER_MONTH} hours a month.</p>"
    )


def _claims(result: report.Report) -> str:
    lines = []
    for claim in report.claims(result.arms):
        verdict = '<span class="good">holds</span>' if claim.holds else '<span class="bad">missed</span>'
        lines.append(f"<li>{verdict} · {_text(claim.text)}: {_text(claim.measured)}</li>")
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
            f'<div class="bar"><span>{_text(name or "?")}</span>'
            f'<span><i style="width:{100 * count / highest:.1f}%"></i></span><b>{count}</b></div>'
            for name, count in zip(names, row, strict=True)
        )
        kind = ' class="ours"' if arm == report.CANDIDATE else ""
        sections.append(f"<section{kind}><h3>{_text(_NAMES.get(arm, arm))}</h3>{bars}</section>")
    return f'<div class="arms">{"".join(sections)}</div>'


def _setup(result: report.Report) -> str:
    setup, machine = result.setup, result.machine
    busy = "unknown" if machine.machine_cpu_share is None else f"{machine.machine_cpu_share:.0%}"
    return _pairs(
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


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return (
        "<dl>" + "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in pairs) + "</dl>"
    )


def _inline(svg: str) -> str:
    """The SVG element alone, its ink in the page's text colour."""
    return svg[svg.index("<svg") :].replace(picture.INK, "currentColor")


def _text(text: str) -> str:
    return html.escape(text)
