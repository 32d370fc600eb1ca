"""OpenAI traces: one JSON object a line: a request body, with the time it came.

    {"timestamp": 12.5, "body": {"model": ..., "messages": [...]}, "path": "/v1/chat/completions",
     "output_tokens": 180}

or the body's own fields beside `timestamp`. Times are seconds, or ISO 8601. `path` may be left out: bodies
with `messages` are chat completions, others completions. Without `output_tokens` the answer has `max_tokens`,
or 128.

The production reader reads the bodies, so a chain here is the chain in production; 4 bytes are a token.
Called by: traces, conversations.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import msgspec

from extproc import chain, prompt, router
from extproc.sim import client, content

__all__ = ["ask", "read"]

_OUTPUT_TOKENS = 128
_BYTES_PER_TOKEN = 4
_READER = prompt.Settings(bytes_max=1 << 23)
_OURS = {"timestamp", "path", "body", "output_tokens", "session_id"}


def read(raw: bytes, pace: float) -> tuple[Callable[[int], client.Starts], float]:
    """Scripts of a seed, and how long they last [s]; the requests are those of the trace under every seed.

    Errors: ValueError naming the line, for one that is no request.
    """
    requests = []
    for number, line in enumerate(raw.splitlines(), 1):
        if not line.strip():
            continue
        fields = msgspec.json.decode(line)
        if not isinstance(fields, dict) or "timestamp" not in fields:
            raise ValueError(f"line {number}: an object with a timestamp expected")
        requests.append((_seconds(fields["timestamp"]), number, fields))
    if not requests:
        raise ValueError("no requests")
    requests.sort(key=lambda request: request[:2])
    first_s = requests[0][0]

    def starts(seed: int) -> client.Starts:  # noqa: ARG001  (a recorded load has one seed)
        for at_s, _, fields in requests:
            yield client.Start((at_s - first_s) / pace, _once(fields))

    return starts, (requests[-1][0] - first_s) / pace + 1


def ask(
    path: str, body: dict[str, Any], output_tokens: int, session: str = "", group: str = ""
) -> client.Ask:
    """The request of an HTTP body; one that the reader cannot key is routed by load, as in production."""
    encoded = msgspec.json.encode(body)
    found = prompt.read(path, encoded, _READER, whole=True)
    user = content.piece("user", _first_user(body)[:100])
    if isinstance(found, prompt.Unkeyed):
        unread = content.Content.of(
            [(content.piece(encoded.decode()), max(len(encoded) // _BYTES_PER_TOKEN, 1))]
        )
        return client.Ask(
            unread, output_tokens, group, session=session, user=user, read=router.Request(unkeyed=found)
        )
    seed = chain.seed_of(found.seeds)
    block_bytes = content.BLOCK_TOKENS * _BYTES_PER_TOKEN
    blocks = chain.build(seed, found.text, block_bytes, 1 << 20)
    tokens = max(len(found.text) // _BYTES_PER_TOKEN, 1)
    whole = content.Content.of_hashes(list(blocks.hashes), tokens, blocks.tail)
    read_as = router.Request(
        chain=chain.Chain(whole.chain().hashes, blocks.tail) if found.unkeyed is None else None,
        tokens=tokens,
        prefills=found.prefills,
        unkeyed=found.unkeyed,
        explicit=found.cache_key,
        previous=found.previous_response,
    )
    return client.Ask(whole, output_tokens, group, session=session, user=user, read=read_as)


def _once(fields: dict[str, Any]) -> client.Script:
    body = fields.get("body")
    if not isinstance(body, dict):
        body = {key: value for key, value in fields.items() if key not in _OURS}
    body.setdefault("model", "model")
    path = fields.get("path") or ("/v1/chat/completions" if "messages" in body else "/v1/completions")
    asked = fields.get("output_tokens") or body.get("max_completion_tokens") or body.get("max_tokens")
    output = asked if isinstance(asked, int) and asked > 0 else _OUTPUT_TOKENS
    session = str(fields.get("session_id") or "")
    yield ask(path, body, output, session, session)


def _first_user(body: dict[str, Any]) -> str:
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and message.get("role") == "user":
            return str(message.get("content"))
    return str(body.get("prompt", ""))


def _seconds(stamp: object) -> float:
    if isinstance(stamp, int | float):
        return float(stamp)
    if isinstance(stamp, str):
        moment = dt.datetime.fromisoformat(stamp)
        return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()
    raise ValueError(f"timestamp is a {type(stamp).__name__}, must be seconds or ISO 8601")
