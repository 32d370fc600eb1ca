"""Gauges: the pools and their endpoints as metrics, read when somebody looks.

One table: name, kind, meaning, and what of a view it shows. Nothing is shown for what is not known.

Never: a label of a request's. Called by: metrics (registers), docs/generate.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc import standing, views

__all__ = ["Gauges"]

Sample = tuple[tuple[str, ...], float | None]
"""Values of further labels, and the value; None: not known, not shown."""


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric. `labels`: beside pool (and endpoint)."""

    name: str
    text: str
    counts: bool = False
    labels: tuple[str, ...] = ()


class Gauges(Collector):
    """Everything that is read of the pools."""

    def __init__(
        self,
        looked_at: views.Views,
        clock: Callable[[], float],
        sharing: Callable[[], views.SharingView | None] = lambda: None,
    ) -> None:
        """Args: clock: monotonic [s]; sharing: how replicas share, None if they do not."""
        self._views = looked_at
        self._clock = clock
        self._sharing = sharing

    def collect(self) -> Iterable[Metric]:
        """All families."""
        now = self._clock()
        shared = self._sharing()
        for family, of_sharing in _SHARING:
            made = _made(family, [])
            for more, value in () if shared is None else of_sharing(shared):
                if value is not None:
                    made.add_metric(list(more), value)
            yield made
        pools = self._views(now)
        for family, of_pool in _POOL:
            made = _made(family, ["pool"])
            for pool in pools:
                for more, value in of_pool(pool):
                    if value is not None:
                        made.add_metric([pool.name, *more], value)
            yield made
        for family, of_endpoint in _ENDPOINT:
            made = _made(family, ["pool", "endpoint"])
            for pool in pools:
                for endpoint in pool.endpoints:
                    for more, value in of_endpoint(endpoint, now):
                        if value is not None:
                            made.add_metric([pool.name, endpoint.endpoint.id, *more], value)
            yield made


def _made(family: _Family, labels: list[str]) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if family.counts else GaugeMetricFamily
    return kind(family.name, family.text, labels=[*labels, *family.labels])


def _by_reason(counts: Mapping[str, int]) -> Iterator[Sample]:
    for reason, count in counts.items():
        yield (reason,), count


def _one(value: float | None) -> Iterator[Sample]:
    yield (), value


def _faults(pool: views.PoolView) -> Iterator[Sample]:
    for problem, count in pool.source.faults.items():
        yield (problem,), count


def _against(view: views.EndpointView) -> Iterator[Sample]:
    for reason in standing.Against:
        yield (reason.value,), float(reason in view.known.against)


def _ttft(view: views.EndpointView) -> Iterator[Sample]:
    for quantile in (0.5, 0.99):
        yield (str(quantile),), view.known.ttft_s(quantile)


def _requests(view: views.EndpointView) -> Iterator[Sample]:
    reading = view.known.reading
    if reading is not None:
        yield ("running",), reading.running
        yield ("waiting",), reading.waiting


def _looked_up(view: views.EndpointView) -> Iterator[Sample]:
    reading = view.known.reading
    if reading is not None:
        yield ("gpu",), reading.queries
        yield ("other",), reading.cold_queries


def _found(view: views.EndpointView) -> Iterator[Sample]:
    reading = view.known.reading
    if reading is not None:
        yield ("gpu",), reading.hits
        yield ("other",), reading.cold_hits


def _gap(view: views.EndpointView) -> float:
    predicted, true = view.known.predicted, view.known.true
    return math.nan if predicted is None or true is None else predicted - true


_Pool = Callable[[views.PoolView], Iterator[Sample]]
_Endpoint = Callable[[views.EndpointView, float], Iterator[Sample]]

_POOL: list[tuple[_Family, _Pool]] = [
    (
        _Family("kvring_pool_generation", "Number of the pool snapshot in use."),
        lambda pool: _one(pool.generation),
    ),
    (
        _Family("kvring_pool_panic", "1 while nobody of the pool may be chosen: kvring has no opinion then."),
        lambda pool: _one(float(pool.panics)),
    ),
    (
        _Family("kvring_source_age_seconds", "Since the source of the members last gave a good answer."),
        lambda pool: _one(pool.source.age_s),
    ),
    (
        _Family("kvring_source_faults", "Failed attempts of the source.", counts=True, labels=("problem",)),
        _faults,
    ),
    (
        _Family("kvring_prefill_tokens_per_second", "Prefill rate reckoned with, configured or learned."),
        lambda pool: _one(pool.settings.prefill_tokens_per_s),
    ),
    (
        _Family("kvring_bytes_per_token", "Bytes of prompt per token reckoned with, configured or learned."),
        lambda pool: _one(pool.settings.bytes_per_token),
    ),
]

