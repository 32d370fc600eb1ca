"""Play: requests as clients make them, and how a gateway plays them to a picker in each body mode.

Bodies are compact JSON with sorted keys: a picker that writes a body anew may well give the same bytes back,
so only the check for that tells whether it does.

Called by: checks, run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field

from extproc.conformance.check import FailedError
from extproc.conformance.reply import Pick
from extproc.conformance.stream import Mode, Opening, Stream
from extproc.conformance.target import Target
from extproc.pb import kvring_ext_proc_pb2 as pb

__all__ = [
    "BUFFERED",
    "DUPLEX",
    "MODELS",
    "Request",
    "buffered",
    "chat",
    "choice",
    "cut",
    "difference",
    "duplex",
    "opened",
    "picked",
    "rested",
    "steered",
    "to_pick",
]

DUPLEX: Mode = pb.FULL_DUPLEX_STREAMED
BUFFERED: Mode = pb.BUFFERED

_WORDS = "the quick brown fox jumps over the lazy dog and runs on "
_PLAIN = Opening()
_QUIET_S = 0.25


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request; `body` None for one without. `more`: headers beside those that every client
    sends, "" to leave one of them out.
    """

    body: bytes | None
    path: str = "/v1/chat/completions"
    more: Mapping[str, str] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        """As Envoy shows them."""
        headers = {
            ":method": "GET" if self.body is None else "POST",
            ":path": self.path,
            ":scheme": "http",
            ":authority": "conformance.test",
            "user-agent": "kvring-conformance",
            "accept": "*/*",
            "x-request-id": str(uuid.uuid4()),
        }
        if self.body is not None:
            headers |= {"content-type": "application/json", "content-length": str(len(self.body))}
        return {name: value for name, value in (headers | dict(self.more)).items() if value}


MODELS = Request(None, "/v1/models")


def chat(target: Target, subject: str, length: int = 2000, more: Mapping[str, str] | None = None) -> Request:
    """A chat about `subject`, its text so long [characters]; `more` as of `Request`."""
    text = (f"{subject}: " + _WORDS * (length // len(_WORDS) + 1))[:length]
    body = {"messages": [{"content": text, "role": "user"}], "model": target.settings.model}
    written = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return Request(written, more=more or {})


def cut(body: bytes, sizes: Iterable[int]) -> list[bytes]:
    """`body` in chunks of these sizes, over and over."""
    chunks, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(body):
            break
        chunks.append(body[at : at + size])
        at += size
    return chunks or [b""]


@contextlib.asynccontextmanager
async def opened(target: Target, opening: Opening = _PLAIN) -> AsyncIterator[Stream]:
    """A stream on a connection of its own."""
    async with target.connect() as connection:
        yield connection.open(opening)


async def duplex(
    on: Stream, request: Request, sizes: Iterable[int] = (65_536,), *, apart: bool = False
) -> bool:
    """Send a whole request with chunks of these sizes; whether its end came back.

    Args: apart: whether the end comes as an empty chunk of its own, as Envoy sends it for most bodies.
    """
    await on.request_headers(request.headers(), end=request.body is None)
    if request.body is None:
        return await on.until(lambda: bool(on.of("request_headers")))
    chunks = [*cut(request.body, sizes), b""] if apart else cut(request.body, sizes)
    for at, chunk in enumerate(chunks, 1):
        await on.request_body(chunk, end=at == len(chunks))
    return await on.until(lambda: on.ended_echo("request_body") or on.refusal is not None)


async def buffered(on: Stream, request: Request, *, whole: bool = True) -> bool:
    """Send headers, wait for their answer, send the body in one piece; whether that was answered."""
    await on.request_headers(request.headers(), end=request.body is None)
    if not await on.until(lambda: bool(on.of("request_headers")) or on.refusal is not None):
        return False
    if request.body is None or on.refusal is not None:
        return True
    await on.request_body(request.body, end=whole)
    return await on.until(lambda: bool(on.of("request_body")) or on.refusal is not None)


async def to_pick(on: Stream, request: Request) -> None:
    """Send a whole request in duplex, and wait for a pick, a refusal, or an end without one."""
    await on.request_headers(request.headers(), end=request.body is None)
    if request.body is not None:
        await on.request_body(request.body)

    def over() -> bool:
        passed = request.body is None and bool(on.of("request_headers"))
        told = on.picked is not None or on.refusal is not None
        return told or passed or on.ended_echo("request_body")

    await on.until(over)


async def rested(on: Stream) -> None:
    """Give the picker time to say what nobody asked for: a moment, and as long as another request takes."""
    await on.quiet(_QUIET_S)
    await to_pick(on.connection.open(), MODELS)


async def steered(target: Target, request: Request, opening: Opening = _PLAIN) -> Stream:
    """The stream of a request, as far as its pick or refusal; it is over."""
    async with opened(target, opening) as on:
        if opening.request == DUPLEX or request.body is None:
            await to_pick(on, request)
        else:
            await buffered(on, request)
        return on


def picked(on: Stream) -> Pick:
    """The pick. Raises: FailedError if there is none."""
    if on.picked is not None:
        return on.picked
    if on.refusal is None and on.end is None and on.heard:
        raise FailedError("it let the request go on without an endpoint")
    raise FailedError(f"no endpoint: {on.trouble}")


async def choice(target: Target, request: Request, opening: Opening = _PLAIN) -> Pick:
    """What it picks for a request. Raises: FailedError."""
    return picked(await steered(target, request, opening))


def difference(sent: bytes, got: bytes) -> str:
    """Where two bodies that should be equal part, in words."""
    at = next((at for at, (one, other) in enumerate(zip(sent, got, strict=False)) if one != other), None)
    if at is None:
        at = min(len(sent), len(got))
    return f"{len(sent)} bytes went out, {len(got)} came back, the same up to byte {at}"
