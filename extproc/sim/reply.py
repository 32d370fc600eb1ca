"""Reply: the JSON and server-sent events of answers, in vLLM's shapes.

A stream's events differ only in one word of text, so all else is encoded once per choice and a token costs
one concatenation. The role's event leaves together with the first token, as vLLM sends it.

Invariant: text is ASCII without quotes or backslashes (see answer). Called by: replica.
Source: OpenAI API; bodies observed from vLLM 0.32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from extproc.sim import call

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DONE", "Events", "Usage", "complete", "error", "error_event", "usage_event"]

DONE = b"data: [DONE]\n\n"
_MARK = "\x00"  # where a stream's token goes; JSON writes it as the six bytes below
_MARK_JSON = b"\\u0000"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer, summed over its prompts and choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def fields(self) -> dict[str, Any]:
        """The `usage` object of a reply."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Events:
    """The events of one choice of a stream."""

    __slots__ = ("_head", "_last", "_role", "_tail", "_words")

    def __init__(
        self, asked: call.Call, reply_id: str, created: int, index: int, words: Sequence[bytes]
    ) -> None:
        self._words = words
        self._role = b""
        if asked.kind is call.Kind.CHAT:
            delta: dict[str, Any] = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
            self._role = _event(asked, reply_id, created, [{"index": index, **delta, "finish_reason": None}])
            token: dict[str, Any] = {"index": index, "delta": {"content": _MARK}, "logprobs": None}
        else:
            token = {"index": index, "text": _MARK, "logprobs": None}
        going = _event(asked, reply_id, created, [{**token, "finish_reason": None}])
        ended = _event(asked, reply_id, created, [{**token, "finish_reason": "length", "stop_reason": None}])
        self._head, self._tail = going.split(_MARK_JSON)
        self._last = ended.split(_MARK_JSON)[1]

    def between(self, start: int, end: int) -> bytes:
        """The events of tokens `start` to `end` - 1."""
        words, head, tail = self._words, self._head, self._tail
        role = self._role if start == 0 < end else b""
        if end == len(words) and start < end:
            going = b"".join([head + word + tail for word in words[start : end - 1]])
            return role + going + head + words[end - 1] + self._last
        return role + b"".join([head + word + tail for word in words[start:end]])


def usage_event(asked: call.Call, reply_id: str, created: int, usage: Usage) -> bytes:
    """The event before the last of a stream that asked for `include_usage`."""
    return _event(asked, reply_id, created, [], usage.fields())


def complete(
    asked: call.Call, reply_id: str, created: int, answers: Sequence[Sequence[bytes]], usage: Usage
) -> bytes:
    """The body of an answer that is not streamed, `answers` in order of their index."""
    choices: list[dict[str, Any]] = []
    for index, words in enumerate(answers):
        text = b"".join(words).decode()
        end = {"logprobs": None, "finish_reason": "length", "stop_reason": None}
        if asked.kind is call.Kind.CHAT:
            message: dict[str, Any] = {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "tool_calls": [],
            }
            choices.append({"index": index, "message": message, **end})
        else:
            choices.append({"index": index, "text": text, **end, "prompt_logprobs": None})
    name = "chat.completion" if asked.kind is call.Kind.CHAT else "text_completion"
    return msgspec.json.encode(
        {
            "id": reply_id,
            "object": name,
            "created": created,
            "model": asked.model,
            "choices": choices,
            "usage": usage.fields(),
        }
    )


def error(status: int, kind: str, message: str, param: str | None = None) -> bytes:
    """The body of an error answer."""
    fields = {"message": message, "type": kind, "param": param, "code": status}
    return msgspec.json.encode({"error": fields})


def error_event(status: int, kind: str, message: str) -> bytes:
    """An error inside a stream, whose HTTP status is 200 already, and the stream's end."""
    return b"data: " + error(status, kind, message) + b"\n\n" + DONE


def _event(
    asked: call.Call, reply_id: str, created: int, choices: list[Any], usage: dict[str, Any] | None = None
) -> bytes:
    name = "chat.completion.chunk" if asked.kind is call.Kind.CHAT else "text_completion"
    fields: dict[str, Any] = {
        "id": reply_id,
        "object": name,
        "created": created,
        "model": asked.model,
        "choices": choices,
    }
    if usage is not None:
        fields["usage"] = usage
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"
