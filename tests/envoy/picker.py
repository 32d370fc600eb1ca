"""Picker: a scripted ext_proc server in this process, to see what Envoy does with an answer, or with none.

It speaks through kvring's own wire module but decides nothing: `pick` names the endpoint. So a failure here
is Envoy's or the bootstrap's, never the router's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from extproc import wire
from extproc.protocol import BodyMode, Echo, Phase, Reply, RequestBody, RequestHeaders, RequestTrailers, Steer


class Picker:
    """Answers every request with `pick`; counts in `seen`, the headers of the last in `headers`."""

    def __init__(self) -> None:
        self.address = ""
        self.pick = ""
        self.hang = False  # no answer at all
        self.port = 0
        self.seen = 0
        self.open = 0
        self.body_bytes = 0
        self.whole = False
        self.headers: dict[str, str] = {}

    async def process(self, requests, _context):
        self.open += 1
        try:
            async for message in requests:
                for action in await self._answer(wire.decode(message)):
                    yield wire.encode(action)
        finally:
            self.open -= 1

    async def _answer(self, event) -> list:
        steer = Steer(self.pick) if self.pick else None
        if self.hang:
            await asyncio.Event().wait()
        match event:
            case RequestHeaders():
                self.seen += 1
                self.headers = dict(event.headers)
                self._held = None
                if event.end_of_stream:
                    return [Reply(Phase.REQUEST_HEADERS, steer)]
                self._duplex = event.body_mode is BodyMode.FULL_DUPLEX_STREAMED
                self.body_bytes = 0
                return [] if self._duplex else [Reply(Phase.REQUEST_HEADERS)]
            case RequestBody():
                first = self.body_bytes == 0
                self.body_bytes += len(event.data)
                self.whole = event.end_of_stream
                if not self._duplex:
                    return [Reply(Phase.REQUEST_BODY, steer)]
                echo = Echo(Phase.REQUEST_BODY, event.data, event.end_of_stream)
                return [Reply(Phase.REQUEST_HEADERS, steer), echo] if first else [echo]
            case RequestTrailers():
                return [Reply(Phase.REQUEST_TRAILERS)]
        raise AssertionError(f"not asked for: {type(event).__name__}")


@contextlib.asynccontextmanager
async def picker(running: Picker | None = None) -> AsyncIterator[Picker]:
    """A picker that listens, its health service (all SERVING) on the same port; `running`: this one."""
    running = running or Picker()
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", 64 << 20),
            # as kvring's server: from 1,000 streams not begun on, gRPC resets some at random
            ("grpc.server.max_pending_requests", 100_000),
            ("grpc.server.max_pending_requests_hard_limit", 100_000),
        ]
    )
    handler = grpc.stream_stream_rpc_method_handler(
        running.process, request_deserializer=wire.parse, response_serializer=wire.serialize
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: handler})]
    )
    alive = health.aio.HealthServicer()
    await alive.set("readiness", HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(alive, server)
    running.port = server.add_insecure_port("127.0.0.1:0")
    running.address = f"127.0.0.1:{running.port}"
    await server.start()
    try:
        yield running
    finally:
        await server.stop(0)
