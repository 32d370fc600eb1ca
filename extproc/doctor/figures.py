"""Figures: what a stay amounts to, in the terms of the question "is this well?".

    ratio     = TTFT P99 / TTFT P50; above 5, requests likely miss the cache under load
    hit       = cached prompt tokens / prompt tokens, by tier; of vLLM counted as prompts are admitted
    busiest   = most of one replica / mean of all, in requests and in prompt tokens computed

Quantiles are interpolated within the engine's buckets, which are coarse above 1 s: 1, 2.5, 5, 7.5, 10, 20.
None stands for what can't be told.

Called by: diagnosis, findings, promql (which has the same in PromQL), telling.
Source: the ratio's limit is the first article's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extproc.doctor import histogram, stay

__all__ = ["RATIO_MAX", "Figures", "Spread", "figures", "spread"]

RATIO_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One replica's, or a fleet's.

    Shares are 0..1, times [s], lengths [tokens], per second of the stay where that is known. `rejected`: of
    requests that came, those refused by a full queue; `faulty`: of HTTP answers, those with 5xx.
    `uncached_tail`: mean prompt tokens computed for a request.
    """

    requests: float
    requests_per_s: float | None
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    queue_mean_s: float | None
    prefill_mean_s: float | None
    e2e_mean_s: float | None
    token_p50_s: float | None
    prompt_mean: float | None
    prompt_p50: float | None
    prompt_p90: float | None
    output_mean: float | None
    hit: float | None
    hit_device: float | None
    hit_host: float | None
    hit_external: float | None
    computed_per_s: float | None
    kv_usage_mean: float | None
    kv_usage_max: float | None
    running_mean: float | None
    waiting_mean: float | None
    waiting_max: float | None
    preemptions_per_request: float | None
    rejected: float | None
    faulty: float | None

    @property
    def ratio(self) -> float | None:
        """TTFT P99 over P50."""
        if not self.ttft_p50_s or self.ttft_p99_s is None:
            return None
        return self.ttft_p99_s / self.ttft_p50_s


@dataclass(frozen=True, slots=True)
class Spread:
    """How unlike the replicas are: the busiest over the mean [>= 1], None with fewer than two.

    `requests_at`, `computed_at`: which replica that is. `slowest`: highest TTFT P99 over the median of all;
    `slowest_at`: whose.
    """

    requests: float | None = None
    requests_at: str = ""
    computed: float | None = None
    computed_at: str = ""
    slowest: float | None = None
    slowest_at: str = ""


def figures(seen: stay.Stay) -> Figures:
    """The figures of a stay."""
    counts, none = seen.counts, histogram.EMPTY
    ttft = seen.histograms.get("ttft_s", none)
    prompt = seen.histograms.get("prompt", none)
    requests = ttft.count or prompt.count
    queries = counts.get("queries")
    hits, cold, host = counts.get("hits"), counts.get("cold_hits"), counts.get("host_hits")
    # Of what came from beyond the device, some versions tell how much was the host's.
    external = None if cold is None else max(cold - (host or 0.0), 0.0)
    rejections = counts.get("rejections")
    elapsed_s = seen.elapsed_s
    output = seen.histograms.get("output", none)
    return Figures(
        requests=requests,
        requests_per_s=_over(requests, elapsed_s),
        ttft_mean_s=ttft.mean,
        ttft_p50_s=ttft.quantile(0.5),
        ttft_p99_s=ttft.quantile(0.99),
        queue_mean_s=seen.histograms.get("queue_s", none).mean,
        prefill_mean_s=seen.histograms.get("prefill_s", none).mean,
        e2e_mean_s=seen.histograms.get("e2e_s", none).mean,
        token_p50_s=seen.histograms.get("token_s", none).quantile(0.5),
        prompt_mean=prompt.mean if prompt.count else _over(counts.get("prompt_tokens"), requests),
        prompt_p50=prompt.quantile(0.5),
        prompt_p90=prompt.quantile(0.9),
        output_mean=output.mean if output.count else _over(counts.get("output_tokens"), requests),
        hit=_over(None if hits is None else hits + (cold or 0.0), queries),
        hit_device=_over(hits, queries),
        hit_host=_over(host, queries),
        hit_external=_over(external, queries),
        computed_per_s=_over(_computed(seen), elapsed_s),
        kv_usage_mean=seen.gauges.get("kv_usage"),
        kv_usage_max=seen.peaks.get("kv_usage"),
        running_mean=seen.gauges.get("running"),
        waiting_mean=seen.gauges.get("waiting"),
        waiting_max=seen.peaks.get("waiting"),
        preemptions_per_request=_over(counts.get("preemptions"), requests),
        rejected=_over(rejections, requests + (rejections or 0.0)),
        faulty=_over(counts.get("faults"), counts.get("answers")),
    )


def spread(stays: Sequence[stay.Stay]) -> Spread:
    """How unlike replicas of one fleet are."""
    if len(stays) < 2:
        return Spread()
    each = {one.name: figures(one) for one in stays}
    requests, requests_at = _busiest({name: one.requests for name, one in each.items()})
    computed, computed_at = _busiest({one.name: _computed(one) for one in stays})
    tails = {name: one.ttft_p99_s for name, one in each.items() if one.ttft_p99_s and one.requests >= 20}
    slowest, slowest_at = None, ""
    if len(tails) >= 2:
        slowest_at = max(tails, key=lambda name: tails[name] or 0.0)
        others = sorted(value for name, value in tails.items() if name != slowest_at and value)
        slowest = (tails[slowest_at] or 0.0) / others[len(others) // 2] if others else None
    return Spread(requests, requests_at, computed, computed_at, slowest, slowest_at)


def _busiest(values: dict[str, float | None]) -> tuple[float | None, str]:
    if any(value is None for value in values.values()):
        return None, ""
    total = sum(value or 0.0 for value in values.values())
    if not total:
        return None, ""
    most = max(values, key=lambda name: values[name] or 0.0)
    return (values[most] or 0.0) * len(values) / total, most


def _computed(seen: stay.Stay) -> float | None:
    """Prompt tokens computed."""
    computed = seen.counts.get("computed")
    if computed is not None:
        return computed
    uncached = seen.histograms.get("uncached")
    return None if uncached is None else uncached.total


def _over(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
