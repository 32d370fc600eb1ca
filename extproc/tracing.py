"""Tracing: one OpenTelemetry span a decision, in the trace that Envoy or the client began.

    parent = Envoy's own span (`traceparent` of the gRPC call, where Envoy traces), else the request's header
    span   = "kvring choose", from the request's headers to the choice; attributes `kvring.*` of the choice

With a parent, spans are made if it is sampled, and only then; without one, of a share of decisions. They go
out in batches from a thread of their own; a collector that is slow or gone loses spans, and nothing else.
Nothing of OpenTelemetry is loaded unless this module is, and it is only with `traces` set.

Never: text of a prompt, a header but `traceparent`, an explicit key. Called by: app (makes), telling (uses).
Source: W3C Trace Context; OpenTelemetry SDK, OTLP over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from extproc import __version__, choice, journal, telling

__all__ = ["Tracer"]

_EXPORT_TIMEOUT_S = 3
_QUEUE_SPANS_MAX = 2048
_LEFT_OUT = ("costs", "ring_at")


class Tracer:
    """Sends spans to a collector."""

    def __init__(self, endpoint: str, share: float, service: str, wall_ns: Callable[[], int]) -> None:
        """Args: endpoint: URL of OTLP over HTTP; share: of decisions without a parent [0..1]; service: name
        of this service there; wall_ns: Unix time [ns].
        """
        resource = Resource.create({"service.name": service, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, sampler=ParentBased(TraceIdRatioBased(share)))
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUE_SPANS_MAX))
        self._tracer = self._provider.get_tracer("kvring", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._wall_ns = wall_ns

    def trace(self, decided: telling.Decided) -> None:
        """Make a span of `decided`; it goes out later."""
        parent = None
        for text in decided.parents:
            parent = self._propagator.extract({"traceparent": text})
            if otel.get_current_span(parent).get_span_context().is_valid:
                break
        ended_ns = self._wall_ns()
        began_ns = ended_ns - round(decided.waited_s * 1e9)
        span = self._tracer.start_span("kvring choose", parent, start_time=began_ns)
        if span.is_recording():
            span.set_attributes(_attributes(decided))
        span.end(ended_ns)

    def stop(self) -> None:
        """Send what is left; waits for the collector, a few seconds at most."""
        self._provider.shutdown()


def _attributes(decided: telling.Decided) -> dict[str, str | int | float | bool | list[str]]:
    spent = {"kvring.decision_us": round(decided.spent_s * 1e6)}
    if isinstance(decided.result, choice.NoEndpoint):
        return {"kvring.pool": decided.result.pool, "kvring.reason": "no_opinion", **spent}
    told = {name: value for name, value in journal.told(decided.result).items() if name not in _LEFT_OUT}
    return {f"kvring.{name}": value for name, value in told.items() if value is not None} | spent
