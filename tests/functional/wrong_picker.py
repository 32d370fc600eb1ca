"""Wrong picker: a small endpoint picker that is right, but for the faults it is told to have.

It shares nothing with kvring's server but the schema, so it also shows that the conformance suite takes
another picker than kvring for right. Each fault stands where it happens: `"name" in self.faults`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.pb import kvring_ext_proc_pb2 as pb
from extproc.wire import names

STEER = names.STEER
POOL = ("10.0.0.1:8000", "10.0.0.1:8001", "[2001:db8::7]:8000")
CHUNK_BYTES = 60_000
DUPLEX = pb.FULL_DUPLEX_STREAMED
_AT_HEADERS = (pb.NONE, pb.STREAMED)


class _Stream:
    """One stream: what has come, and what is said to it."""

    def __init__(self, faults: frozenset[str], shared: dict[str, bytes]) -> None:
        self.faults = faults
        self.shared = shared  # bodies by request id: what a picker with the fault "keyed by id" does
        self.headers: dict[str, str] = {}
        self.mode = pb.NONE
        self.response_mode = pb.NONE
        self.subset: list[str] | None = None
        self.held: list[pb.HttpBody] = []
        self.passed = 0  # bytes given back
        self.answered = self.ended = self.over = self.observed = False
        self.late: list[pb.ProcessingResponse] = []  # of the response body, kept for its end

    def answer(self, message: pb.ProcessingRequest) -> Iterator[pb.ProcessingResponse]:
        kind = message.WhichOneof("request")
        self.observed = self.observed or message.observability_mode
        if self.over or (self.observed and "answers observers" not in self.faults):
            return
        match kind:
            case "request_headers":
                yield from self._request_headers(message)
            case "request_body":
                yield from self._request_body(message.request_body)
            case "request_trailers":
                if "ignores trailers" not in self.faults:
                    trailers = plain("request_trailers")
                    first = "trailers first" in self.faults
                    yield from [trailers, *self._flush()] if first else [*self._flush(), trailers]
            case "response_headers" | "response_body" | "response_trailers":
                yield from self._response(kind, message)
            case _ if "no unknown events" in self.faults:
                raise AssertionError("an event that nobody knows")
            case _:
                pass

    # ---- the request ----

    def _request_headers(self, message: pb.ProcessingRequest) -> Iterator[pb.ProcessingResponse]:
        lines = message.request_headers.headers.headers
        self.headers = {line.key: line.raw_value.decode(errors="replace") for line in lines}
        self.mode = message.protocol_config.request_body_mode
        self.response_mode = message.protocol_config.response_body_mode
        self.subset = self._read_subset(message, bodyless=message.request_headers.end_of_stream)
        if message.request_headers.end_of_stream:
            if "no pick without body" in self.faults and self.subset is None:
                yield plain("request_headers")
            else:
                yield from self._pick("request_headers")
        elif self.mode in _AT_HEADERS:
            if "waits in streamed" not in self.faults or self.mode == pb.NONE:
                silent = "no pick without bodies" in self.faults and self.mode == pb.NONE
                yield from [plain("request_headers")] if silent else self._pick("request_headers")
        elif self.mode == DUPLEX:
            if "picks at headers" in self.faults:
                self.answered = True
                yield from self._pick("request_headers")
            elif "answers headers early" in self.faults:
                yield plain("request_headers")
        elif "deadlock" not in self.faults:
            yield plain("request_headers")

    def _read_subset(self, message: pb.ProcessingRequest, *, bodyless: bool) -> list[str] | None:
        space = message.metadata_context.filter_metadata.get(names.SUBSET_NAMESPACE)
        hint = None if space is None else space.fields.get(names.SUBSET)
        if hint is None or (bodyless and "no subset without body" in self.faults):
            return None
        if "no subset in buffered" in self.faults and self.mode == pb.BUFFERED:
            return None
        if hint.HasField("string_value"):
            if "no string subset" in self.faults:
                return None
            return [part.strip() for part in hint.string_value.split(",")]
        return [value.string_value for value in hint.list_value.values]

    def _request_body(self, body: pb.HttpBody) -> Iterator[pb.ProcessingResponse]:
        if self.mode != DUPLEX:
            if "one mebibyte" in self.faults and len(body.body) > 1 << 20:
                raise AssertionError("message too large")
            if self.mode == pb.STREAMED and "streams back in streamed" in self.faults:
                yield from self._chunks("request_body", body.body, end=body.end_of_stream)
            elif self.mode in _AT_HEADERS or self._waits_for_more(body):
                yield plain("request_body")
            else:
                yield from self._pick("request_body")
            return
        if self.ended and "answers a second end" not in self.faults:
            return
        self.ended = body.end_of_stream
        self.held.append(body)
        held_bytes = sum(len(chunk.body) for chunk in self.held)
        early = held_bytes >= 100_000 and "picks at the end" not in self.faults
        if self.answered or self.ended or early:
            yield from self._flush()

    def _waits_for_more(self, body: pb.HttpBody) -> bool:
        return "needs a whole body" in self.faults and not body.end_of_stream

    def _flush(self) -> Iterator[pb.ProcessingResponse]:
        """The pick, if it was not said, and the chunks held."""
        if self.mode != DUPLEX:
            return
        if not self.answered:
            self.answered = True
            body = b"".join(chunk.body for chunk in self.held)
            if "refuses bad json" in self.faults and self.ended and body and not is_json(body):
                yield from self._refuse(400)
                return
            if "needs a model" in self.faults and is_json(body) and not model_of(body):
                yield from self._refuse(400)
                return
            if "knows its paths" in self.faults and not self.headers[":path"].endswith("/completions"):
                yield from self._refuse(404)
                return
            if "needs json content" in self.faults and "json" not in self.headers.get("content-type", ""):
                yield from self._refuse(415)
                return
            if "no compression" in self.faults and "content-encoding" in self.headers:
                yield from self._refuse(415)
                return
            if "dies of depth" in self.faults and b"[" * 1000 in body:
                raise RecursionError
            kind = "request_body" if "answers headers early" in self.faults else "request_headers"
            yield from self._pick(kind)
            if self.over:
                return
            if "unasked" in self.faults:
                yield plain("response_headers")
        held, self.held = self.held, []
        whole = b"".join(chunk.body for chunk in held)
        if "rewrites" in self.faults and is_json(whole):
            written = json.dumps(json.loads(whole), sort_keys=True, separators=(",", ":"))
            held = [pb.HttpBody(body=written.encode(), end_of_stream=True)]
        for chunk in held:
            yield from self._give_back(chunk)

    def _give_back(self, chunk: pb.HttpBody) -> Iterator[pb.ProcessingResponse]:
        data, end = chunk.body, chunk.end_of_stream
        if "loses single bytes" in self.faults and len(data) == 1:
            return
        self.passed += len(data)
        if "cuts at two mebibytes" in self.faults and self.passed > 2 << 20:
            data = b""
        if "keyed by id" in self.faults:
            key = self.headers.get("x-request-id", "")
            if data and self.shared.setdefault(key, data) != data and len(key) < 30:
                data = self.shared[key]
        if end and "loses the end" in self.faults:
            end = False
        if not data and "loses empty chunks" in self.faults:
            return
        yield from self._chunks("request_body", data, end=end)

    # ---- the pick ----

    def _pick(self, kind: str) -> Iterator[pb.ProcessingResponse]:
        allowed = self._allowed()
        if not allowed:
            if "no opinion on an empty subset" in self.faults:
                yield plain(kind)
                return
            if "grpc error" in self.faults:
                raise AssertionError("no endpoint")
            yield from self._refuse(503)
            return
        value = self._value(allowed)
        message = plain(kind)
        if "no metadata" not in self.faults:
            space = "envoy" if "wrong namespace" in self.faults else names.STEER_NAMESPACE
            fields = message.dynamic_metadata.fields[space].struct_value.fields
            fields[STEER].string_value = (
                POOL[0] if "unequal" in self.faults and self.subset is None else value
            )
        if "no header" not in self.faults:
            option = getattr(message, kind).response.header_mutation.set_headers.add()
            option.header.key = STEER
            if "value" in self.faults:
                option.header.value = value
            else:
                option.header.raw_value = value.encode()
            if "appends" not in self.faults:
                option.append_action = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        if "overrides" in self.faults:
            message.mode_override.SetInParent()
        yield message
        if "headers twice" in self.faults and kind == "request_headers" and self.mode == DUPLEX:
            yield message

    def _allowed(self) -> Sequence[str]:
        if self.subset is None:
            return POOL
        if "no subset" in self.faults:
            return POOL[:1]  # one alone, for the reason below
        entries = self.subset
        if "no ipv6" in self.faults:
            entries = [entry for entry in entries if not entry.startswith("[")]
        if "no ports" in self.faults:
            hosts = [entry.rpartition(":")[0] for entry in entries]
            # the first port alone: taken in turns, a check would sometimes get the right ones by chance
            return [address for address in POOL if address.rpartition(":")[0] in hosts][:1]
        return [address for address in POOL if address in entries]

    def _value(self, allowed: Sequence[str]) -> str:
        wanted = self.headers.get("test-epp-endpoint-selection", "")
        if wanted and "hooks" in self.faults:
            entries = [entry.strip() for entry in wanted.split(",")]
            return next(a for a in allowed if a in entries or a.rpartition(":")[0] in entries)
        if "obeys clients" in self.faults and STEER in self.headers:
            return self.headers[STEER]
        if "outside the pool" in self.faults and self.subset is None:
            return "10.0.0.9:8000"
        if "names" in self.faults and self.subset is None:
            return "vllm-0.svc:8000"
        if "bare ipv6" in self.faults and self.subset is None:
            return POOL[2].replace("[", "").replace("]", "")
        if "list" in self.faults:
            return ",".join(allowed)
        turn = int(self.shared.get("turn", b"0"))
        self.shared["turn"] = str(turn + 1).encode()
        return allowed[turn % len(allowed)]

    def _refuse(self, status: int) -> Iterator[pb.ProcessingResponse]:
        self.over = True
        if "talks around a refusal" in self.faults:
            yield plain("request_headers")
        message = pb.ProcessingResponse()
        message.immediate_response.status.code = status  # type: ignore[assignment]
        if "no reason" not in self.faults:
            message.immediate_response.details = "no_endpoint"
        yield message

    # ---- the answer ----

    def _response(self, kind: str, message: pb.ProcessingRequest) -> Iterator[pb.ProcessingResponse]:
        if f"ignores {kind}" in self.faults:
            return
        if kind != "response_body":
            said = plain(kind)
            if kind == "response_headers" and "hooks" in self.faults:
                space = message.metadata_context.filter_metadata.get(names.STEER_NAMESPACE)
                served = "" if space is None else space.fields[names.SERVED].string_value
                option = said.response_headers.response.header_mutation.set_headers.add()
                option.header.key = "x-conformance-test-served-endpoint"
                option.header.raw_value = served.encode()
            yield from [said] * (2 if kind == "response_headers" and "response twice" in self.faults else 1)
            if kind == "response_trailers":
                yield from self.late
            return
        body = message.response_body
        if self.response_mode != DUPLEX:
            said = plain("response_body")
            if "empties answers" in self.faults:
                said.response_body.response.body_mutation.clear_body = True
            yield said
            return
        data, end = body.body, body.end_of_stream
        if "cuts letters" in self.faults:
            data = data.decode(errors="ignore").encode()
        if "answers without end" in self.faults:
            end = False
        said_now = list(self._chunks("response_body", data, end=end))
        if "collects answers" in self.faults and not end:
            self.late += said_now
        else:
            yield from [*self.late, *said_now]
            self.late = []

    def _chunks(self, kind: str, data: bytes, *, end: bool) -> Iterator[pb.ProcessingResponse]:
        size = len(data) or 1 if "long chunks" in self.faults else CHUNK_BYTES
        for start in range(0, len(data) or 1, size):
            message = plain(kind)
            piece = getattr(message, kind).response.body_mutation.streamed_response
            piece.body = data[start : start + size]
            piece.end_of_stream = end and start + size >= len(data)
            yield message


def plain(kind: str) -> pb.ProcessingResponse:
    message = pb.ProcessingResponse()
    getattr(message, kind).SetInParent()
    return message


def is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def model_of(data: bytes) -> Any:
    body = json.loads(data)
    return body.get("model") if isinstance(body, dict) else "not told"


class _Health(health_pb2_grpc.HealthServicer):
    """Any name is SERVING."""

    async def Check(self, *_: object) -> health_pb2.HealthCheckResponse:  # noqa: N802
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


class Picker:
    """`faults`: what it does wrong; see `_Stream`, and below."""

    def __init__(self, faults: Sequence[str], credentials: grpc.ServerCredentials | None) -> None:
        self.faults = frozenset(faults)
        self.credentials = credentials
        self.tls_address = ""
        self.address = ""
        self._shared: dict[str, bytes] = {}
        self._turn = asyncio.Lock()
        self.streams = 0
        self._stopping: asyncio.Task[None] | None = None
        self.server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", (1 if "small" in self.faults else 64) << 20)]
        )

    async def process(self, requests: Any, _context: Any) -> AsyncIterator[bytes]:
        self.streams += 1
        if "one at a time" in self.faults:
            await self._turn.acquire()
        stream = _Stream(self.faults, self._shared)
        try:
            async for data in requests:
                if "hangs" in self.faults:
                    continue
                if "stops" in self.faults and self.streams > 20:
                    await self.stop()
                if "closes" in self.faults:
                    return
                while "floods" in self.faults:
                    yield pb.ProcessingResponse(request_trailers=pb.TrailersResponse()).SerializeToString()
                if "garbage" in self.faults:
                    yield b"\xff\xfe garbage"
                    continue
                if "strict fields" in self.faults and data.endswith(b"\xfa\x07\x03new"):
                    raise AssertionError("a field that nobody knows")
                try:
                    message = pb.ProcessingRequest.FromString(data)
                except DecodeError:
                    if "dies of garbage" in self.faults:
                        self.faults |= {"closes"}
                    return
                for reply in stream.answer(message):
                    yield reply.SerializeToString()
            if "stays open" in self.faults:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            if "never forgets" in self.faults:
                self.faults |= {"closes"}
            raise
        finally:
            if "one at a time" in self.faults:
                self._turn.release()

    async def start(self) -> None:
        handler: Any = grpc.stream_stream_rpc_method_handler(self.process)
        self.server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(names.SERVICE, {names.METHOD: handler})]
        )
        if "any health" in self.faults:
            health_pb2_grpc.add_HealthServicer_to_server(_Health(), self.server)
        elif "no health" not in self.faults:
            servicer = health.aio.HealthServicer()
            missing = {fault.removeprefix("no name ") for fault in self.faults}
            for name in {"liveness", "readiness", names.SERVICE, ""} - missing:
                await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
            for name in {"liveness", "readiness", names.SERVICE, ""} & missing:
                await servicer.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
            health_pb2_grpc.add_HealthServicer_to_server(servicer, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        if self.credentials is not None:
            port = self.server.add_secure_port("127.0.0.1:0", self.credentials)
            self.tls_address = f"127.0.0.1:{port}"
        await self.server.start()

    async def stop(self) -> None:
        """Stop at once. A task of its own: a stream that stops the server is cancelled with the others."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self.server.stop(0))
        await asyncio.shield(self._stopping)


@contextlib.asynccontextmanager
async def picker(*faults: str, credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[Picker]:
    """A picker with these faults, listening; its health service on the same port.

    `credentials`: of a TLS port beside it.
    """
    running = Picker(faults, credentials)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()
