"""Chat completions: tools, then messages with role, content and tool calls.

The order is the one most chat templates render (docs/routing.md); a system message comes first because
clients send it first. Content as a string equals content as one text part. Images, audio and files enter by
their URL, data or id as text; base64 is never decoded. Tools and keys are never sorted: another order is
other tokens to the engine.
Source: OpenAI API reference, /v1/chat/completions; chat templates of Qwen, Llama 3 and Hermes.
"""

from __future__ import annotations

from typing import Any

from extproc.prompt import body as _body

__all__ = ["read"]

# Fields that change the rendered prompt as a whole; where they differ, no block is shared.
_RENDERED = ("chat_template", "chat_template_kwargs", "reasoning_effort", "documents")

_TEXT_TYPES = (None, "text", "input_text", "output_text")


def read(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The prompt of a chat request."""
    messages = body.fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return _body.Unkeyed.SHAPE
    pieces = _options(body)
    last = len(messages) - 1
    for position, message in enumerate(messages):
        cut = position == last and body.is_cut("messages")
        if not isinstance(message, dict):
            return _body.Unkeyed.SHAPE
        if not _message(message, pieces, cut=cut):
            if cut:
                break
            return _body.Unkeyed.SHAPE
    return body.prompt("chat", pieces)


def _options(body: _body.Body) -> list[bytes]:
    """What is rendered before the messages."""
    pieces = [
        _body.MARK_TOOL + name.encode() + _body.canonical(body.fields[name], cut=body.is_cut(name))
        for name in _RENDERED
        if body.fields.get(name) is not None
    ]
    tools = body.fields.get("tools")
    if tools and body.fields.get("tool_choice") != "none":
        pieces.append(_body.MARK_TOOL + _body.canonical(tools, cut=body.is_cut("tools")))
    return pieces


def _message(message: dict[str, Any], pieces: list[bytes], *, cut: bool) -> bool:
    """Append one message; False if it has no form that a template renders.

    Of a message that is cut, only what no later key could precede is used: the role first, calls only
    behind a content that is complete.
    """
    role = message.get("role")
    if not isinstance(role, str) or (cut and next(reversed(message)) == "role"):
        return False
    pieces.append(_body.MARK_MESSAGE + _body.encode(role))
    pieces.append(_body.MARK_PART)
    if "content" in message:
        ends_cut = cut and next(reversed(message)) == "content"
        if not _content(message["content"], pieces, cut=ends_cut):
            return False
        if ends_cut:
            return True
    elif cut:
        return True
    calls = message.get("tool_calls")
    if calls:
        ends_cut = cut and next(reversed(message)) == "tool_calls"
        pieces.append(_body.MARK_TOOL + _body.canonical(_rendered(calls), cut=ends_cut))
    return True


def _rendered(calls: Any) -> Any:
    """Tool calls without their ids, which most templates don't render."""
    if not isinstance(calls, list):
        return calls
    return [
        {key: value for key, value in call.items() if key != "id"} if isinstance(call, dict) else call
        for call in calls
    ]


def _content(content: Any, pieces: list[bytes], *, cut: bool) -> bool:
    """Append a message's content: a string, nothing, or a list of parts."""
    if isinstance(content, str):
        pieces.append(_body.encode(content))
        return True
    if content is None:
        return True
    if not isinstance(content, list):
        return False
    for position, part in enumerate(content):
        if position:
            pieces.append(_body.MARK_PART)
        if isinstance(part, str):
            pieces.append(_body.encode(part))
            continue
        if not isinstance(part, dict):
            return False
        text = part.get("text")
        if isinstance(text, str) and part.get("type") in _TEXT_TYPES:
            pieces.append(_body.encode(text))
            continue
        last_cut = cut and position == len(content) - 1
        if last_cut and (next(reversed(part), "type") == "type" or part.get("type") in _TEXT_TYPES):
            return True  # its kind is not known yet, or its text has not come
        pieces.append(_body.MARK_TOOL + _body.canonical(part, cut=last_cut))
    return True
