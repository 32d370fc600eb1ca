"""Comparison table: what `kvring simulate` prints: figures by policy, then whether prefix routing pays.

Up to three policies stand side by side with all figures; more, one a line with the main ones.

Called by: cli.simulate.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from extproc.sim import comparison, verdict

__all__ = ["tell"]

_SIDE_BY_SIDE = 3
_MAIN = {"ttft_mean_ms", "ttft_p99_ms", "requests_per_s", "engine_hit", "affinity_hit", "errors"}


def tell(made: comparison.Comparison, console: Console) -> None:
    """Print the table and the verdict."""
    asked = made.asked
    measured_s = asked.duration_s - asked.warmup_s
    table = Table(title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0))
    made_rows = comparison.rows(made)
    if len(made.runs) <= _SIDE_BY_SIDE:
        table.add_column("")
        for name in made.runs:
            table.add_column(name, justify="right")
        for _, label, cells in made_rows:
            table.add_row(label, *cells)
    else:  # many policies: one a line, the main figures
        shown = [row for row in made_rows if row[0] in _MAIN]
        table.add_column("", no_wrap=True)
        for _, label, _ in shown:
            table.add_column(label, justify="right")
        for number, name in enumerate(made.runs):
            table.add_row(name, *("\n".join(cells[number].split("  ")) for _, _, cells in shown))
    console.print(
        f"{asked.summary}\nendpoints: {len(asked.models)}, kvring replicas: {asked.routers}, "
        f"seeds: {len(made.seeds)}, {measured_s:,.0f} s measured; x: ratio to {made.baseline}",
        highlight=False,
    )
    console.print(table, highlight=False)
    judged = verdict.judge(made)
    if judged is not None:
        console.print(judged.text, style="bold", highlight=False)
