"""Bodies: what clients send that is no chat as it should be. Content never makes a picker fail a request."""

from __future__ import annotations

import gzip

from extproc.conformance import play
from extproc.conformance.check import Check, FailedError, Severity
from extproc.conformance.checks import duplex
from extproc.conformance.target import Target

__all__ = ["CHECKS"]

_SPREAD = "llm-d-router#1208, #1355, #2507"
_ERRORS = "Clients get the picker's 4xx or 5xx and never the model server's own answer."


async def _passes(target: Target, request: play.Request) -> None:
    """The request gets an endpoint, and its body comes back as it was."""
    async with play.opened(target) as on:
        await play.duplex(on, request, (16_384,))
    play.picked(on)
    duplex.same(on, "request_body", request.body or b"")


async def _broken(target: Target) -> None:
    for body in (b'{"model":"m","messages":[{"role":', b"null", b"[1,2]", b'"text"', b"{]"):
        await _passes(target, play.Request(body))


async def _no_model(target: Target) -> None:
    for body in (
        b'{"messages":[{"content":"hello","role":"user"}]}',
        b'{"messages":[{"content":"hello","role":"user"}],"model":""}',
        b'{"messages":[{"content":"hello","role":"user"}],"model":7}',
        b"{}",
    ):
        await _passes(target, play.Request(body))


async def _not_utf8(target: Target) -> None:
    for body in (b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe\xc3("}]}', bytes(range(256))):
        await _passes(target, play.Request(body))


async def _compressed(target: Target) -> None:
    packed = gzip.compress(play.chat(target, "compressed", 20_000).body or b"", mtime=0)
    await _passes(target, play.Request(packed, more={"content-encoding": "gzip"}))
    await _passes(target, play.Request(packed, more={"content-encoding": "x-unknown"}))


async def _not_json(target: Target) -> None:
    form = b'--cut\r\nContent-Disposition: form-data; name="file"\r\n\r\n\x00\x01RIFF\r\n--cut--\r\n'
    more = {"content-type": "multipart/form-data; boundary=cut"}
    await _passes(target, play.Request(form, "/v1/audio/transcriptions", more))


async def _path(target: Target) -> None:
    body = play.chat(target, "paths").body
    for path in ("/v1/messages?beta=true", "/no/such/path", "/v1/chat/completions/", "/"):
        await _passes(target, play.Request(body, path))


async def _deep(target: Target) -> None:
    deep = b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    long_number = b'{"messages":[],"model":"m","n":' + b"9" * 100_000 + b"}"
    for body in (deep, long_number):
        async with play.opened(target) as on:
            await play.to_pick(on, play.Request(body))
        if on.picked is None and on.refusal is None:
            raise FailedError(f"neither an endpoint nor a refusal: {on.trouble}")
    play.picked(await play.steered(target, play.chat(target, "after the deep ones")))


CHECKS = (
    Check(
        "body-hostile",
        Severity.MUST,
        "100,000 brackets or digits end in an endpoint or a refusal, and the picker lives on.",
        "One client's request takes the picker down for everybody.",
        "every request is answered",
        _deep,
    ),
    Check(
        "body-broken-json",
        Severity.SHOULD,
        "Cut, wrong or no JSON at all gets an endpoint.",
        _ERRORS,
        _SPREAD,
        _broken,
    ),
    Check(
        "body-no-model",
        Severity.SHOULD,
        "A body without a model gets an endpoint.",
        _ERRORS,
        _SPREAD,
        _no_model,
    ),
    Check(
        "body-not-utf8",
        Severity.SHOULD,
        "Bytes that are no UTF-8 get an endpoint.",
        _ERRORS,
        _SPREAD,
        _not_utf8,
    ),
    Check(
        "body-compressed",
        Severity.SHOULD,
        "A compressed body gets an endpoint and stays compressed.",
        "Clients that compress get errors; model servers get bytes that do not match their header.",
        "agentgateway#2402, #2404",
        _compressed,
    ),
    Check(
        "body-not-json",
        Severity.SHOULD,
        "A form with audio gets an endpoint.",
        _ERRORS,
        _SPREAD,
        _not_json,
    ),
    Check(
        "body-any-path",
        Severity.SHOULD,
        "Unknown paths, queries and slashes at the end get an endpoint.",
        _ERRORS,
        f"{_SPREAD}, #1585, #1515",
        _path,
    ),
)
