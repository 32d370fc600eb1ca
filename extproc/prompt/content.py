"""Content: a message's content in the shapes the APIs share: a string, nothing, or a list of parts.

A string equals one text part. Images, audio, video and files enter by URL, data or id, as the JSON of their
part; base64 is never decoded. What the template does not render (cache hints, ids of tool calls) is left out.
Types are told apart by name where OpenAI's and Anthropic's mean the same; any other is hashed as it is.
Called by: chat, messages, responses.
"""

from __future__ import annotations

from typing import Any

from extproc.prompt import text as _text

__all__ = ["add", "without"]

_UNRENDERED = ("cache_control", "citations")


def add(rendered: _text.Text, kind: str, content: Any, *, cut: bool) -> bool:
    """Append `content`; False if it has a shape that no template renders.

    Its first piece begins with a mark, also if it is empty, so that it never runs into what is before it.
    """
    if content is None or isinstance(content, str):
        rendered.add(kind, _text.PART, content or "", cut=cut)
        return True
    if not isinstance(content, list):
        return False
    if not content and not cut:
        rendered.add(kind, _text.PART, "")
    last = len(content) - 1
    for position, part in enumerate(content):
        if rendered.ended:
            break
        if not _part(rendered, kind, part, cut=cut and position == last):
            return False
    return True


def without(value: Any, *keys: str) -> Any:
    """`value` without some keys, if it is an object; itself otherwise."""
    if not isinstance(value, dict):
        return value
    left = value.copy()
    for key in keys:
        left.pop(key, None)
    return left


def _part(rendered: _text.Text, kind: str, part: Any, *, cut: bool) -> bool:
    if isinstance(part, str):
        rendered.add(kind, _text.PART, part, cut=cut)
        return True
    if not isinstance(part, dict):
        return False
    last_key = next(reversed(part), None) if cut else None
    if cut and (last_key == "type" or "type" not in part):
        return True  # its kind is not known yet
    kind_of_part = part.get("type")
    if kind_of_part == "text" and not cut and isinstance(part.get("text"), str):
        rendered.add(kind, _text.PART, part["text"])  # nearly all of them
        return True
    match kind_of_part:
        case "thinking":
            rendered.add("thinking", _text.JSON, "thinking")  # no JSON value begins so
            _field(rendered, "thinking", part, "thinking", cut=cut)
        case "tool_use" | "server_tool_use":
            rendered.add_json("calls", without(part, "id", *_UNRENDERED), cut=cut)
        case "tool_result":
            rendered.add("result", _text.JSON, "")
            if "content" in part:
                return add(rendered, "result", part["content"], cut=cut and last_key == "content")
        case None if not {"text", *_UNRENDERED} >= part.keys():
            rendered.add_json("media", without(part, *_UNRENDERED))  # its kind is told by its keys
        case None | "text" | "input_text" | "output_text":
            _field(rendered, kind, part, "text", cut=cut)
        case _:
            rendered.add_json("media", without(part, *_UNRENDERED), cut=cut)
    return True


def _field(rendered: _text.Text, kind: str, part: dict[str, Any], key: str, *, cut: bool) -> None:
    """Append the text in `key`; of a part of a strange shape, all of it."""
    value = part.get(key)
    if isinstance(value, str):
        rendered.add(kind, _text.PART, value, cut=cut and next(reversed(part)) == key)
    elif not cut:
        rendered.add_json("media", without(part, *_UNRENDERED))
