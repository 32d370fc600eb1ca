"""Metrics: what kvring counts, in its own Prometheus registry.

Names are `kvring_<noun>_<unit|total>` in base units; labels come from closed sets (`reason`, `endpoint`,
`policy`), never from a request. Gauges of the fleet are read from the router at scrape time, so nothing has
to be kept in step. docs/metrics.md is made from this registry.

Called by: server (records), admin (exposes), app (makes).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from extproc import __version__, choice, pool, prompt, router
from extproc import policy as _policy

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_DECISION_BUCKETS_S = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1.0)


class Metrics:
    """All counters, with their children made beforehand."""

    def __init__(self, chooser: router.Router, clock: Callable[[], float], started_s: float) -> None:
        """Make the registry; `chooser` is read, at `clock()`, when it is scraped.

        Args: clock: monotonic [s]; started_s: when the process started [s, Unix time].
        """
        self.registry = CollectorRegistry()
        info = Gauge(
            "kvring_build_info", "Always 1; what is running.", ["version", "python"], registry=self.registry
        )
        info.labels(__version__, platform.python_version()).set(1)
        started = Gauge(
            "kvring_start_time_seconds", "When this process started, Unix time.", registry=self.registry
        )
        started.set(started_s)
        choices = Counter(
            "kvring_choices_total",
            "Endpoints chosen, by why that one.",
            ["reason"],
            registry=self.registry,
        )
        self._choices = {reason: choices.labels(reason.value) for reason in _policy.Reason}
        unkeyed = Counter(
            "kvring_unkeyed_total",
            "Requests routed without a chain, by why there was none.",
            ["reason"],
            registry=self.registry,
        )
        self._unkeyed = {reason: unkeyed.labels(reason.value) for reason in prompt.Unkeyed}
        keyed = Counter(
            "kvring_keys_total",
            "Requests routed, by where their ring key came from.",
            ["source"],
            registry=self.registry,
        )
        self._keyed = {source: keyed.labels(source.value) for source in choice.KeyedBy}
        no_opinion = Counter(
            "kvring_no_opinion_total",
            "Requests left to Envoy's own balancing, by why.",
            ["reason"],
            registry=self.registry,
        )
        self.no_endpoint = no_opinion.labels("no_endpoint")
        self.fault = no_opinion.labels("fault")
        self.malformed = no_opinion.labels("malformed_message")
        self.streams_limit = no_opinion.labels("streams_limit")
        self._prompt_tokens = Counter(
            "kvring_prompt_tokens_total", "Prompt tokens routed, estimated.", registry=self.registry
        )
        self._cached_tokens = Counter(
            "kvring_predicted_cached_tokens_total",
            "Of these, tokens that the chosen endpoint was thought to hold.",
            registry=self.registry,
        )
        self.decision_s = Histogram(
            "kvring_decision_seconds",
            "Time to read the prompt and choose; not the transport.",
            buckets=_DECISION_BUCKETS_S,
            registry=self.registry,
        )
        self.streams = Counter("kvring_streams_total", "ext_proc streams ended.", registry=self.registry)
        self.streams_open = Gauge(
            "kvring_streams_open", "ext_proc streams open, one a request in flight.", registry=self.registry
        )
        probes = Counter(
            "kvring_health_probes_total", "Health probes of endpoints.", ["result"], registry=self.registry
        )
        self.probe_good = probes.labels("good")
        self.probe_bad = probes.labels("bad")
        self.registry.register(_Fleet(chooser, clock))

    def record(self, result: choice.Choice | choice.NoEndpoint) -> None:
        """Count what came of one request."""
        if isinstance(result, choice.NoEndpoint):
            self.no_endpoint.inc()
            return
        self._choices[result.reason].inc()
        self._keyed[result.keyed_by].inc()
        if result.unkeyed is not None:
            self._unkeyed[result.unkeyed].inc()
        self._prompt_tokens.inc(result.prompt_tokens)
        self._cached_tokens.inc(result.cached_tokens)

    def exposition(self) -> bytes:
        """The text for a Prometheus scrape."""
        return generate_latest(self.registry)


class _Fleet(Collector):
    """The pool as it stands when somebody looks."""

    def __init__(self, chooser: router.Router, clock: Callable[[], float]) -> None:
        self._router = chooser
        self._clock = clock

    def collect(self) -> Iterable[GaugeMetricFamily]:
        now = self._clock()
        chooser = self._router
        endpoints = chooser.pool.endpoints
        loads = {endpoint.id: chooser.ledger.load(endpoint.id, now) for endpoint in endpoints}

        def per_endpoint(
            name: str, text: str, values: Iterator[tuple[pool.EndpointId, float]]
        ) -> GaugeMetricFamily:
            family = GaugeMetricFamily(name, text, labels=["pool", "endpoint"])
            for endpoint, value in values:
                family.add_metric([chooser.pool.name, endpoint], value)
            return family

        yield per_endpoint(
            "kvring_endpoint_ready",
            "1 if the endpoint may be chosen.",
            ((endpoint.id, float(endpoint.ready)) for endpoint in endpoints),
        )
        yield per_endpoint(
            "kvring_inflight_requests",
            "Open requests, by this process's count.",
            ((name, load.inflight) for name, load in loads.items()),
        )
        yield per_endpoint(
            "kvring_pending_tokens",
            "Prompt tokens sent and not yet prefilled, estimated.",
            ((name, load.pending) for name, load in loads.items()),
        )
        yield per_endpoint(
            "kvring_residency_blocks",
            "Blocks the endpoint is thought to hold.",
            ((endpoint.id, chooser.residency.blocks(endpoint.id)) for endpoint in endpoints),
        )
        generation = GaugeMetricFamily(
            "kvring_pool_generation", "Number of the pool snapshot in use.", labels=["pool"]
        )
        generation.add_metric([chooser.pool.name], chooser.pool.generation)
        yield generation