_SHARING: list[tuple[_Family, Callable[[views.SharingView], Iterator[Sample]]]] = [
    (
        _Family("kvring_sharing_connected", "1 while what this replica tells can reach the others."),
        lambda shared: _one(float(shared.connected)),
    ),
    (
        _Family("kvring_sharing_peers", "Other replicas heard in the last seconds."),
        lambda shared: _one(shared.peers),
    ),
    (
        _Family("kvring_sharing_peer_leases", "Open requests of the other replicas."),
        lambda shared: _one(shared.peer_leases),
    ),
    (
        _Family("kvring_sharing_told_messages", "Messages told to the others.", counts=True),
        lambda shared: _one(shared.told),
    ),
    (
        _Family("kvring_sharing_told_bytes", "Bytes of them.", counts=True),
        lambda shared: _one(shared.told_bytes),
    ),
    (
        _Family("kvring_sharing_heard_messages", "Messages heard of the others.", counts=True),
        lambda shared: _one(shared.heard),
    ),
    (
        _Family("kvring_sharing_heard_bytes", "Bytes of them.", counts=True),
        lambda shared: _one(shared.heard_bytes),
    ),
    (
        _Family("kvring_sharing_heard_dispatches", "Requests that others placed, heard of.", counts=True),
        lambda shared: _one(shared.dispatches),
    ),
    (
        _Family("kvring_sharing_lost", "Messages and parts of them that were of no use.", True, ("reason",)),
        lambda shared: _by_reason(shared.lost),
    ),
    (
        _Family(
            "kvring_sharing_mended", "Holes in what was heard, noticed and asked for.", True, ("reason",)
        ),
        lambda shared: _by_reason(shared.mended),
    ),
]

_ENDPOINT: list[tuple[_Family, _Endpoint]] = [
    (
        _Family("kvring_endpoint_ready", "1 if the endpoint may be chosen."),
        lambda view, _: _one(float(view.endpoint.ready)),
    ),
    (
        _Family("kvring_endpoint_against", "1 for what is against choosing it.", labels=("reason",)),
        lambda view, _: _against(view),
    ),
    (
        _Family("kvring_endpoint_share", "Part of a full load it should take; below 1 while it is new."),
        lambda view, _: _one(view.share),
    ),
    (
        _Family("kvring_inflight_requests", "Open requests, by this process's count."),
        lambda view, _: _one(view.inflight),
    ),
    (
        _Family("kvring_pending_tokens", "Prompt tokens sent and not yet prefilled, estimated."),
        lambda view, _: _one(view.pending_tokens),
    ),
    (
        _Family("kvring_work_tokens", "Load in one number: tokens waiting, and some for each open request."),
        lambda view, _: _one(view.work),
    ),
    (
        _Family(
            "kvring_bound_ratio",
            "Load over the bound of the pool's policy; at 1 it takes no more, unless leaving is dear.",
        ),
        lambda view, _: _one(view.filled),
    ),
    (
        _Family("kvring_oldest_lease_seconds", "How long its oldest open request has been open."),
        lambda view, _: _one(view.oldest_lease_s or 0.0),
    ),
    (
        _Family("kvring_residency_capacity_blocks", "Blocks it is thought to have room for."),
        lambda view, _: _one(view.capacity_blocks),
    ),
    (
        _Family("kvring_residency_blocks", "Blocks the endpoint is thought to hold."),
        lambda view, _: _one(view.residency_blocks),
    ),
    (
        _Family("kvring_residency_scale", "Part of its capacity that is counted on; see docs/fleet.md."),
        lambda view, _: _one(view.known.scale),
    ),
    (
        _Family(
            "kvring_endpoint_requests",
            "Requests sent there, also by a retry that the gateway told of.",
            counts=True,
        ),
        lambda view, _: _one(view.sent.requests),
    ),
    (
        _Family("kvring_endpoint_prompt_tokens", "Prompt tokens sent there, estimated.", counts=True),
        lambda view, _: _one(view.sent.prompt_tokens),
    ),
    (
        _Family(
            "kvring_endpoint_predicted_cached_tokens",
            "Prompt tokens sent there that were thought to be on its GPU.",
            counts=True,
        ),
        lambda view, _: _one(view.sent.gpu_tokens),
    ),
    (
        _Family(
            "kvring_engine_looked_up_tokens",
            "Prompt tokens its engine looked up in a cache tier, by its own counter.",
            counts=True,
            labels=("tier",),
        ),
        lambda view, _: _looked_up(view),
    ),
    (
        _Family(
            "kvring_engine_cached_tokens",
            "Prompt tokens its engine found in a cache tier, by its own counter.",
            counts=True,
            labels=("tier",),
        ),
        lambda view, _: _found(view),
    ),
    (
        _Family(
            "kvring_prediction_gap_ratio",
            "Share of prompt tokens thought cached less the share found, in the last window; NaN before it.",
        ),
        lambda view, _: _one(_gap(view)),
    ),
    (
        _Family("kvring_engine_requests", "Requests in the engine, by its own count.", labels=("state",)),
        lambda view, _: _requests(view),
    ),
    (
        _Family(
            "kvring_engine_ttft_seconds",
            "Time to first token in the last minute or two, by its engine's histogram.",
            labels=("quantile",),
        ),
        lambda view, _: _ttft(view),
    ),
    (
        _Family("kvring_engine_foreign_requests", "Requests in the engine that this process did not send."),
        lambda view, _: _one(None if view.signal is None else view.signal.foreign),
    ),
    (
        _Family("kvring_engine_kv_usage_ratio", "KV cache held by live requests, as the engine told."),
        lambda view, _: _one(None if view.signal is None else view.signal.kv_usage),
    ),
    (
        _Family("kvring_signals_age_seconds", "Since what the engine says of itself was asked for."),
        lambda view, now: _one(None if view.signal is None else view.signal.age_s(now)),
    ),
]
