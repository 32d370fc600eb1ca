"""Life: how streams end, run side by side, and carry what a picker may not know."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from extproc.conformance import play
from extproc.conformance.check import Check, FailedError, Severity, SkippedError
from extproc.conformance.stream import Connection, Opening, Stream
from extproc.conformance.target import Target
from extproc.pb import kvring_ext_proc_pb2 as pb

__all__ = ["CHECKS"]

_AT_ONCE = 64
_CANCELLED = 16
_UNKNOWN_FIELD = bytes((0xFA, 0x07, 0x03)) + b"new"  # field 127, three bytes


async def _half_close(target: Target) -> None:
    async with play.opened(target) as on:
        await play.duplex(on, play.chat(target, "half close"))
        if not on.heard:
            raise FailedError(f"no answer at all: {on.trouble}")
        await on.half_close()
        if not await on.until(lambda: on.end is not None):
            raise FailedError(f"the stream stays open: {on.trouble}")
    if on.end is None or on.end.code != "OK":
        raise FailedError(str(on.end))


async def _cancel(target: Target) -> None:
    async with target.connect() as connection:
        for number in range(_CANCELLED):
            on = connection.open()
            request = play.chat(target, f"cancelled {number}", 20_000)
            await on.request_headers(request.headers())
            if number % 4:
                await on.request_body((request.body or b"")[: number * 1000], end=False)
            if number % 4 == 3:  # one in four has its endpoint already
                await on.request_body((request.body or b"")[number * 1000 :])
                await on.until(lambda on=on: on.picked is not None)  # type: ignore[misc]
            on.cancel()
        await _next(connection, play.chat(target, "after the cancelled"))


async def _next(connection: Connection, request: play.Request) -> None:
    """The next request on `connection` gets its endpoint. Raises: FailedError."""
    after = connection.open()
    await play.to_pick(after, request)
    try:
        play.picked(after)
    except FailedError as error:
        raise FailedError(f"the next request on the connection: {error}") from None


async def _parallel(target: Target) -> str:
    requests = [play.chat(target, f"side by side {n}", 20_000 + n) for n in range(_AT_ONCE)]
    return await _side_by_side(target, requests)


async def _request_ids(target: Target) -> str:
    ids = {"the-same": 5000, "": 6000}
    requests = [
        play.chat(target, f"id {name} {n}", length + n, {"x-request-id": name})
        for name, length in ids.items()
        for n in range(_AT_ONCE // 4)
    ]
    return await _side_by_side(target, requests)


async def _side_by_side(target: Target, requests: Sequence[play.Request]) -> str:
    """All of them open at once, chunk by chunk in turn; each must get its own body back."""
    pieces = [play.cut(request.body or b"", (4096,)) for request in requests]
    async with target.connect() as connection:
        streams = [connection.open() for _ in requests]
        for on, request in zip(streams, requests, strict=True):
            await on.request_headers(request.headers())
        for turn in range(max(map(len, pieces))):
            for on, chunks in zip(streams, pieces, strict=True):
                if turn < len(chunks):
                    await on.request_body(chunks[turn], end=turn == len(chunks) - 1)
        await asyncio.gather(*(_until_echoed(on, chunks) for on, chunks in zip(streams, pieces, strict=True)))
    for on, request in zip(streams, requests, strict=True):
        got, sent = on.echoed("request_body"), request.body or b""
        if on.picked is None or got != sent:
            wrong = "no endpoint" if on.picked is None else play.difference(sent, got)
            raise FailedError(f"one of {len(requests)} streams: {wrong}; {on.trouble}")
    return f"{len(requests)} streams"


async def _until_echoed(on: Stream, chunks: Sequence[bytes]) -> None:
    size = sum(map(len, chunks))
    await on.until(lambda: len(on.echoed("request_body")) >= size or on.refusal is not None)


async def _unknown_fields(target: Target) -> None:
    request = play.chat(target, "unknown fields")
    async with play.opened(target) as on:
        first = Opening().message()
        for name, value in request.headers().items():
            first.request_headers.headers.headers.add(key=name, raw_value=value.encode())
        await on.send(first.SerializeToString() + _UNKNOWN_FIELD)
        await on.send(pb.ProcessingRequest(request_body=_whole(request)).SerializeToString() + _UNKNOWN_FIELD)
        await on.until(lambda: on.picked is not None or on.refusal is not None)
    play.picked(on)


def _whole(request: play.Request) -> pb.HttpBody:
    return pb.HttpBody(body=request.body or b"", end_of_stream=True)


async def _unknown_message(target: Target) -> None:
    request = play.chat(target, "unknown message")
    async with play.opened(target) as on:
        await on.request_headers(request.headers())
        await on.send(_UNKNOWN_FIELD)
        await on.request_body(request.body or b"")
        await on.until(lambda: on.picked is not None or on.refusal is not None)
    play.picked(on)


async def _malformed(target: Target) -> None:
    async with target.connect() as connection:
        for data in (b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", bytes(4096)):
            on = connection.open()
            await on.send(data)
            await on.half_close()
            await on.until(lambda on=on: on.end is not None)  # type: ignore[misc]
        await _next(connection, play.chat(target, "after the malformed"))


async def _observed(target: Target) -> None:
    request = play.chat(target, "observed")
    async with play.opened(target, Opening(request=pb.STREAMED, observed=True)) as on:
        await on.request_headers(request.headers())
        await on.request_body(request.body or b"")
        await play.rested(on)
        await on.finish()
    if on.heard:
        raise FailedError(f"{len(on.heard)} answers, the first is {on.heard[0].kind}")


async def _no_override(target: Target) -> None:
    async with play.opened(target) as on:
        await play.duplex(on, play.chat(target, "override"))
    if not on.heard:
        raise SkippedError("it answered nothing")
    if any(reply.message.HasField("mode_override") for reply in on.heard):
        raise FailedError("an answer sets mode_override")


CHECKS = (
    Check(
        "stream-half-close",
        Severity.MUST,
        "When the gateway is done, the stream ends with OK.",
        "Streams pile up in picker and gateway; Envoy counts failures.",
        "gRPC; Envoy closes its side when the request is over",
        _half_close,
    ),
    Check(
        "stream-cancel",
        Severity.MUST,
        "Requests that go away half way harm no later one.",
        "After clients hang up, others fail or wait.",
        "clients disconnect all the time",
        _cancel,
    ),
    Check(
        "stream-parallel",
        Severity.MUST,
        f"{_AT_ONCE} interleaved requests get their own bodies back.",
        "Prompts of different users are mixed up, or requests wait for each other.",
        "Envoy multiplexes streams",
        _parallel,
    ),
    Check(
        "stream-request-ids",
        Severity.MUST,
        "Requests with the same or no x-request-id at once are kept apart.",
        "The picker crashes, or mixes requests up, on ids that clients choose.",
        "llm-d-router#1140",
        _request_ids,
    ),
    Check(
        "stream-unknown-fields",
        Severity.MUST,
        "Fields of a newer Envoy are passed over.",
        "All requests fail after an upgrade of Envoy.",
        "protobuf, unknown fields",
        _unknown_fields,
    ),
    Check(
        "stream-malformed",
        Severity.MUST,
        "Bytes that are no message end at most their own stream.",
        "Garbage on one stream takes the picker down.",
        "gRPC",
        _malformed,
    ),
    Check(
        "stream-unknown-message",
        Severity.SHOULD,
        "A message whose event is not known is passed over.",
        "Requests fail when a newer Envoy tells of something new.",
        "Envoy, ProcessingRequest",
        _unknown_message,
    ),
    Check(
        "stream-observed",
        Severity.SHOULD,
        "In observability mode nothing is answered.",
        "Envoy counts every answer as an error of the picker.",
        "Envoy, observability_mode",
        _observed,
    ),
    Check(
        "stream-no-mode-override",
        Severity.SHOULD,
        "No answer asks for another processing mode.",
        "From SKIP to duplex, Envoy loses the first chunk of the body.",
        "envoy#40340",
        _no_override,
    ),
)
