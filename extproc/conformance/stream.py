"""Stream: one ext_proc stream, played from the gateway's side; what was heard on it stays to be looked at.

A listener of its own puts every answer into `heard`, so that sending never waits for hearing, and no wait is
given up in the middle of a read. What ends a stream, or comes out of turn, is no exception: it is in `end`.

Called by: target, checks. Source: Envoy's external_processor.proto v3 (by way of proto/).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import grpc
from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError

from extproc.conformance.reply import Pick, Reply
from extproc.pb import kvring_ext_proc_pb2 as pb
from extproc.wire import names

__all__ = ["Connection", "End", "Mode", "Opening", "Stream"]

_PATH = f"/{names.SERVICE}/{names.METHOD}"
_UNASKED_BYTES = 4 * 1024 * 1024  # more than an echo, on one stream
_UNASKED = 200
_PIECE_BYTES_MIN = 256  # what an echo may be cut into
_CLOSING_S = 1.0  # how long a picker may take to end a stream that nothing hangs on any more

Mode = pb.BodySendMode
Headers = Mapping[str, str]
_Call = grpc.aio.StreamStreamCall[bytes, bytes]


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ended: the status by its name, and what was said to it."""

    code: str
    details: str = ""

    def __str__(self) -> str:
        """In words."""
        if self.code == "OK":
            return "it ended the stream"
        if self.code == "STUCK":
            return "it took no more messages"
        if self.code == "FLOOD":
            return "it sent messages without end"
        if self.code == "GARBAGE":
            return "it sent bytes that are no ProcessingResponse"
        more = f" ({self.details})" if self.details else ""
        return f"the stream ended with {self.code}{more}"


@dataclass(frozen=True, slots=True)
class Opening:
    """What a gateway says beside the first event.

    `request`, `response`: body modes, as in `protocol_config`. `subset`: addresses that are allowed, as a
    list or as one string; None without a hint. `observed`: nothing is to be answered.
    """

    request: Mode = pb.FULL_DUPLEX_STREAMED
    response: Mode = pb.NONE
    subset: Sequence[str] | str | None = None
    observed: bool = False

    def message(self) -> pb.ProcessingRequest:
        """The first message, without its event."""
        first = pb.ProcessingRequest(observability_mode=self.observed)
        first.protocol_config.request_body_mode = self.request
        first.protocol_config.response_body_mode = self.response
        if self.subset is not None:
            hint = first.metadata_context.filter_metadata[names.SUBSET_NAMESPACE].fields[names.SUBSET]
            if isinstance(self.subset, str):
                hint.string_value = self.subset
            else:
                values = [struct_pb2.Value(string_value=entry) for entry in self.subset]
                hint.list_value.CopyFrom(struct_pb2.ListValue(values=values))
        return first


_NOTHING_SAID = Opening()


