"""Delivery: how an answer leaves a replica: whole, streamed, or as a rejection.

A stream's headers leave at once. Then each write carries the tokens that are due: one in quiet times, several
when the loop was late. The last token, usage and the end leave together.

Invariant: a delivery never outlives its handler; it only reads what the pacer hands out.
Called by: replica. Source: OpenAI and Anthropic APIs as served by vLLM 0.32.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import TYPE_CHECKING

from aiohttp import web

from extproc.sim import call, kv_cache, messages, reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from extproc.sim import pacer

__all__ = ["deliver", "reject"]

_OVERLOAD = "The server is overloaded: the queue is full."
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")


async def deliver(
    request: web.Request, asked: call.Call, words: Sequence[Sequence[bytes]], listener: pacer.Listener
) -> web.StreamResponse:
    """The answer in the form that was asked for, sent or ready to send. Args: words, of every choice."""
    given = request.headers.get("x-request-id", "")
    # the client's own id, as in vLLM
    name = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    reply_id, created = f"{asked.kind.value}-{name}", int(time.time())
    if asked.stream:
        return await _stream(request, asked, reply_id, created, words, listener)
    while listener.open:
        await listener.wait()
    usage = _usage(asked, words, listener)
    if asked.kind is call.Kind.MESSAGES:
        body = messages.complete(asked, reply_id, words[0], usage)
    else:
        body = reply.complete(asked, reply_id, created, words, usage)
    return web.Response(body=body, headers={"content-type": "application/json"})


async def reject(request: web.Request, asked: call.Call) -> web.StreamResponse:
    """Overload. A stream's HTTP status has left before the engine is asked, hence 200 and an event."""
    anthropic = asked.kind is call.Kind.MESSAGES
    if not asked.stream:
        body = (
            messages.error("overloaded_error", _OVERLOAD)
            if anthropic
            else reply.error(503, "ServiceUnavailableError", _OVERLOAD)
        )
        return web.Response(body=body, status=503, headers={"content-type": "application/json"})
    response = await _open(request)
    await response.write(
        messages.error_event("overloaded_error", _OVERLOAD)
        if anthropic
        else reply.error_event(503, "ServiceUnavailableError", _OVERLOAD)
    )
    await response.write_eof()
    return response


async def _stream(
    request: web.Request,
    asked: call.Call,
    reply_id: str,
    created: int,
    words: Sequence[Sequence[bytes]],
    listener: pacer.Listener,
) -> web.StreamResponse:
    response = await _open(request)
    events: Sequence[messages.Events | reply.Events]
    if asked.kind is call.Kind.MESSAGES:
        events = [messages.Events(asked, reply_id, words[0], _prompt_tokens(asked))]
    else:
        events = [reply.Events(asked, reply_id, created, index, made) for index, made in enumerate(words)]
    sent = [0] * len(words)
    while True:
        if sent == listener.made:
            await listener.wait()
        made = listener.made.copy()
        data = b"".join([e.between(a, b) for e, a, b in zip(events, sent, made, strict=True)])
        sent = made
        if not listener.open:
            break
        await response.write(data)
    usage = _usage(asked, words, listener)
    if asked.kind is call.Kind.MESSAGES:
        data += messages.ending(usage)
    else:
        data += reply.usage_event(asked, reply_id, created, usage) if asked.usage_in_stream else b""
        data += reply.DONE
    await response.write(data)
    await response.write_eof()
    return response


async def _open(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


def _prompt_tokens(asked: call.Call) -> int:
    return sum(len(prompt) for prompt in asked.prompts) * asked.choices // kv_cache.TOKEN_BYTES


def _usage(asked: call.Call, words: Sequence[Sequence[bytes]], listener: pacer.Listener) -> reply.Usage:
    return reply.Usage(
        prompt_tokens=_prompt_tokens(asked),
        completion_tokens=asked.output_tokens * len(words),
        cached_tokens=listener.cached_tokens,
    )
