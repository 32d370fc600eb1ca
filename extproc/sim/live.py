"""Live: the demo's progress while it runs, on a terminal or in a log.

On a terminal a table of both arms, redrawn a few times a second; elsewhere one plain line every few
seconds. The same table, without progress, is the final one.

Invariant: reads samples, changes nothing; the cost of a redraw is bounded by looking at the newest samples
only. Called by: demo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from extproc.sim import driver, report, sample

__all__ = ["table", "watch"]

_NAMES = {report.BASELINE: "Envoy round robin", report.CANDIDATE: "kvring"}
_REDRAW_S = 0.25
_LINE_S = 5.0
_NEWEST_SAMPLES = 400
_BAR_COLUMNS = 34


async def watch(console: Console, load: driver.Driver, duration_s: float, endpoint_count: int) -> None:
    """Show how `load` goes until cancelled. `duration_s`: of the run [engine seconds]."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(_LINE_S)
            console.print(_line(load, duration_s, endpoint_count), highlight=False, soft_wrap=True)
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        while True:
            screen.update(_view(load, duration_s, endpoint_count), refresh=True)
            await asyncio.sleep(_REDRAW_S)


def table(arms: Mapping[str, report.ArmReport], node_price_usd_per_h: float, title: str) -> Table:
    """The table of a finished run."""
    drawn = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    drawn.add_column("")
    for name in arms:
        style = "bold green" if name == report.CANDIDATE else ""
        drawn.add_column(_NAMES.get(name, name), justify="right", style=style)
    drawn.add_column("ratio", justify="right", style="dim")
    for row in report.rows(arms, node_price_usd_per_h):
        drawn.add_row(row.label, *row.values, row.ratio)
    return drawn


def _view(load: driver.Driver, duration_s: float, endpoint_count: int) -> RenderableType:
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("")
    newest = _newest(load, endpoint_count)
    for name in newest:
        style = "bold green" if name == report.CANDIDATE else ""
        drawn.add_column(_NAMES.get(name, name), justify="right", min_width=17, style=style)
    drawn.add_row("answered", *(f"{len(samples):,}" for samples in load.samples.values()))
    drawn.add_row("in flight", *(str(count) for count in load.in_flight.values()))
    for label, attribute, form, scale in (
        ("errors", "errors", "{:.0f}", 1),
        ("affinity hit", "affinity_hit", "{:.1f} %", 100),
        ("engine token hit", "engine_hit", "{:.1f} %", 100),
        ("TTFT P50", "ttft_p50_ms", "{:,.0f} ms", 1),
        ("TTFT P99", "ttft_p99_ms", "{:,.0f} ms", 1),
    ):
        numbers = [getattr(arm, attribute) for arm in newest.values()]
        drawn.add_row(label, *("-" if one is None else form.format(one * scale) for one in numbers))
    done_s = min(load.elapsed_s, duration_s)
    note = (
        f"{done_s:.0f} of {duration_s:.0f} s of engine time; figures of the newest {_NEWEST_SAMPLES} requests"
    )
    foot = Table.grid(padding=(0, 1))
    foot.add_row(ProgressBar(duration_s, done_s, width=_BAR_COLUMNS), Text(note, style="dim"))
    return Group(drawn, foot)


def _line(load: driver.Driver, duration_s: float, endpoint_count: int) -> str:
    """One line of progress."""
    parts = [f"{min(load.elapsed_s, duration_s):4.0f}/{duration_s:.0f} s of engine time"]
    for name, arm in _newest(load, endpoint_count).items():
        hit = "-" if arm.engine_hit is None else f"{arm.engine_hit:.0%}"
        tail = "-" if arm.ttft_p99_ms is None else f"{arm.ttft_p99_ms:,.0f} ms"
        parts.append(f"{name}: {len(load.samples[name])} answered, engine hit {hit}, TTFT P99 {tail}")
    return "  |  ".join(parts)


def _newest(load: driver.Driver, endpoint_count: int) -> dict[str, report.ArmReport]:
    """Figures of each arm's newest samples."""
    everything = report.Window(0.0, float("inf"))

    def newest(samples: list[sample.Sample]) -> report.ArmReport:
        return report.arm_report(samples[-_NEWEST_SAMPLES:], everything, endpoint_count)

    return {name: newest(samples) for name, samples in load.samples.items()}
