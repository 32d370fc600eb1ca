"""Report: what a run of the demo showed, as figures per arm, a table, claims and JSON.

Two hit rates, because they differ and are often mixed up:
  affinity hit = requests served by the endpoint that served their prefix's previous request / requests
                 that have such a predecessor (round robin: about 1/N by construction)
  engine hit   = sum(cached tokens) / sum(prompt tokens), by the engines' own usage reports
Throughput is requests finished in the window per second of it; latencies are those of the requests begun
in it, read to their end. The window begins after the warm-up and ends when no more requests begin.
Money: a node of 8 GPUs at $10/h is $7300 a month (730 h). A faster arm does round robin's work on
rps_round_robin / rps_arm of it.

Invariant: times are engine time; a failed request counts as an error and in no other figure.
Called by: demo, live, picture, page, tests/bench. Source: docs/benchmarks.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from extproc.sim import lag, sample

__all__ = [
    "BASELINE",
    "CANDIDATE",
    "HOURS_PER_MONTH",
    "ArmReport",
    "Claim",
    "Report",
    "Row",
    "Setup",
    "Window",
    "affinity_hit",
    "arm_report",
    "claims",
    "doubts",
    "month_usd",
    "percentile",
    "rows",
    "saving_usd",
    "to_json",
]

BASELINE = "round_robin"
CANDIDATE = "kvring"
HOURS_PER_MONTH = 730


@dataclass(frozen=True, slots=True)
class Window:
    """Measured part of a run [engine seconds since its start]."""

    start_s: float
    end_s: float

    def holds(self, at_s: float) -> bool:
        """Whether a moment lies in the window: start <= at < end."""
        return self.start_s <= at_s < self.end_s


@dataclass(frozen=True, slots=True)
class Setup:
    """What was run; enough to run it again. Times of the window in engine seconds."""

    seed: int
    users: int
    endpoints: int
    prefix_tokens: tuple[int, ...]
    speed: float
    seconds: float
    warmup_s: float
    measured_s: float
    preset: str
    node_price_usd_per_h: float


@dataclass(frozen=True, slots=True)
class ArmReport:
    """Figures of one arm. Rates are None where nothing was measured that they could be taken from.

    `imbalance`: requests of the busiest endpoint over the mean of all endpoints [1..N].
    """

    requests: int
    errors: int
    errors_by_kind: dict[str, int]
    affinity_hit: float | None
    engine_hit: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    ttft_p99_ms: float | None
    ttft_mean_ms: float | None
    requests_per_s: float
    output_tokens_per_s: float
    requests_by_endpoint: dict[str, int]
    imbalance: float | None
    ttfts_ms: tuple[float, ...]

    @property
    def p99_over_p50(self) -> float | None:
        """Tail ratio: above 5, requests likely miss the cache under load."""
        return _ratio(self.ttft_p99_ms, self.ttft_p50_ms)


@dataclass(frozen=True, slots=True)
class Report:
    """A finished run. `arms`: by name, the baseline first.

    `unsteered`: requests of the whole run that were to be steered, but that Envoy balanced by itself since
    kvring failed or did not answer in time.
    """

    setup: Setup
    arms: dict[str, ArmReport]
    machine: lag.Machine
    unsteered: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: `values` by arm in the order of `Report.arms`; `ratio`: the last to the first."""

    label: str
    values: tuple[str, ...]
    ratio: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing the demo promises, what was measured, and whether it holds."""

    text: str
    measured: str
    holds: bool


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The `share` quantile (0..1) of values in ascending order, interpolated between neighbours.

    Position share * (n - 1), as numpy's default; None for no values.
    """
    if not ordered:
        return None
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def affinity_hit(samples: Iterable[sample.Sample], window: Window) -> float | None:
    """Share of requests in `window` served where their prefix's previous request was, None for none.

    "Previous" is by begin, warm-up included; failed requests are passed over.
    """
    last: dict[int, str] = {}
    hits = total = 0
    for one in sorted(samples, key=lambda one: one.started_s):
        if one.error is not None:
            continue
        if one.prefix in last and window.holds(one.started_s):
            total += 1
            hits += last[one.prefix] == one.endpoint
        last[one.prefix] = one.endpoint
    return hits / total if total else None


def arm_report(samples: Sequence[sample.Sample], window: Window, endpoint_count: int) -> ArmReport:
    """The figures of one arm's samples over `window`; `endpoint_count`: all it could have used, >= 1."""
    begun = [one for one in samples if window.holds(one.started_s)]
    served = [one for one in begun if one.error is None]
    finished = [one for one in samples if one.error is None and window.holds(one.finished_s)]
    ttfts_ms = sorted(one.ttft_s * 1000 for one in served if one.ttft_s is not None)
    prompt_tokens = sum(one.prompt_tokens for one in served)
    length_s = window.end_s - window.start_s
    by_endpoint = Counter(one.endpoint for one in served)
    return ArmReport(
        requests=len(begun),
        errors=len(begun) - len(served),
        errors_by_kind=dict(sorted(Counter(one.error for one in begun if one.error is not None).items())),
        affinity_hit=affinity_hit(samples, window),
        engine_hit=sum(one.cached_tokens for one in served) / prompt_tokens if prompt_tokens else None,
        ttft_p50_ms=percentile(ttfts_ms, 0.50),
        ttft_p95_ms=percentile(ttfts_ms, 0.95),
        ttft_p99_ms=percentile(ttfts_ms, 0.99),
        ttft_mean_ms=sum(ttfts_ms) / len(ttfts_ms) if ttfts_ms else None,
        requests_per_s=len(finished) / length_s if length_s > 0 else 0.0,
        output_tokens_per_s=sum(one.output_tokens for one in finished) / length_s if length_s > 0 else 0.0,
        requests_by_endpoint=dict(sorted(by_endpoint.items())),
        imbalance=max(by_endpoint.values()) * endpoint_count / len(served) if served else None,
        ttfts_ms=tuple(ttfts_ms),
    )


