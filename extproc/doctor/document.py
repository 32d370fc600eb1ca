"""Document: a diagnosis as JSON for programs, and as Markdown for issues and reports.

Shares are 0..1 and times seconds in JSON. Never: a label of a request, an address beyond the replica's name.
Called by: cli.doctor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from extproc.doctor import diagnosis, figures, finding, words

__all__ = ["to_json", "to_markdown"]


def to_json(fleets: Sequence[diagnosis.Fleet], problems: Mapping[str, str]) -> dict[str, object]:
    """JSON types. `problems`: targets that could not be read, and why."""
    return {
        "verdict": min((fleet.verdict for fleet in fleets), key=lambda one: one.value).word
        if fleets
        else None,
        "fleets": [_fleet(fleet) for fleet in fleets],
        "unread": dict(problems),
    }


def to_markdown(fleets: Sequence[diagnosis.Fleet], problems: Mapping[str, str]) -> str:
    """A report: findings, then the table of replicas."""
    lines: list[str] = []
    for fleet in fleets:
        lines += [f"## {fleet.model or 'fleet'}", "", _summary(fleet), ""]
        for number, one in enumerate(fleet.findings, 1):
            lines += [f"### {number}. {one.title} ({one.verdict.word})", ""]
            lines += [f"* {text}" for text in one.evidence]
            if one.advice:
                lines += ["", "**Do**", "", *(f"{step}. {text}" for step, text in enumerate(one.advice, 1))]
            if one.brings:
                lines += ["", f"**Brings** {one.brings}{_money(one)}"]
            lines.append("")
        lines += _rows(fleet)
        lines.append("")
    if problems:
        lines += ["## Not read", "", *(f"* `{name}`: {why}" for name, why in problems.items()), ""]
    return "\n".join(lines)


def _money(one: finding.Finding) -> str:
    if one.saved_usd_month is None:
        return ""
    return f" Worth {words.usd(one.saved_usd_month)} a month: the same work on fewer GPUs."


def _summary(fleet: diagnosis.Fleet) -> str:
    told, whole = fleet.case.told, fleet.case.whole
    span = "since the processes started" if whole.since_start else f"over {words.seconds(whole.elapsed_s)}"
    return f"{fleet.case.replicas} replicas ({whole.engine.value}), {told.requests:,.0f} requests {span}."


def _rows(fleet: diagnosis.Fleet) -> list[str]:
    columns = ("replica", "req/s", "TTFT P50", "P99", "P99/P50", "found", "GPU", "host", "extern", "KV use",
               "waiting", "prompt")  # fmt: skip
    rows = [(name, one) for name, one in fleet.each.items()] + [("**fleet**", fleet.case.told)]
    return [
        "| " + " | ".join(columns) + " |",
        "|---" + "|--:" * (len(columns) - 1) + "|",
        *(f"| {name} | " + " | ".join(_cells(one)) + " |" for name, one in rows),
    ]


def _cells(one: figures.Figures) -> list[str]:
    return [
        words.rate(one.requests_per_s),
        words.seconds(one.ttft_p50_s),
        words.seconds(one.ttft_p99_s),
        words.count(one.ratio),
        words.share(one.hit),
        words.share(one.hit_device),
        words.share(one.hit_host),
        words.share(one.hit_external),
        words.share(one.kv_usage_mean),
        words.count(one.waiting_mean),
        words.tokens(one.prompt_mean),
    ]


def _fleet(fleet: diagnosis.Fleet) -> dict[str, object]:
    case = fleet.case
    estimate = case.estimate
    return {
        "model": fleet.model,
        "engine": case.whole.engine.value,
        "replicas": case.replicas,
        "elapsed_s": case.whole.elapsed_s,
        "since_start": case.whole.since_start,
        "verdict": fleet.verdict.word,
        "findings": [
            asdict(one) | {"verdict": one.verdict.word, "kind": one.kind.value} for one in fleet.findings
        ],
        "figures": _figures(case.told),
        "spread": asdict(case.spread),
        "each": {name: _figures(one) for name, one in fleet.each.items()},
        "traffic": None
        if case.load is None
        else {
            key: getattr(case.load, key)
            for key in ("tail_mean", "found", "shared", "working_set", "measured")
        },
        "estimate": None
        if estimate is None
        else {
            "error": estimate.error,
            "why_not": estimate.why_not,
            "working_set": estimate.working_set,
            "gains": {change.value: asdict(one) for change, one in estimate.gains.items()},
        },
    }


def _figures(one: figures.Figures) -> dict[str, object]:
    return asdict(one) | {"ratio": one.ratio}
