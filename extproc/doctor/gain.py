"""Gain: what a change would bring, by the twin: routing by prefix, a tier in host memory, or both.

    after = measured * (twin with the change / twin as it is)        [TTFT, end to end, requests/s]
    hit   = the twin's with the change
    money = GPUs * price * 730 h * (1 - requests/s before / after)   the same work on fewer GPUs

In a closed loop faster answers make more requests, so throughput rises where users wait for answers; it says
nothing of a fleet that idles, and money is what could be saved by running fewer replicas, not what is saved
by itself.

Called by: diagnosis. Read by: findings, telling.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

from extproc.doctor import figures, stay, traffic, twin
from extproc.sim import figures as simulated
from extproc.sim import report

__all__ = ["HOST_TIMES", "Change", "Estimate", "Gain", "Price", "estimate"]

HOST_TIMES = 4
"""Host memory taken for a CPU tier, in KV caches of the GPU."""


class Change(enum.StrEnum):
    """What is changed."""

    ROUTING = "routing"
    OFFLOAD = "offload"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Price:
    """What the fleet costs. `gpu_hour_usd`: None if unknown; `gpus`: of one replica."""

    gpu_hour_usd: float | None = None
    gpus: int = 1

    def month_usd(self, replicas: int) -> float | None:
        """Of all replicas; None if unknown."""
        if self.gpu_hour_usd is None:
            return None
        return self.gpu_hour_usd * self.gpus * replicas * report.HOURS_PER_MONTH


@dataclass(frozen=True, slots=True)
class Gain:
    """The fleet after a change: shares 0..1, times [s]. `throughput`: requests/s over those measured."""

    hit: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    throughput: float
    saved_usd_month: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the twin says. `error`: how far it is from what was measured, relative; `why_not`: no twin, and
    why.

    `working_set`: KV tokens of all prefixes in use, as fitted.
    """

    gains: dict[Change, Gain]
    error: float | None = None
    working_set: float | None = None
    why_not: str = ""


def estimate(
    seen: stay.Stay,
    told: figures.Figures,
    load: traffic.Traffic,
    *,
    routed: bool,
    think_s: float,
    price: Price,
    progress: Callable[[float], None] | None = None,
) -> Estimate:
    """Fit a twin of a fleet and try what may help: routing where it is not done, memory where it could fill
    up.

    Args: think_s [s, >= 0]; progress is told the share that is done [0..1].
    """

    def told_so_far(share: float) -> None:
        if progress is not None:
            progress(share * 0.7)

    try:
        fitted, before = twin.fit(seen, told, load, routed=routed, think_s=think_s, progress=told_so_far)
    except twin.MisfitError as error:
        return Estimate({}, why_not=str(error))
    gains = {}
    plans = _plans(fitted, routed=routed)
    for number, (change, (model_twin, policy)) in enumerate(plans.items()):
        if progress is not None:
            progress(0.7 + 0.3 * number / len(plans))
        gains[change] = _gain(before.figures, twin.run(model_twin, policy).figures, told, seen, price)
    return Estimate(gains, fitted.error, fitted.working_set)


def _plans(fitted: twin.Twin, *, routed: bool) -> dict[Change, tuple[twin.Twin, str]]:
    now = "cost" if routed else "round_robin"
    model = fitted.model
    larger = replace(
        fitted, model=replace(model, host_kv_tokens=max(HOST_TIMES * model.kv_tokens, model.host_kv_tokens))
    )
    plans = {}
    if fitted.endpoints > 1 and not routed:
        plans[Change.ROUTING] = fitted, "cost"
    if not model.host_kv_tokens:
        plans[Change.OFFLOAD] = larger, now
        if Change.ROUTING in plans:
            plans[Change.BOTH] = larger, "cost"
    return plans


def _gain(
    before: simulated.Figures, after: simulated.Figures, told: figures.Figures, seen: stay.Stay, price: Price
) -> Gain:
    throughput = after.requests_per_s / before.requests_per_s if before.requests_per_s else 1.0
    month = price.month_usd(seen.replicas)
    return Gain(
        hit=after.engine_hit or 0.0,
        ttft_mean_s=_scaled(told.ttft_mean_s, after.ttft_mean_ms, before.ttft_mean_ms),
        ttft_p50_s=_scaled(told.ttft_p50_s, after.ttft_p50_ms, before.ttft_p50_ms),
        ttft_p99_s=_scaled(told.ttft_p99_s, after.ttft_p99_ms, before.ttft_p99_ms),
        throughput=throughput,
        saved_usd_month=None if month is None else month * max(1 - 1 / throughput, 0.0),
    )


def _scaled(measured: float | None, after: float | None, before: float | None) -> float:
    if not before or after is None:
        return measured or 0.0
    return (measured or before / 1000) * after / before
