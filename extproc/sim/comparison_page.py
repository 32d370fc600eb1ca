"""Comparison page: what `kvring simulate` found, as one HTML file that needs nothing else.

The verdict, the picture, the table, and what was run.

Invariant: every figure comes from the comparison; all text is escaped. Called by: cli.simulate.
"""

from __future__ import annotations

from extproc.sim import comparison, policies, report, sheet, verdict

__all__ = ["render"]


def render(made: comparison.Comparison, svg: str | None) -> str:
    """The page. `svg`: the picture on a clear ground, None where it could not be drawn."""
    judged = verdict.judge(made)
    asked = made.asked
    measured_s = asked.duration_s - asked.warmup_s
    intro = (
        f"{asked.summary}. Endpoints: {len(asked.models)}, kvring replicas: {asked.routers}, "
        f"seeds: {len(made.seeds)}, {measured_s:,.0f} s measured. Every policy got the same "
        "requests. Times are those of the modelled hardware."
    )
    parts = [
        f"<h1>{sheet.text('What routing would do to this traffic')}</h1>",
        f'<p class="soft">{sheet.text(intro)}</p>',
        _judged(judged),
        sheet.inline(svg),
        "<h2>Figures</h2>",
        _table(made),
        "<h2>Policies</h2>",
        sheet.pairs((name, policies.summary(name)) for name in made.runs),
        "<h2>Set-up</h2>",
        sheet.pairs(_setup(made)),
    ]
    return sheet.sheet(f"kvring simulate: {asked.name}", parts)


def _judged(judged: verdict.Verdict | None) -> str:
    if judged is None:
        return ""
    kind = "good" if judged.pays is verdict.Pays.YES else "bad"
    return f'<p class="{kind}">{sheet.text(judged.text)}</p>'


def _table(made: comparison.Comparison) -> str:
    names, base = list(made.runs), sheet.text(made.baseline)
    ours = names.index(policies.OWN) + 1 if policies.OWN in names else None
    lines = ([label, *cells] for _, label, cells in comparison.rows(made))
    return (
        sheet.table(["", *names], lines, ours)
        + f'<p class="soft">Mean over seeds, ± half the range; x: ratio to {base}. '
        "TTFT: request sent to first token. Engine hit: prompt tokens found in a cache. Affinity hit: served "
        f"where the same prefix was served last. Money: what {base}'s throughput costs at "
        f"${made.node_price_usd_per_h:g} an hour for all endpoints, {report.HOURS_PER_MONTH} hours a month; "
        "it only moves where clients wait for their answers.</p>"
    )


def _setup(made: comparison.Comparison) -> list[tuple[str, str]]:
    asked, model = made.asked, made.asked.models[0]
    return [
        ("load", asked.name),
        ("seeds", ", ".join(str(seed) for seed in made.seeds)),
        ("duration", f"{asked.duration_s:,.0f} s, the first {asked.warmup_s:,.0f} s not measured"),
        ("endpoints", str(len(asked.models))),
        ("prefill of the first", f"{1 / model.token_s:,.0f} tokens/s" if model.token_s else "free"),
        ("its KV cache", f"{model.kv_tokens:,} tokens, CPU tier {model.host_kv_tokens:,}"),
        ("external store", f"{asked.external_kv_tokens:,} tokens"),
        ("kvring replicas", f"{asked.routers}, sharing {asked.sharing.value}"),
        (
            "events",
            ", ".join(f"{one.kind} {one.endpoint} at {one.at_s:g} s" for one in asked.events) or "none",
        ),
    ]
