"""Figures: what the records of a run amount to, and of several seeds the mean and the spread.

    affinity hit = requests placed where their group's previous one was / requests that have one
    engine hit   = prompt tokens found cached, by tier / prompt tokens
    imbalance    = busiest endpoint / mean of all, in requests and in prompt tokens computed
    fullness     = work of the chosen endpoint before a request / max(floor, factor * mean), the most seen

Requests begun in the measured part count, read to their end; throughput counts what finished in it. A failed
request counts as an error and in no other figure. `work` and the bound are the simulator's own count, so that
policies which know of no bound are measured by the same.

Called by: comparison, tests. Source: the definitions of `report`, which has those of the demo.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

from extproc.sim import flight, report

__all__ = ["Figures", "Spread", "figures", "merge", "spread"]


@dataclass(frozen=True, slots=True)
class Figures:
    """One run's. Rates and times are None where there was nothing to take them from."""

    requests: float
    errors: float
    prompt_tokens_mean: float | None
    ttft_mean_ms: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    ttft_p99_ms: float | None
    shown_p50_ms: float | None
    shown_p99_ms: float | None
    e2e_mean_ms: float | None
    e2e_p99_ms: float | None
    requests_per_s: float
    output_tokens_per_s: float
    device_hit: float | None
    host_hit: float | None
    external_hit: float | None
    engine_hit: float | None
    affinity_hit: float | None
    requests_imbalance: float | None
    prefill_imbalance: float | None
    fullness_max: float
    overflow_share: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over seeds: mean, least and most; None where no seed had it."""

    mean: float | None
    least: float | None
    most: float | None


def figures(records: Sequence[flight.Record], warmup_s: float, duration_s: float, endpoints: int) -> Figures:
    """The figures of `records` over [warmup_s, duration_s); `endpoints`: all that could have been used."""
    begun = [one for one in records if warmup_s <= one.started_s < duration_s]
    served = [one for one in begun if one.error is None]
    finished = [
        one for one in records if one.finished_s is not None and warmup_s <= one.finished_s < duration_s
    ]
    length_s = duration_s - warmup_s
    ttfts = sorted(_ms(one, one.first_s) for one in served)
    shown = sorted(_ms(one, one.shown_s) for one in served)
    ends = sorted(_ms(one, one.finished_s) for one in served)
    prompt = sum(one.prompt_tokens for one in served)
    device = sum(one.device_tokens for one in served)
    host = sum(one.host_tokens for one in served)
    external = sum(one.external_tokens for one in served)
    computed: Counter[str] = Counter()
    for one in served:
        cached = one.device_tokens + one.host_tokens + one.external_tokens
        computed[one.endpoint] += one.prompt_tokens - cached
    return Figures(
        requests=len(begun),
        errors=len(begun) - len(served),
        prompt_tokens_mean=prompt / len(served) if served else None,
        ttft_mean_ms=statistics.fmean(ttfts) if ttfts else None,
        ttft_p50_ms=report.percentile(ttfts, 0.50),
        ttft_p95_ms=report.percentile(ttfts, 0.95),
        ttft_p99_ms=report.percentile(ttfts, 0.99),
        shown_p50_ms=report.percentile(shown, 0.50),
        shown_p99_ms=report.percentile(shown, 0.99),
        e2e_mean_ms=statistics.fmean(ends) if ends else None,
        e2e_p99_ms=report.percentile(ends, 0.99),
        requests_per_s=len(finished) / length_s if length_s > 0 else 0.0,
        output_tokens_per_s=sum(one.output_tokens for one in finished) / length_s if length_s > 0 else 0.0,
        device_hit=_share(device, prompt),
        host_hit=_share(host, prompt),
        external_hit=_share(external, prompt),
        engine_hit=_share(device + host + external, prompt),
        affinity_hit=_affinity(records, warmup_s, duration_s),
        requests_imbalance=_imbalance(Counter(one.endpoint for one in served), endpoints),
        prefill_imbalance=_imbalance(computed, endpoints),
        fullness_max=max((one.fullness for one in begun), default=0.0),
        overflow_share=sum(one.overflow for one in begun) / len(begun) if begun else 0.0,
    )


def merge(runs: Sequence[Figures]) -> dict[str, Spread]:
    """Each figure over the seeds' runs (at least one)."""
    merged = {}
    for field in fields(Figures):
        values = [getattr(run, field.name) for run in runs]
        merged[field.name] = spread([float(value) for value in values if value is not None])
    return merged


def spread(values: Sequence[float]) -> Spread:
    """Mean, least and most of `values`."""
    return Spread(statistics.fmean(values), min(values), max(values)) if values else Spread(None, None, None)


def _ms(one: flight.Record, moment_s: float | None) -> float:
    return 0.0 if moment_s is None else (moment_s - one.started_s) * 1000


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _affinity(records: Sequence[flight.Record], warmup_s: float, duration_s: float) -> float | None:
    last: dict[str, str] = {}
    hits = total = 0
    for one in records:  # in the order they began
        if one.error is not None or not one.group:
            continue
        if one.group in last and warmup_s <= one.started_s < duration_s:
            total += 1
            hits += last[one.group] == one.endpoint
        last[one.group] = one.endpoint
    return hits / total if total else None


def _imbalance(by_endpoint: Counter[str], endpoints: int) -> float | None:
    total = sum(by_endpoint.values())
    return max(by_endpoint.values()) * endpoints / total if total else None
