"""Table: a diagnosis for people at a terminal: findings first, then what a change would bring, then the
replicas.

Called by: cli.doctor. Never: a line that only colour explains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from extproc.doctor import diagnosis, figures, finding, gain, words
from extproc.doctor.figures import RATIO_MAX

__all__ = ["drawn"]

_STYLES = {
    finding.Verdict.ACT: "bold white on red",
    finding.Verdict.CONSIDER: "bold black on yellow",
    finding.Verdict.NOTE: "bold black on bright_black",
    finding.Verdict.WELL: "bold black on green",
}
_CHANGES = {
    gain.Change.ROUTING: "routed by prefix",
    gain.Change.OFFLOAD: f"host memory, {gain.HOST_TIMES}x KV",
    gain.Change.BOTH: "both",
}
_REPLICAS_MAX = 24  # in the table; of more, the ones with the longest tails


def drawn(fleets: Sequence[diagnosis.Fleet], problems: Mapping[str, str]) -> RenderableType:
    """All of it, ready to print."""
    parts: list[RenderableType] = []
    for fleet in fleets:
        parts += [_head(fleet), Text("")]
        for number, one in enumerate(fleet.findings, 1):
            parts += [_finding(number, one), Text("")]
        gains = _gains(fleet)
        if gains is not None:
            parts += [gains, Text("")]
        parts += [_replicas(fleet), Text("")]
    parts += [
        Text.assemble(("not read  ", "yellow"), name, (f": {why}", "dim")) for name, why in problems.items()
    ]
    return Group(*parts)


def _head(fleet: diagnosis.Fleet) -> Text:
    told, whole = fleet.case.told, fleet.case.whole
    if whole.since_start:
        span = "since the processes started"
        span += f", {words.seconds(whole.age_s)} ago at least" if whole.age_s is not None else ""
    else:
        span = f"in {words.seconds(whole.elapsed_s)}"
    engine = {"vllm": "vLLM", "sglang": "SGLang"}.get(whole.engine.value, whole.engine.value)
    plural = "s" if fleet.case.replicas > 1 else ""
    return Text.assemble(
        (fleet.model or "fleet", "bold"),
        (f"   {fleet.case.replicas} replica{plural}, {engine}, {told.requests:,.0f} requests {span}", "dim"),
    )


def _finding(number: int, one: finding.Finding) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", min_width=8)
    grid.add_column(ratio=1)
    badge = Text(f" {one.verdict.word.upper()} ", style=_STYLES[one.verdict])
    grid.add_row(badge, Text(f"{number}. {one.title}", style="bold"))
    for place, text in enumerate(one.evidence):
        grid.add_row(Text("because" if not place else "", style="dim"), text)
    for place, text in enumerate(one.advice):
        grid.add_row(Text("do" if not place else "", style="cyan"), text)
    if one.brings:
        grid.add_row(Text("brings", style="green"), one.brings)
    if one.saved_usd_month:
        grid.add_row(
            Text("worth", style="green"),
            f"{words.usd(one.saved_usd_month)} a month: the same work on fewer GPUs",
        )
    return grid


def _gains(fleet: diagnosis.Fleet) -> RenderableType | None:
    estimate, told = fleet.case.estimate, fleet.case.told
    if estimate is None or not estimate.gains:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left", title_style="bold")
    table.title = (
        f"Estimated by simulating this fleet (fits what was measured within {words.share(estimate.error)})"
    )
    table.add_column("")
    table.add_column("now", justify="right")
    for change in estimate.gains:
        table.add_column(_CHANGES[change], justify="right", style="green")
    gains = list(estimate.gains.values())
    table.add_row("found in a cache", words.share(told.hit), *(words.share(one.hit) for one in gains))
    for label, key in (("TTFT mean", "ttft_mean_s"), ("TTFT P50", "ttft_p50_s"), ("TTFT P99", "ttft_p99_s")):
        table.add_row(label, *(words.seconds(getattr(one, key)) for one in (told, *gains)))
    table.add_row(
        "requests/s, same users",
        words.rate(told.requests_per_s),
        *(words.rate((told.requests_per_s or 0.0) * one.throughput) for one in gains),
    )
    month = fleet.case.price.month_usd(fleet.case.replicas)
    if month is not None:
        costs = (words.usd(month - (one.saved_usd_month or 0.0)) for one in gains)
        table.add_row("$/month, same work", words.usd(month), *costs)
    return Padding(table, (0, 0, 0, 9))


def _replicas(fleet: diagnosis.Fleet) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_footer=len(fleet.each) > 1)
    told = fleet.case.told
    columns: tuple[tuple[str, Callable[[figures.Figures], str]], ...] = (
        ("req/s", lambda one: words.rate(one.requests_per_s)),
        ("TTFT P50", lambda one: words.seconds(one.ttft_p50_s)),
        ("P99", lambda one: words.seconds(one.ttft_p99_s)),
        ("P99/P50", lambda one: words.count(one.ratio)),
        ("found", lambda one: words.share(one.hit)),
        ("GPU", lambda one: words.share(one.hit_device)),
        ("host", lambda one: words.share(one.hit_host)),
        ("extern", lambda one: words.share(one.hit_external)),
        ("KV use", lambda one: words.share(one.kv_usage_mean)),
        ("waiting", lambda one: words.count(one.waiting_mean)),
        ("preempt.", lambda one: words.share(one.preemptions_per_request)),
        ("prompt", lambda one: words.tokens(one.prompt_mean)),
    )
    each = fleet.each.values()
    idle = {
        "host": not any(one.hit_host for one in each),
        "extern": not any(one.hit_external for one in each),
        "preempt.": not any(one.preemptions_per_request for one in each),
    }
    idle["GPU"] = idle["host"] and idle["extern"]
    columns = tuple(column for column in columns if not idle.get(column[0]))
    table.add_column("replica", footer="fleet", no_wrap=True)
    for name, cell in columns:
        table.add_column(name, footer=cell(told), justify="right", no_wrap=True)
    shown = sorted(fleet.each, key=lambda name: -(fleet.each[name].ttft_p99_s or 0.0))[:_REPLICAS_MAX]
    for name, one in fleet.each.items():
        if name in shown:
            table.add_row(name, *(_cell(label, cell(one), one) for label, cell in columns))
    if len(fleet.each) > len(shown):
        table.caption = f"the {len(shown)} with the longest tails, of {len(fleet.each)}"
    return table


def _cell(label: str, text: str, one: figures.Figures) -> Text:
    bad = label == "P99/P50" and (one.ratio or 0.0) > RATIO_MAX
    return Text(f"{text} !" if bad else text, style="bold red" if bad else "")
