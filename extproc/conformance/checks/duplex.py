"""Duplex: request bodies in FULL_DUPLEX_STREAMED, the mode that the contract asks for."""

from __future__ import annotations

import json
from collections.abc import Sequence

from extproc.conformance import play
from extproc.conformance.check import Check, FailedError, Severity, SkippedError
from extproc.conformance.stream import Stream
from extproc.conformance.target import Target

__all__ = ["CHECKS", "chunks_within", "in_order", "same"]

_CHUNK_BYTES_MAX = 64 * 1024
_ODD = (1, 1, 2, 61, 4096, 16_384, 1, 65_536, 7)  # sizes of chunks [bytes]
_LARGE_BYTES = 5 * 1024 * 1024
_REQUEST = ("request_headers", "request_body", "request_trailers")
_ENVOY = "Envoy, FULL_DUPLEX_STREAMED"


async def _pick(target: Target) -> None:
    on = await play.steered(target, play.chat(target, "duplex pick"))
    play.picked(on)
    (first, *_) = on.heard
    if first.kind != "request_headers" or first.pick is None:
        raise FailedError(f"the first answer is {first.kind or 'of no known kind'} without the endpoint")


async def _order(target: Target) -> None:
    async with play.opened(target) as on:
        await play.duplex(on, play.chat(target, "order", 40_000), _ODD)
        await on.finish()
    if on.refusal is not None:
        raise FailedError(on.trouble)
    kinds = [reply.kind for reply in on.heard]
    if kinds.count("request_headers") > 1:
        raise FailedError(f"the headers were answered {kinds.count('request_headers')} times")
    strange = set(kinds).difference(("request_headers", "request_body"))
    if strange:
        raise FailedError(f"answers to nothing that was sent: {', '.join(sorted(strange)) or 'empty'}")
    if not kinds:
        raise SkippedError("nothing came back: see duplex-echo")
    if kinds[0] != "request_headers":
        raise FailedError("body chunks came back before the headers were answered")


async def _round_trip(target: Target, request: play.Request, sizes: tuple[int, ...]) -> Stream:
    """The request played to its end, and its body found unchanged."""
    async with play.opened(target) as on:
        await play.duplex(on, request, sizes, apart=True)
        await on.finish()
    same(on, "request_body", request.body or b"")
    return on


def same(on: Stream, kind: str, sent: bytes) -> None:
    """Raises FailedError unless `sent` came back."""
    got = on.echoed(kind)
    if got == sent:
        return
    if on.of(kind) and not any(reply.chunk for reply in on.of(kind)):
        raise FailedError("chunks were answered, not handed back as `streamed_response`")
    raise FailedError(f"{play.difference(sent, got)}; {on.trouble}")


async def _echo(target: Target) -> str:
    request = play.chat(target, "echo", 300_000)
    on = await _round_trip(target, request, _ODD)
    return f"{len(request.body or b'')} bytes, {len(on.of('request_body'))} chunks back"


async def _verbatim(target: Target) -> None:
    written = json.dumps(target.settings.model)
    body = (
        '{ "temperature":1.0e0,"seed":12345678901234567891, "model" : ' + written + ',\n\t"messages":[ '
        '{"role":"user","content":"\\u00e9 é <&> \\/ "} ], "extra": -0.0, "a":[ ] }\n'
    )
    await _round_trip(target, play.Request(body.encode()), (64,))


async def _large(target: Target) -> None:
    await _round_trip(target, play.chat(target, "large", _LARGE_BYTES), (65_536,))


async def _empty(target: Target) -> None:
    async with play.opened(target) as on:
        complete = await play.duplex(on, play.Request(b""))
        await on.finish()
    if on.refusal is None and not complete:
        raise FailedError(f"the empty last chunk did not come back: {on.trouble}")
    if on.echoed("request_body"):
        raise FailedError("bytes came back for a body that has none")


def in_order(on: Stream, phases: Sequence[str]) -> None:
    """Raises FailedError unless the answers to these phases came in their order."""
    kinds = [reply.kind for reply in on.heard if reply.kind in phases]
    if kinds != sorted(kinds, key=phases.index):
        raise FailedError(f"out of order: {', '.join(kinds)}")


def chunks_within(on: Stream, kind: str) -> None:
    """Raises FailedError for a chunk that is longer than the strictest gateway takes."""
    if not on.echoed(kind):
        raise SkippedError("no chunk came back")
    longest = max(len(reply.chunk[0]) for reply in on.of(kind) if reply.chunk)
    if longest > _CHUNK_BYTES_MAX:
        raise FailedError(f"a chunk of {longest} bytes")


async def _chunk_size(target: Target) -> None:
    async with play.opened(target) as on:
        await play.duplex(on, play.chat(target, "chunk size", 600_000), (262_144,))
        chunks_within(on, "request_body")


async def _end(target: Target) -> None:
    for apart in (False, True):
        async with play.opened(target) as on:
            await play.duplex(on, play.chat(target, "end", 20_000), (8192,), apart=apart)
            await on.finish()
        ends = [reply.chunk[1] for reply in on.of("request_body") if reply.chunk]
        if sum(ends) != 1:
            raise FailedError(f"{sum(ends)} chunks said end_of_stream; {on.trouble}")
        if not ends[-1]:
            raise FailedError("chunks came back after the one that said end_of_stream")


