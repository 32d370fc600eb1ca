"""Metrics: what kvring counts, in its own Prometheus registry.

Names are `kvring_<noun>_<unit|total>` in base units; labels come from closed sets (`reason`, `endpoint`,
`pool`), never from a request. What is known of the fleet is read when somebody looks (`gauges`), so nothing
has to be kept in step. docs/metrics.md is made from this registry.

Called by: server, endpoints (record), admin (exposes), app (makes).
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from extproc import __version__, choice, gauges, pool, prompt, router, signals, usage, worth
from extproc import policy as _policy
from extproc import views as _views

__all__ = ["CONTENT_TYPE", "EVENTS", "TASKS", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

EVENTS = ("restarted", "cache_lost", "ejected")
TASKS = ("source", "probe", "scrape", "envoy")
_SCRAPES = ("good", "refused", "timeout", "malformed", "unreachable", "no descriptors", "status")
_REFUSED = (choice.Why.NO_ENDPOINT, choice.Why.SUBSET, choice.Why.SATURATED)
_HASH_SOURCES = [source for source in choice.KeyedBy if source is not choice.KeyedBy.PREVIOUS]
_DECISION_BUCKETS_S = (
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1.0, 5.0,
)  # fmt: skip
_STREAM_BUCKETS_S = (
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
_PROMPT_BUCKETS_TOKENS = (64, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 524_288)


class Metrics:
    """All counters, with their children made beforehand."""

    def __init__(
        self,
        looked_at: _views.Views | router.Router,
        clock: Callable[[], float],
        started_s: float,
        sharing: Callable[[], _views.SharingView | None] = lambda: None,
    ) -> None:
        """Make the registry.

        Args: looked_at: the pools, read at `clock()` when somebody scrapes; clock: monotonic [s]; started_s:
            when the process started [s, Unix time]; sharing: how replicas share, None if they do not.
        """
        views = _views.alone(looked_at) if isinstance(looked_at, router.Router) else looked_at
        self.registry = CollectorRegistry()
        _tell_process(self.registry, started_s)
        self.certificate_end = Gauge(
            "kvring_certificate_end_time_seconds",
            "When the certificate of the TLS port expires, Unix time.",
            ["source"],
            registry=self.registry,
        )
        choices = Counter(
            "kvring_choices_total",
            "Endpoints chosen, by why that one.",
            ["reason"],
            registry=self.registry,
        )
        self._choices = {reason: choices.labels(reason.value) for reason in _policy.Reason}
        self._hashes = Counter(
            "kvring_hashes_total",
            "Requests left to Envoy's consistent hashing (`steering: hash`), by where the hash came from;"
            " `nothing`: there was none.",
            ["pool", "source"],
            registry=self.registry,
        )
        unkeyed = Counter(
            "kvring_unkeyed_total",
            "Requests without a chain, by why there was none.",
            ["reason"],
            registry=self.registry,
        )
        self._unkeyed = {reason: unkeyed.labels(reason.value) for reason in prompt.Unkeyed}
        keyed = Counter(
            "kvring_keys_total",
            "Requests with a decision, by where their key came from.",
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
        self._no_opinion = no_opinion
        self._nobody = {why: no_opinion.labels(why.value) for why in choice.Why}
        refused = Counter(
            "kvring_refused_total",
            "Requests answered by kvring itself, 429 where all are saturated, else 503, by why.",
            ["reason"],
            registry=self.registry,
        )
        self._refused = {why: refused.labels(why.value) for why in _REFUSED}
        self.fault = no_opinion.labels("fault")
        self.malformed = no_opinion.labels("malformed_message")
        self.streams_limit = no_opinion.labels("streams_limit")
        self._prompt_tokens = Counter(
            "kvring_prompt_tokens_total", "Prompt tokens routed, estimated.", registry=self.registry
        )
        self._cached_tokens = Counter(
            "kvring_predicted_cached_tokens_total",
            "Prompt tokens routed that the chosen endpoint was thought to hold.",
            registry=self.registry,
        )
        served = Counter(
            "kvring_served_total",
            "Requests of which the gateway told who served them: the endpoint chosen, another of the pool, or"
            " none of it.",
            ["by"],
            registry=self.registry,
        )
        self._served = {by: served.labels(by) for by in ("chosen", "other", "unknown")}
        used = Counter(
            "kvring_answer_tokens_total",
            "Tokens as engines count them, where kvring is shown their answers' bodies: of prompts, of these"
            " cached, and of answers.",
            ["kind"],
            registry=self.registry,
        )
        self._used = {kind: used.labels(kind) for kind in ("prompt", "cached", "output")}
        self._request_tokens = Histogram(
            "kvring_request_tokens",
            "Prompt tokens of a request that has a chain, estimated.",
            buckets=_PROMPT_BUCKETS_TOKENS,
            registry=self.registry,
        )
        self._saved_tokens = Counter(
            "kvring_saved_prefill_tokens_total",
            "Prompt tokens thought cached at the chosen endpoint beyond the mean candidate's.",
            ["pool"],
            registry=self.registry,
        )
        self._saved_s = Counter(
            "kvring_saved_gpu_seconds_total",
            "GPU time of the saved prefill tokens, at the prefill rate reckoned with and the pool's `gpus`.",
            ["pool"],
            registry=self.registry,
        )
        self._added_tokens = Counter(
            "kvring_added_prefill_tokens_total",
            "Prompt tokens by which the mean candidate held more: cache given up for less load.",
            ["pool"],
            registry=self.registry,
        )
        self._added_s = Counter(
            "kvring_added_gpu_seconds_total",
            "GPU time of the added prefill tokens; saved less added is what the choices are worth.",
            ["pool"],
            registry=self.registry,
        )
        self._worth: dict[str, worth.Worth] = {}
        limits = Counter(
            "kvring_limits_total",
            "Requests that reached a limit of the configuration, by which.",
            ["limit"],
            registry=self.registry,
        )
        self._limits = {limit: limits.labels(limit.value) for limit in choice.Limit}
        self.decision_s = Histogram(
            "kvring_decision_seconds",
            "Time to read the prompt and choose; not the transport.",
            buckets=_DECISION_BUCKETS_S,
            registry=self.registry,
        )
        self.streams = Counter("kvring_streams_total", "ext_proc streams ended.", registry=self.registry)
        self.stream_s = Histogram(
            "kvring_stream_seconds",
            "How long an ext_proc stream was open: a request from its headers to the end of its answer.",
            buckets=_STREAM_BUCKETS_S,
            registry=self.registry,
        )
        self.streams_open = Gauge(
            "kvring_streams_open", "ext_proc streams open, one a request in flight.", registry=self.registry
        )
        known = Counter(
            "kvring_choice_signals_total",
            "Endpoints chosen, by whether what their engine says of itself was known.",
            ["signals"],
            registry=self.registry,
        )
        self._signals = {age: known.labels(age.value) for age in signals.SignalAge}
        probes = Counter(
            "kvring_health_probes_total", "Health probes of endpoints.", ["result"], registry=self.registry
        )
        self._probes = {True: probes.labels("good"), False: probes.labels("bad")}
        scrapes = Counter(
            "kvring_scrapes_total", "Readings of engines' metrics.", ["result"], registry=self.registry
        )
        self._scrapes = {result: scrapes.labels(result) for result in _SCRAPES}
        self._events = Counter(
            "kvring_endpoint_events_total",
            "What happened to endpoints: restarted, cache_lost, ejected.",
            ["pool", "event"],
            registry=self.registry,
        )
        faults = Counter(
            "kvring_task_faults_total",
            "Faults of kvring's own in its background tasks, which begin again.",
            ["task"],
            registry=self.registry,
        )
        self._task_faults = {task: faults.labels(task) for task in TASKS}
        self.registry.register(gauges.Gauges(views, clock, sharing))
        ProcessCollector(registry=self.registry)

    def add_pool(self, name: str, gpus: float = 1.0) -> None:
        """Let the series of a pool begin at 0; `gpus`: behind each of its endpoints [> 0]."""
        for event in EVENTS:
            self._events.labels(name, event)
        self._worth[name] = worth.Worth(
            gpus,
            self._saved_tokens.labels(name),
            self._saved_s.labels(name),
            self._added_tokens.labels(name),
            self._added_s.labels(name),
        )

    def add_hasher(self, pool: str) -> None:
        """Let the series of a pool whose endpoints Envoy's own hashing chooses begin at 0."""
        for source in _HASH_SOURCES:
            self._hashes.labels(pool, source.value)

    def limited(self, limit: choice.Limit) -> None:
        """Count a limit that was reached."""
        self._limits[limit].inc()

    def probed(self, *, good: bool) -> None:
        """Count a health probe."""
        self._probes[good].inc()

    def task_failed(self, task: str) -> None:
        """Count a fault in one of TASKS."""
        self._task_faults[task].inc()

    def scraped(self, problem: str) -> None:
        """Count a reading of an engine's metrics, or why there was none."""
        found = problem or "good"
        self._scrapes[found if found in self._scrapes else "status"].inc()

    def happened(self, pool: str, event: str) -> None:
        """Count one of EVENTS."""
        self._events.labels(pool, event).inc()

    def record(self, result: choice.Choice | choice.Hashed | choice.NoEndpoint) -> None:
        """Count what came of one request."""
        if isinstance(result, choice.NoEndpoint):
            (self._refused if result.refuse else self._nobody)[result.why].inc()
            return
        self._read(result)
        if isinstance(result, choice.Hashed):
            self._hashes.labels(result.pool, result.keyed_by.value).inc()
            return
        self._signals[result.signals].inc()
        self._choices[result.reason].inc()
        self._cached_tokens.inc(result.cached_tokens)
        if result.pool not in self._worth:
            self.add_pool(result.pool)
        self._worth[result.pool].count(result)

    def _read(self, result: choice.Choice | choice.Hashed) -> None:
        """Count how a request was read."""
        self._keyed[result.keyed_by].inc()
        if result.unkeyed is not None:
            self._unkeyed[result.unkeyed].inc()
        else:
            self._request_tokens.observe(result.prompt_tokens)
        for limit in result.limits:
            self._limits[limit].inc()
        self._prompt_tokens.inc(result.prompt_tokens)

    def totals(self) -> dict[str, Any]:
        """What a live view counts by, since the start."""
        return {
            "choices": {reason.value: _value(child) for reason, child in self._choices.items()},
            "hashes": _value(self._hashes),
            "no_opinion": _value(self._no_opinion),
            "unkeyed": sum(_value(child) for child in self._unkeyed.values()),
            "prompt_tokens": _value(self._prompt_tokens),
            "cached_tokens": _value(self._cached_tokens),
            "saved_gpu_s": sum(_value(w.saved_s) - _value(w.added_s) for w in self._worth.values()),
            "streams_open": _value(self.streams_open),
        }

    def served(self, chosen: choice.Choice, endpoint: pool.Endpoint | None) -> None:
        """Count who served a request, `endpoint` of its pool or none, for which `chosen` was chosen."""
        by = "unknown" if endpoint is None else "chosen" if endpoint.id == chosen.endpoint.id else "other"
        self._served[by].inc()

    def used(self, told: usage.Usage) -> None:
        """Count the tokens of one answer."""
        counts = (told.prompt_tokens, told.cached_tokens, told.output_tokens)
        for counter, count in zip(self._used.values(), counts, strict=True):
            counter.inc(count or 0)

    def exposition(self) -> bytes:
        """The text for a Prometheus scrape."""
        return generate_latest(self.registry)


def _tell_process(registry: CollectorRegistry, started_s: float) -> None:
    info = Gauge("kvring_build_info", "Always 1; what is running.", ["version", "python"], registry=registry)
    info.labels(__version__, platform.python_version()).set(1)
    started = Gauge("kvring_start_time_seconds", "When this process started, Unix time.", registry=registry)
    started.set(started_s)


def _value(metric: Counter | Gauge) -> float:
    """Its value, or the sum of its children's; what is exposed beside it (when it began) left out."""
    samples = next(iter(metric.collect())).samples
    return sum(sample.value for sample in samples if not sample.name.endswith("_created"))