def month_usd(arm: ArmReport, baseline: ArmReport, node_price_usd_per_h: float) -> float | None:
    """What the baseline's throughput costs on this arm [$/month]; None where the arm served nothing.

    node_price * 730 * rps_baseline / rps_arm
    """
    if arm.requests_per_s <= 0:
        return None
    return node_price_usd_per_h * HOURS_PER_MONTH * baseline.requests_per_s / arm.requests_per_s


def saving_usd(result: Report) -> float | None:
    """What the baseline's throughput costs less with kvring [$/month]; negative if more."""
    base, ours, price = result.arms[BASELINE], result.arms[CANDIDATE], result.setup.node_price_usd_per_h
    month = month_usd(ours, base, price)
    return None if month is None else price * HOURS_PER_MONTH - month


def rows(arms: Mapping[str, ArmReport], node_price_usd_per_h: float) -> list[Row]:
    """The table, line by line; the last column is the second arm over the first."""
    baseline = next(iter(arms.values()))
    months = [month_usd(arm, baseline, node_price_usd_per_h) for arm in arms.values()]

    def row(label: str, attribute: str, form: str, scale: float = 1.0) -> Row:
        numbers = [getattr(arm, attribute) for arm in arms.values()]
        return _row(label, [None if one is None else one * scale for one in numbers], form)

    return [
        row("requests measured", "requests", "{:,.0f}"),
        row("errors", "errors", "{:,.0f}"),
        row("affinity hit", "affinity_hit", "{:.1f} %", 100),
        row("engine token hit", "engine_hit", "{:.1f} %", 100),
        row("TTFT P50", "ttft_p50_ms", "{:,.0f} ms"),
        row("TTFT P95", "ttft_p95_ms", "{:,.0f} ms"),
        row("TTFT P99", "ttft_p99_ms", "{:,.0f} ms"),
        row("P99 / P50", "p99_over_p50", "{:.1f}"),
        row("throughput", "requests_per_s", "{:.2f} req/s"),
        row("busiest endpoint / mean", "imbalance", "{:.2f}"),
        _row("money per month, same work", months, "${:,.0f}"),
    ]


def claims(arms: Mapping[str, ArmReport]) -> list[Claim]:
    """What the demo promises of `kvring` against `round_robin`, each with its measured figure."""
    base, ours = arms[BASELINE], arms[CANDIDATE]
    hits = _ratio(ours.engine_hit, base.engine_hit)
    tail = _ratio(ours.ttft_p99_ms, base.ttft_p99_ms)
    rate = _ratio(ours.requests_per_s, base.requests_per_s)
    return [
        Claim(
            "engine token hit at least 90 %",
            _shown(None if ours.engine_hit is None else ours.engine_hit * 100, "{:.1f} %"),
            ours.engine_hit is not None and ours.engine_hit >= 0.9,
        ),
        Claim("engine token hit at least 2x round robin's", _shown(hits, "{:.2f}x"), (hits or 0) >= 2),
        Claim(
            "TTFT P99 at most 1/4 of round robin's",
            _shown(tail, "{:.3f}x"),
            tail is not None and tail <= 0.25,
        ),
        Claim("throughput at least +20 %", _shown(rate, "{:.2f}x"), (rate or 0) >= 1.2),
    ]


def doubts(report: Report) -> list[str]:
    """Why the figures may not show what routing does; empty when nothing is known against them."""
    found = lag.warnings(report.machine)
    if report.unsteered:
        found.append(
            f"kvring did not answer in time for {report.unsteered} requests, which Envoy balanced by itself"
        )
    return found


def to_json(report: Report) -> dict[str, object]:
    """The report as JSON types: each arm under its name, then setup, machine, claims and warnings."""
    baseline = next(iter(report.arms.values()))
    document: dict[str, object] = {}
    for name, arm in report.arms.items():
        fields = asdict(arm)
        del fields["ttfts_ms"]
        document[name] = fields | {
            "p99_over_p50": arm.p99_over_p50,
            "month_usd": month_usd(arm, baseline, report.setup.node_price_usd_per_h),
        }
    document["setup"] = asdict(report.setup)
    document["machine"] = asdict(report.machine)
    if {BASELINE, CANDIDATE} <= report.arms.keys():
        document["claims"] = [asdict(claim) for claim in claims(report.arms)]
    document["unsteered"] = report.unsteered
    document["warnings"] = doubts(report)
    return document


def _row(label: str, numbers: Sequence[float | None], form: str) -> Row:
    ratio = _ratio(numbers[-1], numbers[0]) if len(numbers) > 1 else None
    return Row(label, tuple(_shown(number, form) for number in numbers), _shown(ratio, "x{:.2f}"))


def _ratio(number: float | None, base: float | None) -> float | None:
    return None if number is None or not base else number / base


def _shown(number: float | None, form: str) -> str:
    return "-" if number is None else form.format(number)
