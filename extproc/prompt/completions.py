"""Completions: `prompt` as a string, a list of strings, token ids, or lists of token ids.

Of several prompts the first is the one that keys: they are prefilled together, on one endpoint.
Source: OpenAI API reference, /v1/completions.
"""

from __future__ import annotations

from typing import Any

from extproc.prompt import body as _body

__all__ = ["read"]


def read(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The prompt of a completions request."""
    prompt: Any = body.fields.get("prompt")
    cut = body.is_cut("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        cut = cut and len(prompt) == 1
        prompt = prompt[0]
    if isinstance(prompt, str):
        return body.prompt("completions", [_body.encode(prompt)])
    if isinstance(prompt, list) and prompt:
        return _token_ids(body, prompt[:-1] if cut else prompt)  # the last number may lack digits
    return _body.Unkeyed.SHAPE


def _token_ids(body: _body.Body, ids: list[Any]) -> _body.Prompt | _body.Unkeyed:
    try:
        packed = b"".join(number.to_bytes(4, "little") for number in ids)
    except (AttributeError, OverflowError, TypeError):
        return _body.Unkeyed.SHAPE
    return body.prompt("completions/ids", [packed])
