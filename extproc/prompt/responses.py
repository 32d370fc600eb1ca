"""OpenAI responses: instructions, tools, then `input`, a string or a list of items.

A string equals one user message. A request that continues a stored answer (`previous_response_id`,
`conversation`) does not say how its prompt starts: it has no chain, but may follow that answer to its
endpoint.
Source: OpenAI API reference, /v1/responses; vLLM and SGLang serve it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from extproc.prompt import body as _body
from extproc.prompt import chat, content
from extproc.prompt import text as _text

__all__ = ["ANSWER_BYTES_MAX", "API", "answer_id", "read"]

API = "responses"

ANSWER_BYTES_MAX = 16 * 1024
"""Bytes of an answer in which its id is looked for; it stands near the start."""

_ANSWER_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,128})"')


def read(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The prompt of a responses request."""
    string: Any = body.fields.get("input")
    is_string = isinstance(string, str)
    given = [{"role": "user", "content": string}] if is_string else body.listed("input")
    if given is None:
        return _body.Unkeyed.SHAPE
    if body.is_cut_behind("input"):
        return _body.Unkeyed.CUT
    rendered = body.text()
    chat.options(body, rendered, ("reasoning", "prompt", *chat.OPTIONS))
    chat.tools(body, rendered)
    instructions = body.fields.get("instructions")
    if isinstance(instructions, str):
        rendered.name("role", "system")
        rendered.add("system", _text.PART, instructions, cut=body.is_cut("instructions"))
    last = len(given) - 1
    for position, item in enumerate(given):
        cut = position == last and body.is_cut("input")
        if rendered.ended:
            break
        if not _item(rendered, item, cut=cut, string=is_string) and not cut:
            return _body.Unkeyed.SHAPE
    return _continued(body, body.prompt(API, rendered))


def answer_id(start: bytes) -> str | None:
    """The id of an answer, from the start of its body (JSON or SSE); None if it is not there."""
    found = _ANSWER_ID.search(start[:ANSWER_BYTES_MAX])
    return found[1].decode() if found else None


def _item(rendered: _text.Text, item: Any, *, cut: bool, string: bool) -> bool:
    if not isinstance(item, dict):
        return False
    if string:
        rendered.name("role", "user")
        return content.add(rendered, "user", item["content"], cut=cut)
    if item.get("type", "message") == "message" and not (cut and next(reversed(item), "") == "type"):
        return chat.message(rendered, item, cut=cut)
    if cut:
        return True  # ids may still come, and are no part of it
    rendered.add_json("item", content.without(item, "id", "call_id", "status"))
    return True


def _continued(body: _body.Body, found: _body.Prompt) -> _body.Prompt:
    previous = body.fields.get("previous_response_id")
    if previous is None and body.fields.get("conversation") is None:
        return found
    known = previous if isinstance(previous, str) and previous else None
    return replace(found, previous_response=known, unkeyed=_body.Unkeyed.PREVIOUS)