async def _second_end(target: Target) -> None:
    for again in (b"", b'{"model":"again"}'):
        async with play.opened(target) as on:
            if not await play.duplex(on, play.chat(target, "second end", 20_000), (8192,)):
                raise FailedError(f"the first end did not come back: {on.trouble}")
            before = len(on.heard)
            await on.request_body(again)
            await on.finish()
        what = "an empty" if not again else "a repeated"
        if len(on.heard) > before:
            raise FailedError(f"{what} last chunk was answered too: {on.heard[before].kind}")
        if on.end is not None and on.end.code != "OK":
            raise FailedError(f"after {what} last chunk {on.end}")


async def _trailers(target: Target) -> None:
    request = play.chat(target, "trailers", 20_000)
    body = request.body or b""
    async with play.opened(target) as on:
        await on.request_headers(request.headers())
        for chunk in play.cut(body, (8192,)):
            await on.request_body(chunk, end=False)
        await on.request_trailers()
        await on.until(lambda: bool(on.of("request_trailers")))
        await on.finish()
    play.picked(on)
    if not on.of("request_trailers"):
        raise FailedError(f"trailers were not answered: {on.trouble}")
    same(on, "request_body", body)
    if on.ended_echo("request_body"):
        raise FailedError("a chunk said end_of_stream, and trailers followed")
    in_order(on, _REQUEST)


async def _early(target: Target) -> None:
    request = play.chat(target, "early pick", 1_000_000)
    async with play.opened(target) as on:
        await on.request_headers(request.headers())
        for chunk in play.cut((request.body or b"")[:500_000], (65_536,)):
            await on.request_body(chunk, end=False)
        await on.until(lambda: on.picked is not None or on.refusal is not None)
        if on.picked is None:
            raise FailedError(f"half of a long upload, and no endpoint: {on.trouble}")


async def _waits(target: Target) -> None:
    async with play.opened(target) as on:
        await on.request_headers(play.chat(target, "waits").headers())
        await play.rested(on)
        if on.heard:
            raise FailedError("the headers were answered before any of the body came")
        if on.end is not None:
            raise FailedError(on.trouble)


CHECKS = (
    Check(
        "duplex-pick",
        Severity.MUST,
        "The endpoint comes with the header answer, which is the first one.",
        "The endpoint comes too late or never: requests go where the gateway's own balancing sends them.",
        "proposal 004, destination endpoint; Gateway API Inference Extension#3035",
        _pick,
    ),
    Check(
        "duplex-order",
        Severity.MUST,
        "Headers are answered once, then chunks come back; nothing else is said.",
        "Envoy takes it for a spurious message: 500 for the client.",
        f"{_ENVOY}; Gateway API Inference Extension#3035",
        _order,
    ),
    Check(
        "duplex-echo",
        Severity.MUST,
        "Every byte of the body comes back, however it is cut.",
        "Model servers get cut or garbled prompts: 400s, hanging uploads, wrong answers.",
        _ENVOY,
        _echo,
    ),
    Check(
        "duplex-end-of-stream",
        Severity.MUST,
        "The last chunk that comes back says end_of_stream, and no other.",
        "Requests hang until a timeout (none), or are cut (too early).",
        _ENVOY,
        _end,
    ),
    Check(
        "duplex-second-end",
        Severity.MUST,
        "A second last chunk, empty or repeated, is ignored.",
        "Prompts of a megabyte and more fail with 400 or 500 on Envoy 1.35 and later.",
        "envoy#46237",
        _second_end,
    ),
    Check(
        "duplex-empty-body",
        Severity.MUST,
        "An empty body comes back as an empty last chunk, unless it is refused.",
        "POSTs without a body hang.",
        _ENVOY,
        _empty,
    ),
    Check(
        "duplex-trailers",
        Severity.MUST,
        "Trailers are answered, after headers and chunks.",
        "Requests with trailers (gRPC clients) hang.",
        _ENVOY,
        _trailers,
    ),
    Check(
        "duplex-large-body",
        Severity.MUST,
        "5 MiB come back whole.",
        "Long prompts and images fail or are cut.",
        _ENVOY,
        _large,
    ),
    Check(
        "duplex-verbatim",
        Severity.SHOULD,
        "The body is not written anew: spaces, key order, long numbers, escapes stay.",
        "Numbers change, signatures break, and engines see other tokens than clients sent.",
        "llm-d-router#2317",
        _verbatim,
    ),
    Check(
        "duplex-chunk-size",
        Severity.SHOULD,
        "No chunk that comes back is longer than 64 KiB.",
        "Gateways with that limit (managed load balancers) fail long prompts.",
        "llm-d splits at 62,000 bytes for such gateways",
        _chunk_size,
    ),
    Check(
        "duplex-early-pick",
        Severity.SHOULD,
        "A long upload gets its endpoint before it is over.",
        "Slow uploads start late, and the whole body is held in memory.",
        "mcp-gateway#802, ai-gateway#1428",
        _early,
    ),
    Check(
        "duplex-waits-for-body",
        Severity.SHOULD,
        "The headers wait for the body, which has the prompt.",
        "The endpoint cannot depend on the prompt: no routing by prefix or model.",
        _ENVOY,
        _waits,
    ),
)
