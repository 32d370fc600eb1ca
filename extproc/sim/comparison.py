"""Comparison: the same load under several policies and seeds, side by side.

Every policy sees the same seeds, and a seed's requests do not depend on the policy. The policy named
`round_robin`, else the first of all, is what ratios refer to.

    money = node price * 730 h * requests/s of the baseline / requests/s of the policy     [$/month]

that is, the baseline's work done by fewer nodes; only a load that waits for its answers shows a gain there.

Called by: cli.simulate, verdict, plot, comparison_page, tests/bench.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

from extproc.sim import chooser, figures, policies, report, scenario, simulation

__all__ = ["BASELINE", "NODE_PRICE_USD_PER_H", "Comparison", "compare", "rows", "to_csv", "to_json"]

BASELINE = "round_robin"

NODE_PRICE_USD_PER_H = 1.25
"""For one endpoint, if nothing else is said: $10 for a node of eight."""

_MONEY = "month_usd"


@dataclass(frozen=True, slots=True)
class _Column:
    """A line of the table: which figure, how it is written."""

    figure: str
    label: str
    form: str
    scale: float = 1.0


_COLUMNS = (
    _Column("requests", "requests", "{:,.0f}"),
    _Column("errors", "errors", "{:,.0f}"),
    _Column("ttft_mean_ms", "TTFT mean", "{:,.0f} ms"),
    _Column("ttft_p50_ms", "TTFT P50", "{:,.0f} ms"),
    _Column("ttft_p95_ms", "TTFT P95", "{:,.0f} ms"),
    _Column("ttft_p99_ms", "TTFT P99", "{:,.0f} ms"),
    _Column("e2e_mean_ms", "end to end mean", "{:,.0f} ms"),
    _Column("e2e_p99_ms", "end to end P99", "{:,.0f} ms"),
    _Column("requests_per_s", "requests/s", "{:.2f}"),
    _Column("output_tokens_per_s", "output tokens/s", "{:,.0f}"),
    _Column("engine_hit", "engine hit", "{:.1f} %", 100),
    _Column("device_hit", "  of it GPU", "{:.1f} %", 100),
    _Column("host_hit", "  of it CPU tier", "{:.1f} %", 100),
    _Column("external_hit", "  of it external", "{:.1f} %", 100),
    _Column("affinity_hit", "affinity hit", "{:.1f} %", 100),
    _Column("requests_imbalance", "busiest / mean, requests", "{:.2f}"),
    _Column("prefill_imbalance", "busiest / mean, prefill", "{:.2f}"),
    _Column("fullness_max", "most work / bound", "{:.2f}"),
    _Column("overflow_share", "overflow", "{:.1f} %", 100),
    _Column(_MONEY, "money per month, same work", "${:,.0f}"),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`runs`: by policy, one a seed. `node_price_usd_per_h`: of all endpoints together."""

    asked: scenario.Scenario
    seeds: tuple[int, ...]
    runs: Mapping[str, tuple[figures.Figures, ...]]
    node_price_usd_per_h: float

    @property
    def baseline(self) -> str:
        """The policy that ratios refer to."""
        return BASELINE if BASELINE in self.runs else next(iter(self.runs))

    def spreads(self) -> dict[str, dict[str, figures.Spread]]:
        """By policy, each figure over the seeds, and the money."""
        base = self.runs[self.baseline]
        month_usd = self.node_price_usd_per_h * report.HOURS_PER_MONTH
        merged = {}
        for name, runs in self.runs.items():
            pairs = zip(base, runs, strict=True)
            costs = [
                month_usd * one.requests_per_s / own.requests_per_s
                for one, own in pairs
                if own.requests_per_s
            ]
            merged[name] = figures.merge(runs) | {_MONEY: figures.spread(costs)}
        return merged


def compare(
    asked: scenario.Scenario,
    chosen: Mapping[str, chooser.Factory],
    seeds: Sequence[int],
    progress: Callable[[str, int, float], None] | None = None,
    node_price_usd_per_h: float | None = None,
) -> Comparison:
    """Run each policy under each seed. `progress` is told policy, seed, and share of the run [0..1].

    `chosen`: policies by name. `node_price_usd_per_h`: of all endpoints, None for the usual price of each.
    """
    joined = sum(event.kind is scenario.Kind.ADD for event in asked.events)
    runs = {}
    for name, factory in chosen.items():
        found = []
        own = replace(asked, scrape_s=policies.scrape_s(name, asked.scrape_s))
        for seed in seeds:
            tell = None if progress is None else _teller(progress, name, seed)
            records = simulation.run(own, factory, seed, tell)
            found.append(
                figures.figures(records, asked.warmup_s, asked.duration_s, len(asked.models) + joined)
            )
        runs[name] = tuple(found)
    if node_price_usd_per_h is None:
        node_price_usd_per_h = NODE_PRICE_USD_PER_H * len(asked.models)
    return Comparison(asked, tuple(seeds), runs, node_price_usd_per_h)


def rows(made: Comparison) -> list[tuple[str, str, list[str]]]:
    """The table: figure, label, then for each policy mean, spread over seeds, ratio to the baseline."""
    merged = made.spreads()
    base = merged[made.baseline]
    table = []
    for column in _COLUMNS:
        if not any(spread[column.figure].most for spread in merged.values()) and column.figure != "errors":
            continue  # a tier that is not there, a price of 0
        cells = [
            _cell(column, spread[column.figure], None if name == made.baseline else base[column.figure].mean)
            for name, spread in merged.items()
        ]
        table.append((column.figure, column.label, cells))
    return table


def to_json(made: Comparison) -> dict[str, object]:
    """The comparison as JSON types: under each policy's name its figures, then `scenario`.

    A policy's figures are means over seeds; `spread` has [least, most] of each, `seeds` those of every run.
    """
    asked = made.asked
    document: dict[str, object] = {}
    for name, spreads in made.spreads().items():
        document[name] = {key: one.mean for key, one in spreads.items()} | {
            "spread": {key: [one.least, one.most] for key, one in spreads.items()},
            "seeds": [
                {"seed": seed} | asdict(run) for seed, run in zip(made.seeds, made.runs[name], strict=True)
            ],
        }
    document["scenario"] = {
        "workload": asked.name,
        "summary": asked.summary,
        "endpoints": len(asked.models),
        "duration_s": asked.duration_s,
        "warmup_s": asked.warmup_s,
        "replicas": asked.routers,
        "sharing": asked.sharing.value,
        "seeds": list(made.seeds),
        "baseline": made.baseline,
        "node_price_usd_per_h": made.node_price_usd_per_h,
    }
    return document


def to_csv(made: Comparison) -> str:
    """The figures as CSV: a line for each policy and seed, times [ms], shares [0..1]."""
    names = [field.name for field in fields(figures.Figures)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["policy", "seed", *names])
    for policy, runs in made.runs.items():
        for seed, run in zip(made.seeds, runs, strict=True):
            writer.writerow([policy, seed, *(getattr(run, name) for name in names)])
    return text.getvalue()


def _teller(progress: Callable[[str, int, float], None], name: str, seed: int) -> Callable[[float], None]:
    def tell(share: float) -> None:
        progress(name, seed, share)

    return tell


def _cell(column: _Column, spread: figures.Spread, base: float | None) -> str:
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
