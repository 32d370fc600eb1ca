"""Modes: the body modes that gateways use besides full duplex; the contract leaves them open."""

from __future__ import annotations

from extproc.conformance import play
from extproc.conformance.check import Check, FailedError, Severity
from extproc.conformance.stream import Mode, Opening, Stream
from extproc.conformance.target import Target
from extproc.pb import kvring_ext_proc_pb2 as pb

__all__ = ["CHECKS"]

_LARGE_BYTES = 5 * 1024 * 1024
_GATEWAYS = "Envoy AI Gateway (`processing-body-mode: buffered`), Envoy Gateway, bare Envoy"


async def _played(target: Target, mode: Mode, request: play.Request, *, whole: bool = True) -> Stream:
    """The stream of a buffered request, over. Raises: FailedError if it was not played to its end."""
    async with play.opened(target, Opening(request=mode)) as on:
        complete = await play.buffered(on, request, whole=whole)
        if not on.of("request_headers"):
            raise FailedError(f"the headers were not answered before the body: {on.trouble}")
        if not complete:
            raise FailedError(f"the body was not answered: {on.trouble}")
        await on.finish()
        return on


async def _pick(target: Target) -> None:
    on = await _played(target, play.BUFFERED, play.chat(target, "buffered"))
    play.picked(on)
    kinds = [reply.kind for reply in on.heard]
    if kinds != ["request_headers", "request_body"]:
        raise FailedError(f"two messages were answered with {', '.join(kinds)}")
    if on.heard[-1].chunk:
        raise FailedError("the body answer is a `streamed_response`, which is for full duplex")


async def _partial(target: Target) -> None:
    request = play.chat(target, "partial", 120_000)
    cut = play.Request((request.body or b"")[:65_536], more={"content-length": str(len(request.body or b""))})
    play.picked(await _played(target, pb.BUFFERED_PARTIAL, cut, whole=False))


async def _large(target: Target) -> None:
    play.picked(await _played(target, play.BUFFERED, play.chat(target, "large", _LARGE_BYTES)))


async def _headers_only(target: Target) -> None:
    async with play.opened(target, Opening(request=pb.NONE)) as on:
        await on.request_headers(play.chat(target, "headers only").headers())
        await on.until(lambda: bool(on.heard))
    play.picked(on)


async def _streamed(target: Target) -> None:
    request = play.chat(target, "streamed", 40_000)
    chunks = play.cut(request.body or b"", (16_384,))
    async with play.opened(target, Opening(request=pb.STREAMED)) as on:
        await on.request_headers(request.headers())
        if not await on.until(lambda: bool(on.of("request_headers"))):
            raise FailedError(f"the headers were not answered before the body: {on.trouble}")
        for at, chunk in enumerate(chunks, 1):
            await on.request_body(chunk, end=at == len(chunks))
            if not await on.until(lambda at=at: len(on.of("request_body")) >= at):  # type: ignore[misc]
                raise FailedError(f"chunk {at} of {len(chunks)} was not answered: {on.trouble}")
        await on.finish()
    if len(on.heard) != len(chunks) + 1:
        raise FailedError(f"{len(chunks) + 1} messages, {len(on.heard)} answers")
    if any(reply.chunk for reply in on.heard):
        raise FailedError("a body answer is a `streamed_response`, which is for full duplex")


CHECKS = (
    Check(
        "mode-buffered",
        Severity.SHOULD,
        "BUFFERED: headers are answered at once, the endpoint comes by the body answer, plain.",
        "Requests hang until Envoy's message timeout: 504, or unrouted where it fails open.",
        f"{_GATEWAYS}; Gateway API Inference Extension#552, #672, istio#56089",
        _pick,
    ),
    Check(
        "mode-buffered-partial",
        Severity.SHOULD,
        "BUFFERED_PARTIAL: a body that is cut off gets an endpoint.",
        "Prompts longer than the gateway's buffer are not routed.",
        f"{_GATEWAYS}",
        _partial,
    ),
    Check(
        "mode-buffered-large",
        Severity.SHOULD,
        "BUFFERED: 5 MiB in one message are taken.",
        "Long prompts and images end in 500 (gRPC's own limit is 4 MiB).",
        "ai-gateway#1209, Envoy Gateway #9417",
        _large,
    ),
    Check(
        "mode-none",
        Severity.SHOULD,
        "NONE: without bodies the endpoint comes with the header answer.",
        "Where the gateway sends no bodies nothing is routed.",
        "Envoy, `request_body_mode: NONE`",
        _headers_only,
    ),
    Check(
        "mode-streamed",
        Severity.SHOULD,
        "STREAMED: each message gets one answer, at once, and none is a `streamed_response`.",
        "Requests hang until Envoy's message timeout.",
        "Envoy, `request_body_mode: STREAMED`",
        _streamed,
    ),
)
