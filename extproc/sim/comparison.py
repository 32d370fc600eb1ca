"""Comparison: the same load under several policies and seeds, side by side.

Every policy sees the same seeds, and a seed's requests do not depend on the policy. The first policy named
`round_robin`, else the first of all, is what ratios refer to.

Called by: cli.simulate, tests/bench.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from extproc.sim import chooser, figures, scenario, simulation

__all__ = ["BASELINE", "Column", "Comparison", "compare", "rows", "to_json"]

BASELINE = "round_robin"


@dataclass(frozen=True, slots=True)
class Column:
    """A line of the table: which figure, how it is written, and whether more of it is better."""

    figure: str
    label: str
    form: str
    scale: float = 1.0


_COLUMNS = (
    Column("requests", "requests", "{:,.0f}"),
    Column("errors", "errors", "{:,.0f}"),
    Column("ttft_mean_ms", "TTFT mean", "{:,.0f} ms"),
    Column("ttft_p50_ms", "TTFT P50", "{:,.0f} ms"),
    Column("ttft_p95_ms", "TTFT P95", "{:,.0f} ms"),
    Column("ttft_p99_ms", "TTFT P99", "{:,.0f} ms"),
    Column("e2e_mean_ms", "end to end mean", "{:,.0f} ms"),
    Column("e2e_p99_ms", "end to end P99", "{:,.0f} ms"),
    Column("requests_per_s", "requests/s", "{:.2f}"),
    Column("output_tokens_per_s", "output tokens/s", "{:,.0f}"),
    Column("engine_hit", "engine hit", "{:.1f} %", 100),
    Column("device_hit", "  of it GPU", "{:.1f} %", 100),
    Column("host_hit", "  of it CPU tier", "{:.1f} %", 100),
    Column("external_hit", "  of it external", "{:.1f} %", 100),
    Column("affinity_hit", "affinity hit", "{:.1f} %", 100),
    Column("requests_imbalance", "busiest / mean, requests", "{:.2f}"),
    Column("prefill_imbalance", "busiest / mean, prefill", "{:.2f}"),
    Column("fullness_max", "most work / bound", "{:.2f}"),
    Column("overflow_share", "overflow", "{:.1f} %", 100),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`runs`: by policy, one a seed."""

    asked: scenario.Scenario
    seeds: tuple[int, ...]
    runs: Mapping[str, tuple[figures.Figures, ...]]

    @property
    def baseline(self) -> str:
        """The policy that ratios refer to."""
        return BASELINE if BASELINE in self.runs else next(iter(self.runs))


def compare(
    asked: scenario.Scenario,
    policies: Mapping[str, chooser.Factory],
    seeds: Sequence[int],
    progress: Callable[[str, int, float], None] | None = None,
) -> Comparison:
    """Run each policy under each seed. `progress` is told policy, seed, and share of the run [0..1]."""
    joined = sum(event.kind is scenario.Kind.ADD for event in asked.events)
    runs = {}
    for name, factory in policies.items():
        found = []
        for seed in seeds:
            tell = None if progress is None else _teller(progress, name, seed)
            records = simulation.run(asked, factory, seed, tell)
            found.append(
                figures.figures(records, asked.warmup_s, asked.duration_s, len(asked.models) + joined)
            )
        runs[name] = tuple(found)
    return Comparison(asked, tuple(seeds), runs)


def rows(made: Comparison) -> list[tuple[str, str, list[str]]]:
    """The table: figure, label, then for each policy mean, spread over seeds, ratio to the baseline."""
    merged = {name: figures.merge(runs) for name, runs in made.runs.items()}
    base = merged[made.baseline]
    table = []
    for column in _COLUMNS:
        if not any(spread[column.figure].most for spread in merged.values()) and column.figure != "errors":
            continue  # a tier that is not there
        cells = [
            _cell(column, spread[column.figure], None if name == made.baseline else base[column.figure].mean)
            for name, spread in merged.items()
        ]
        table.append((column.figure, column.label, cells))
    return table


def to_json(made: Comparison) -> dict[str, object]:
    """The comparison as JSON types."""
    asked = made.asked
    return {
        "workload": asked.name,
        "summary": asked.summary,
        "endpoints": len(asked.models),
        "duration_s": asked.duration_s,
        "warmup_s": asked.warmup_s,
        "routers": asked.routers,
        "sharing": asked.sharing.value,
        "seeds": list(made.seeds),
        "baseline": made.baseline,
        "policies": {
            name: {
                "mean": {key: spread.mean for key, spread in figures.merge(runs).items()},
                "seeds": [asdict(run) for run in runs],
            }
            for name, runs in made.runs.items()
        },
    }


def _teller(progress: Callable[[str, int, float], None], name: str, seed: int) -> Callable[[float], None]:
    def tell(share: float) -> None:
        progress(name, seed, share)

    return tell


def _cell(column: Column, spread: figures.Spread, base: float | None) -> str:
    if spread.mean is None or spread.least is None or spread.most is None:
        return "-"
    text = column.form.format(spread.mean * column.scale)
    if spread.most > spread.least:
        half = (spread.most - spread.least) / 2 * column.scale
        number = column.form.partition("}")[0] + "}"
        text += f" ±{number.format(half)}"
    if base and column.figure != "requests":
        text += f"  x{spread.mean / base:.2f}"
    return text