class Connection:
    """One HTTP/2 connection; any number of streams."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float) -> None:
        """`timeout_s`: how long one answer may take [s]."""
        self._channel = channel
        self._timeout_s = timeout_s
        self._streams: list[Stream] = []

    async def ready(self) -> None:
        """Return once it stands."""
        await self._channel.channel_ready()

    def open(self, opening: Opening = _NOTHING_SAID) -> Stream:
        """A new stream."""
        process: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(_PATH)
        call = process()
        self._streams.append(Stream(self, call, opening, self._timeout_s))
        return self._streams[-1]

    def close(self) -> None:
        """Cancel what is open."""
        for each in self._streams:
            each.cancel()


class Stream:
    """`heard`: the answers, in order. `end`: how it ended, None while it has not."""

    def __init__(self, connection: Connection, call: _Call, opening: Opening, timeout_s: float) -> None:
        """Start to listen."""
        self.connection = connection
        self._call = call
        self._first: pb.ProcessingRequest | None = opening.message()
        self._timeout_s = timeout_s
        self._news = asyncio.Event()
        self._sent = self._sent_bytes = 0
        self._closed = False  # by us, while it was open
        self.heard: list[Reply] = []
        self.end: End | None = None
        self._listener = asyncio.get_running_loop().create_task(self._listen())

    # ---- saying ----

    async def request_headers(self, headers: Headers, *, end: bool = False) -> None:
        """The first event."""
        message = self._next()
        _fill(message.request_headers.headers, headers)
        message.request_headers.end_of_stream = end
        await self.send(message)

    async def request_body(self, data: bytes, *, end: bool = True) -> None:
        """A piece of the request's body."""
        message = self._next()
        message.request_body.body = data
        message.request_body.end_of_stream = end
        await self.send(message)

    async def request_trailers(self) -> None:
        """The request's trailers."""
        message = self._next()
        _fill(message.request_trailers.trailers, {"x-checksum": "0"})
        await self.send(message)

    async def response_headers(self, headers: Headers, *, end: bool = False, served: str = "") -> None:
        """The answer begins. `served`: who gives it, as the gateway's metadata tells."""
        message = self._next()
        if served:
            space = message.metadata_context.filter_metadata[names.STEER_NAMESPACE]
            space.fields[names.SERVED].string_value = served
        _fill(message.response_headers.headers, headers)
        message.response_headers.end_of_stream = end
        await self.send(message)

    async def response_body(self, data: bytes, *, end: bool = True) -> None:
        """A piece of the answer's body."""
        message = self._next()
        message.response_body.body = data
        message.response_body.end_of_stream = end
        await self.send(message)

    async def response_trailers(self) -> None:
        """The answer's trailers."""
        message = self._next()
        _fill(message.response_trailers.trailers, {"grpc-status": "0"})
        await self.send(message)

    async def send(self, message: pb.ProcessingRequest | bytes) -> None:
        """One message, well-formed or not. To a stream that has ended nothing is sent: `end` tells."""
        if self.end is not None:
            return
        data = message if isinstance(message, bytes) else message.SerializeToString()
        self._sent += 1
        self._sent_bytes += len(data)
        with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._call.write(data)
            except TimeoutError:
                self.end = End("STUCK")  # given up in the middle, the call is lost

    async def half_close(self) -> None:
        """Nothing more will be sent."""
        self._closed = self.end is None
        with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            await self._call.done_writing()

    def cancel(self) -> None:
        """Reset the stream, as for a client that went away."""
        self._call.cancel()
        self._listener.cancel()

    async def finish(self) -> bool:
        """Half-close, and hear the rest; whether the picker ended the stream then, in good time."""
        await self.half_close()
        ended = await self._wait(lambda: self.end is not None, min(_CLOSING_S, self._timeout_s))
        self.cancel()
        return ended

    # ---- hearing ----

    async def until(self, holds: Callable[[], bool]) -> bool:
        """Whether `holds()` comes true: false once the stream has ended or no answer came for a while."""
        return await self._wait(holds, self._timeout_s)

    async def quiet(self, for_s: float) -> bool:
        """Whether nothing comes for so long [s]."""
        before = len(self.heard)
        return not await self._wait(lambda: len(self.heard) > before or self.end is not None, for_s)

    def of(self, kind: str) -> list[Reply]:
        """The answers to events of this kind."""
        return [reply for reply in self.heard if reply.kind == kind]

    @property
    def picked(self) -> Pick | None:
        """The endpoint that was named first, None so far."""
        return next((reply.pick for reply in self.heard if reply.pick), None)

    @property
    def refusal(self) -> int | None:
        """Status of an immediate answer to the client, None without."""
        return next((reply.refusal for reply in self.heard if reply.refusal is not None), None)

    def echoed(self, kind: str) -> bytes:
        """The body as it was handed back, chunks joined."""
        return b"".join(reply.chunk[0] for reply in self.of(kind) if reply.chunk)

    def ended_echo(self, kind: str) -> bool:
        """Whether the end of that body was handed back."""
        return any(reply.chunk[1] for reply in self.of(kind) if reply.chunk)

    @property
    def trouble(self) -> str:
        """Why no more was heard, in words."""
        if self.refusal is not None:
            return f"it refused the request with {self.refusal}"
        if self.end is not None:
            return "it said no more" if self._closed and self.end.code == "OK" else str(self.end)
        return f"it said nothing more for {self._timeout_s:g} s"

    async def _wait(self, holds: Callable[[], bool], idle_s: float) -> bool:
        while not holds():
            if self.end is not None:
                return False
            self._news.clear()
            try:
                async with asyncio.timeout(idle_s):
                    await self._news.wait()
            except TimeoutError:
                return holds()
        return True

    async def _listen(self) -> None:
        heard_bytes = 0
        try:
            while isinstance(data := await self._call.read(), bytes):  # else it is EOF
                heard_bytes += len(data)
                echoes = self._sent + self._sent_bytes // _PIECE_BYTES_MIN
                if heard_bytes > _UNASKED_BYTES + 4 * self._sent_bytes or len(self.heard) > _UNASKED + echoes:
                    self.end = End("FLOOD")  # not cancelled, as below
                    return
                self.heard.append(Reply(pb.ProcessingResponse.FromString(data)))
                self._news.set()
            self.end = End((await self._call.code()).name, await self._call.details() or "")
        except grpc.aio.AioRpcError as error:
            self.end = End(error.code().name, error.details() or "")
        except DecodeError:
            self.end = End("GARBAGE")  # not cancelled: that would reach a write that is under way
        finally:
            self._news.set()

    def _next(self) -> pb.ProcessingRequest:
        message, self._first = self._first, None
        return message or pb.ProcessingRequest()


def _fill(header_map: pb.HeaderMap, headers: Headers) -> None:
    for name, value in headers.items():
        header_map.headers.add(key=name, raw_value=value.encode())
