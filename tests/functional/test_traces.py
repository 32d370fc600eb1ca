"""Log lines and spans of decisions: only where asked for, in the right trace, with nothing of a prompt."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from tests import ext_proc_client
from tests.ext_proc_client import Client, Mode
from tests.functional.conftest import PATH, FakeEndpoint, Launch, Sidecar, chat, eventually

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

MARK = "xyzzy-secret"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OTHER = "11111111111111111111111111111111"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


class Collector:
    """An OpenTelemetry collector: OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.raw = b""
        self.url = ""

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("content-encoding") == "gzip":
            import gzip  # noqa: PLC0415

            body = gzip.decompress(body)
        self.raw += body
        for found in trace_service_pb2.ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in found.scope_spans:
                self.spans += scope.spans
        return web.Response(body=b"", content_type="application/x-protobuf")


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector._take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    try:
        yield collector
    finally:
        await runner.cleanup()


async def send(client: Client, headers: dict[str, str] | None = None, envoys: str = "") -> None:
    of_call = [("traceparent", envoys)] if envoys else []
    stream = client.open(request_body_mode=Mode.BUFFERED, call_metadata=of_call)
    await stream.request_headers({**PATH, "authorization": MARK, "x-key": MARK, **(headers or {})})
    await stream.receive()
    await stream.request_body(chat(f"{MARK} " * 500))
    await stream.receive()
    await stream.half_close()
    assert await stream.rest() == []


async def gone(running: Sidecar) -> None:
    running.signal()
    assert await running.exited() == 0


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


async def test_a_span_joins_the_trace_of_the_request_and_tells_the_choice(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint]
) -> None:
    up = await endpoint().listen()
    async with collecting() as collector:
        running = await sidecar(
            {"up": up.address},
            group={"name": "blue"},
            key_header="x-key",
            traces={"endpoint": collector.url, "share": 0},
        )
        async with ext_proc_client.connect(running.grpc) as client:
            await send(client, {"traceparent": SAMPLED, "tracestate": MARK, "baggage": MARK})
            await send(client, {"traceparent": UNSAMPLED})
            await send(client, {"traceparent": "nonsense"})
            await send(client)
            await send(client, {"traceparent": SAMPLED}, envoys=f"00-{OTHER}-{SPAN}-01")
        await gone(running)
        span, nearer = collector.spans
        assert nearer.trace_id.hex() == OTHER, "Envoy's own span, where it makes one"
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
        assert span.name == "kvring choose"
        assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9
        told = attributes(span)
        assert told["kvring.pool"] == "blue"
        assert told["kvring.endpoint"] == "up"
        assert told["kvring.keyed_by"] == "header"
        assert told["kvring.prompt_tokens"] > 1000
        assert len(told["kvring.key"]) == 16
        assert MARK.encode() not in collector.raw
        assert MARK not in running.stderr()


async def test_without_a_parent_a_share_is_traced_and_a_collector_that_is_gone_harms_nobody(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint]
) -> None:
    up = await endpoint().listen()
    async with collecting() as collector:
        running = await sidecar({"up": up.address}, traces={"endpoint": collector.url, "share": 1})
        async with ext_proc_client.connect(running.grpc) as client:
            await asyncio.gather(*(send(client) for _ in range(20)))
        await gone(running)
        assert len(collector.spans) == 20
        assert len({span.trace_id for span in collector.spans}) == 20
    running = await sidecar({"up": up.address}, traces={"endpoint": collector.url, "share": 1})
    async with ext_proc_client.connect(running.grpc) as client:
        await send(client)
    assert await running.open_leases() == 0
    assert '"fault"} 0.0' in (await running.get("/metrics"))[1]
    running.process.kill()


async def test_choices_are_logged_only_if_asked_and_by_their_share(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint]
) -> None:
    up = await endpoint().listen()
    lines = {}
    for share in (0, 0.5, 1):
        running = await sidecar({"up": up.address}, log_choices=share, key_header="x-key")
        async with ext_proc_client.connect(running.grpc) as client:
            await asyncio.gather(*(send(client) for _ in range(60)))
        await gone(running)
        lines[share] = [line for line in running.events() if line["event"] == "choice"]
        assert MARK not in running.stderr()
    assert len(lines[0]) == 0
    assert 5 < len(lines[0.5]) < 55
    assert len(lines[1]) == 60
    assert {line["level"] for line in lines[1]} == {"info"}
    one = lines[1][0]
    assert (one["endpoint"], one["keyed_by"], one["policy"]) == ("up", "header", "ring")
    assert int(one["key"], 16) > 0


async def test_the_decision_goes_with_the_pick_only_if_asked(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint]
) -> None:
    up = await endpoint().listen()
    for asked in (False, True):
        running = await sidecar({"up": up.address}, decision_metadata=asked)
        async with ext_proc_client.connect(running.grpc) as client:
            stream = client.open(request_body_mode=Mode.BUFFERED)
            await stream.request_headers(PATH)
            await stream.receive()
            await stream.request_body(chat(f"{MARK} " * 500))
            reply = await stream.receive()
            await stream.half_close()
            assert await stream.rest() == []
        text = json.dumps(reply.dynamic_metadata.to_dict())
        assert ("x-kvring-decision" in text) is asked
        assert ("pool=default; endpoint=up; reason=home; policy=cost; cached=0/" in text) is asked
        assert MARK not in text
        await eventually(lambda running=running: no_leases(running))


async def no_leases(running: Sidecar) -> bool:
    return await running.open_leases() == 0
