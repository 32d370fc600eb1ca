"""Response: the phases of the answer, for gateways that send them (Istio, GKE: all, in duplex)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from extproc.conformance import play
from extproc.conformance.check import Check, FailedError, Severity, SkippedError
from extproc.conformance.checks import duplex
from extproc.conformance.stream import Mode, Opening, Stream
from extproc.conformance.target import Target
from extproc.pb import kvring_ext_proc_pb2 as pb

__all__ = ["CHECKS"]

_ENVOY = "Envoy, FULL_DUPLEX_STREAMED"
_STREAMS = {":status": "200", "content-type": "text/event-stream"}
_PLAIN = {":status": "200", "content-type": "application/json"}
_PHASES = ("response_headers", "response_body", "response_trailers")
_ODD = (1, 3, 17, 1, 1024, 5)  # sizes of chunks [bytes]

# An answer as engines stream it: letters of several bytes, a report of tokens, which the cuts take apart.
_EVENTS = (
    "".join(
        f'data: {{"choices":[{{"delta":{{"content":"wörd {n} \N{GRINNING FACE}"}}}}]}}\n\n'
        for n in range(400)
    )
    + 'data: {"choices":[],"usage":{"prompt_tokens":"12","completion_tokens":400}}\n\ndata: [DONE]\n\n'
).encode()


@contextlib.asynccontextmanager
async def _answering(target: Target, mode: Mode) -> AsyncIterator[Stream]:
    """A stream whose request has had its endpoint."""
    async with play.opened(target, Opening(response=mode)) as on:
        await play.to_pick(on, play.chat(target, "response"))
        if on.picked is None:
            raise SkippedError("the request got no endpoint: see duplex-pick")
        await on.until(lambda: on.ended_echo("request_body"))
        yield on


async def _headers_answered(on: Stream, headers: dict[str, str], *, end: bool = False) -> None:
    pick = on.picked
    served = "" if pick is None else pick.addresses[0]
    await on.response_headers(headers, end=end, served=served)
    if not await on.until(lambda: bool(on.of("response_headers"))):
        raise FailedError(f"response headers were not answered: {on.trouble}")


async def _headers(target: Target) -> None:
    for end in (False, True):
        async with _answering(target, play.DUPLEX) as on:
            await _headers_answered(on, _PLAIN, end=end)
            await on.finish()
        if len(on.of("response_headers")) > 1:
            raise FailedError(f"response headers were answered {len(on.of('response_headers'))} times")


async def _streamed(target: Target) -> Stream:
    """A stream whose answer was sent in odd chunks, all of it; over."""
    async with _answering(target, play.DUPLEX) as on:
        await on.response_headers(_STREAMS)
        chunks = play.cut(_EVENTS, _ODD)
        for at, chunk in enumerate(chunks, 1):
            await on.response_body(chunk, end=at == len(chunks))
        await on.until(lambda: on.ended_echo("response_body"))
        await on.finish()
    return on


async def _echo(target: Target) -> str:
    on = await _streamed(target)
    duplex.same(on, "response_body", _EVENTS)
    duplex.in_order(on, _PHASES)
    return f"{len(_EVENTS)} bytes of events, {len(on.of('response_body'))} chunks back"


async def _end(target: Target) -> None:
    on = await _streamed(target)
    ends = [reply.chunk[1] for reply in on.of("response_body") if reply.chunk]
    if sum(ends) != 1 or not ends[-1]:
        raise FailedError(f"{sum(ends)} chunks said end_of_stream; {on.trouble}")


async def _one_by_one(target: Target) -> None:
    chunks = [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"]
    async with _answering(target, play.DUPLEX) as on:
        await _headers_answered(on, _STREAMS)
        sent = b""
        for chunk in chunks:
            sent += chunk
            await on.response_body(chunk, end=False)
            if not await on.until(lambda sent=sent: len(on.echoed("response_body")) >= len(sent)):  # type: ignore[misc]
                raise FailedError(f"a token was not passed on before the next one: {on.trouble}")


async def _trailers(target: Target) -> None:
    async with _answering(target, play.DUPLEX) as on:
        await _headers_answered(on, _STREAMS)
        await on.response_body(b"data: [DONE]\n\n", end=False)
        await on.response_trailers()
        if not await on.until(lambda: bool(on.of("response_trailers"))):
            raise FailedError(f"response trailers were not answered: {on.trouble}")
        await on.finish()
    duplex.same(on, "response_body", b"data: [DONE]\n\n")
    if on.ended_echo("response_body"):
        raise FailedError("a chunk said end_of_stream, and trailers followed")
    duplex.in_order(on, _PHASES)


async def _buffered(target: Target) -> None:
    async with _answering(target, pb.BUFFERED) as on:
        await _headers_answered(on, _PLAIN)
        await on.response_body(b'{"usage":{"prompt_tokens":7}}')
        if not await on.until(lambda: bool(on.of("response_body"))):
            raise FailedError(f"the response body was not answered: {on.trouble}")
        await on.finish()
    if any(reply.replaces_body for reply in on.of("response_body")):
        raise FailedError("the answer changes the response body")


async def _skipped(target: Target) -> None:
    async with _answering(target, pb.NONE) as on:
        before = len(on.heard)
        await play.rested(on)
        unasked = [reply.kind for at, reply in enumerate(on.heard) if at >= before or reply.kind in _PHASES]
        if unasked:
            raise FailedError(f"it said {unasked[0]} unasked")
        if on.end is not None and on.end.code != "OK":
            raise FailedError(str(on.end))


async def _chunk_size(target: Target) -> None:
    async with _answering(target, play.DUPLEX) as on:
        await on.response_headers(_PLAIN)
        await on.response_body(b"x" * 200_000)
        await on.until(lambda: on.ended_echo("response_body"))
        duplex.chunks_within(on, "response_body")


CHECKS = (
    Check(
        "response-headers",
        Severity.MUST,
        "Response headers are answered once, also with the served endpoint in metadata.",
        "No client gets an answer: the gateway waits for the picker.",
        "Envoy, `response_header_mode: SEND`; proposal 004, served endpoint",
        _headers,
    ),
    Check(
        "response-echo",
        Severity.MUST,
        "An event stream comes back byte for byte, however it is cut.",
        "Clients get cut or garbled answers.",
        _ENVOY,
        _echo,
    ),
    Check(
        "response-end-of-stream",
        Severity.MUST,
        "The last chunk that comes back says end_of_stream, and no other.",
        "Answers never end, or end too early.",
        _ENVOY,
        _end,
    ),
    Check(
        "response-at-once",
        Severity.MUST,
        "Each chunk comes back before the next one is there.",
        "Tokens come in bursts, or all at the end: streaming is gone.",
        _ENVOY,
        _one_by_one,
    ),
    Check(
        "response-trailers",
        Severity.MUST,
        "Response trailers are answered, last.",
        "Answers with trailers (gRPC) hang.",
        "Envoy, `response_trailer_mode: SEND`",
        _trailers,
    ),
    Check(
        "response-skip",
        Severity.MUST,
        "Where the gateway sends no response phase, nothing more is said.",
        "Envoy takes it for a spurious message: the request fails.",
        "Envoy, `response_header_mode: SKIP`",
        _skipped,
    ),
    Check(
        "response-buffered",
        Severity.SHOULD,
        "BUFFERED response bodies are answered and left alone.",
        "Answers hang until Envoy's message timeout.",
        "Envoy, `response_body_mode: BUFFERED`",
        _buffered,
    ),
    Check(
        "response-chunk-size",
        Severity.SHOULD,
        "No chunk that comes back is longer than 64 KiB.",
        "Gateways with that limit (managed load balancers) cut long answers.",
        "llm-d splits at 62,000 bytes for such gateways",
        _chunk_size,
    ),
)
