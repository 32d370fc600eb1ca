"""Anthropic messages: options, tools, system, then messages; as vLLM and SGLang serve them.

System as a string equals one text block. Cache hints, signatures and ids are not rendered, nor is `thinking`;
of `output_config` only the effort is.
Source: Anthropic API reference, /v1/messages and /v1/messages/count_tokens; vLLM takes
`chat_template_kwargs` beside.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from extproc.prompt import body as _body
from extproc.prompt import chat, content
from extproc.prompt import text as _text

__all__ = ["count", "read"]


def read(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The prompt of a messages request."""
    messages = body.listed("messages")
    if messages is None:
        return _body.Unkeyed.SHAPE
    if body.is_cut_behind("messages"):
        return _body.Unkeyed.CUT
    rendered = body.text()
    chat.options(body, rendered, ("chat_template_kwargs",))
    _effort(body, rendered)
    chat.tools(body, rendered)
    system: Any = body.fields.get("system")
    if system is not None:
        rendered.name("role", "system")
        if not content.add(rendered, "system", system, cut=body.is_cut("system")):
            return _body.Unkeyed.SHAPE
    last = len(messages) - 1
    for position, one in enumerate(messages):
        cut = position == last and body.is_cut("messages")
        if rendered.ended:
            break
        if not chat.message(rendered, one, cut=cut) and not cut:
            return _body.Unkeyed.SHAPE
    return body.prompt("messages", rendered)


def count(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The prompt of a request that only counts tokens: the same, but nothing is prefilled."""
    found = read(body)
    return replace(found, prefills=False) if isinstance(found, _body.Prompt) else found


def _effort(body: _body.Body, rendered: _text.Text) -> None:
    config = body.fields.get("output_config")
    effort = config.get("effort") if isinstance(config, dict) else None
    if isinstance(effort, str):
        rendered.name("option", "output_config")
        rendered.add("option", _text.PART, effort, cut=body.is_cut("output_config"))
