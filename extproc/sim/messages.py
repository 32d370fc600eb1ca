"""Messages: the Anthropic API as vLLM serves it, translated to chat and back.

vLLM turns `/v1/messages` into a chat request: `system` becomes the first message, tool uses become tool
calls, tool results become messages of role tool. A system block that begins with the volatile billing header
of Claude Code is dropped, so that it does not break the prefix.

Usage differs from the OpenAI API's: `input_tokens` counts uncached tokens only; a stream's `message_start`
still carries the total, its `message_delta` the split.

Invariant: text is ASCII without quotes or backslashes (see answer). Called by: call, replica.
Source: Anthropic API; usage fields observed from vLLM 0.32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from extproc.sim import call, reply

__all__ = ["Events", "complete", "ending", "error", "error_event", "translate"]

_BILLING = "x-anthropic-billing-header:"
_MARK = "\x00"
_MARK_JSON = b"\\u0000"


def translate(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat body vLLM makes of an Anthropic body. What is malformed is left for the chat checks."""
    chat = {name: value for name, value in body.items() if name not in ("system", "messages", "tools")}
    messages: list[Any] = []
    system = body.get("system")
    if isinstance(system, list):
        texts = [block.get("text") for block in system if isinstance(block, dict)]
        system = "\n".join(t for t in texts if isinstance(t, str) and not t.startswith(_BILLING))
    if system:
        messages.append({"role": "system", "content": system})
    asked = body.get("messages")
    if not isinstance(asked, list) or not asked:
        return chat
    for message in asked:
        messages.extend(_turns(message) if isinstance(message, dict) else [message])
    chat["messages"] = messages
    tools = body.get("tools")
    if isinstance(tools, list):
        chat["tools"] = [_tool(tool) if isinstance(tool, dict) else tool for tool in tools]
    if body.get("tool_choice") == {"type": "none"}:
        chat["tool_choice"] = "none"
    return chat


class Events:
    """The events of a stream; an Anthropic answer has one choice."""

    __slots__ = ("_head", "_start", "_tail", "_words")

    def __init__(self, asked: call.Call, reply_id: str, words: Sequence[bytes], prompt_tokens: int) -> None:
        self._words = words
        message = _message(asked, reply_id, [], None)
        message["usage"] = {"input_tokens": prompt_tokens, "output_tokens": 0}
        self._start = _event("message_start", message=message) + _event(
            "content_block_start", index=0, content_block={"type": "text", "text": ""}
        )
        delta = _event("content_block_delta", index=0, delta={"type": "text_delta", "text": _MARK})
        self._head, self._tail = delta.split(_MARK_JSON)

    def between(self, start: int, end: int) -> bytes:
        """The events of tokens `start` to `end` - 1."""
        head, tail = self._head, self._tail
        begin = self._start if start == 0 < end else b""
        return begin + b"".join([head + word + tail for word in self._words[start:end]])


def ending(usage: reply.Usage) -> bytes:
    """The events after a stream's last token."""
    delta = {"stop_reason": "max_tokens", "stop_sequence": None}
    return (
        _event("content_block_stop", index=0)
        + _event("message_delta", delta=delta, usage=_usage(usage))
        + _event("message_stop")
    )


def complete(asked: call.Call, reply_id: str, words: Sequence[bytes], usage: reply.Usage) -> bytes:
    """The body of an answer that is not streamed."""
    content = [{"type": "text", "text": b"".join(words).decode()}]
    return msgspec.json.encode({**_message(asked, reply_id, content, "max_tokens"), "usage": _usage(usage)})


def error(kind: str, message: str) -> bytes:
    """The body of an error answer."""
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def error_event(kind: str, message: str) -> bytes:
    """An error inside a stream, whose HTTP status is 200 already."""
    return b"event: error\ndata: " + error(kind, message) + b"\n\n"


def _turns(message: dict[str, Any]) -> list[dict[str, Any]]:
    """One Anthropic message as chat messages: tool results first, then text and tool calls."""
    content = message.get("content")
    if not isinstance(content, list):
        return [{"role": message.get("role"), "content": content}]
    results: list[dict[str, Any]] = []
    parts: list[Any] = []
    calls: list[dict[str, Any]] = []
    for block in content:
        match block:
            case {"type": "tool_result"}:
                results.append({"role": "tool", "content": block.get("content") or ""})
            case {"type": "tool_use"}:
                function = {"name": block.get("name"), "arguments": block.get("input")}
                calls.append({"type": "function", "function": function})
            case {"type": "thinking" | "redacted_thinking"}:
                pass  # templates drop earlier reasoning
            case {"type": "text", "text": str(text)}:
                parts.append({"type": "text", "text": text})  # without cache_control, which is not rendered
            case _:
                parts.append(block)
    turn: dict[str, Any] = {"role": message.get("role"), "content": parts}
    if calls:
        turn["tool_calls"] = calls
    return [*results, turn] if parts or calls or not results else results


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": function}


def _message(asked: call.Call, reply_id: str, content: list[Any], stop: str | None) -> dict[str, Any]:
    return {
        "id": reply_id,
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": asked.model,
        "stop_reason": stop,
        "stop_sequence": None,
    }


def _usage(usage: reply.Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
    }


def _event(name: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"type": name, **fields}))
