"""Anthropic messages: tools, system, then messages; as vLLM and SGLang serve them under /v1/messages.

System as a string equals one text block. Cache hints, signatures and ids are not rendered.
Source: Anthropic API reference, /v1/messages and /v1/messages/count_tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from extproc.prompt import body as _body
from extproc.prompt import chat, content

__all__ = ["count", "read"]


def read(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The prompt of a messages request."""
    messages = body.fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return _body.Unkeyed.SHAPE
    rendered = body.text()
    chat.tools(body, rendered)
    system: Any = body.fields.get("system")
    if system is not None:
        rendered.name("role", "system")
        if not content.add(rendered, "system", system, cut=body.is_cut("system")):
            return _body.Unkeyed.SHAPE
    last = len(messages) - 1
    for position, one in enumerate(messages):
        cut = position == last and body.is_cut("messages")
        if not chat.message(rendered, one, cut=cut) and not cut:
            return _body.Unkeyed.SHAPE
    return body.prompt("messages", rendered)


def count(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The prompt of a request that only counts tokens: the same, but nothing is prefilled."""
    found = read(body)
    return replace(found, prefills=False) if isinstance(found, _body.Prompt) else found
