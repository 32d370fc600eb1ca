"""Completions and everything else that takes plain prompts: a string, strings, token ids, lists of token ids.

Of several prompts the first is the one that keys: they are prefilled together, on one endpoint. Token ids
are packed into 4 bytes each, about what a token of text takes, and are another kind of prompt than text.
Source: OpenAI API reference, /v1/completions, /v1/embeddings; vLLM: /inference/v1/generate.
"""

from __future__ import annotations

import struct
from typing import Any

from extproc.prompt import body as _body
from extproc.prompt import chat
from extproc.prompt import text as _text

__all__ = ["embeddings", "generate", "prompt_at", "read"]


def read(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The prompt of a completions request."""
    return prompt_at(body, "completions", "prompt")


def embeddings(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The prompt of an embeddings request: its first input, or messages."""
    if "messages" in body.fields:
        return chat.read(body)
    return prompt_at(body, "embeddings", "input")


def generate(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The prompt of a request that was rendered and tokenized before; equal to one of completions."""
    return prompt_at(body, "completions", "token_ids")


def prompt_at(body: _body.Body, api: str, key: str) -> _body.Prompt | _body.Unkeyed:
    """The prompt in the field `key`."""
    prompt: Any = body.fields.get(key)
    cut = body.is_cut(key)
    if body.is_cut_behind(key):
        return _body.Unkeyed.CUT
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        cut = cut and len(prompt) == 1
        prompt = prompt[0]
    rendered = body.text()
    if isinstance(prompt, str):
        rendered.add("text", b"", prompt, cut=cut)
        return body.prompt(api, rendered)
    if not isinstance(prompt, list) or not prompt:
        return _body.Unkeyed.SHAPE
    packed = _packed(prompt[:-1] if cut else prompt)  # the last number may lack digits
    if packed is None:
        return _body.Unkeyed.SHAPE
    rendered.add_bytes("token ids", _text.JSON + packed)
    return body.prompt(api, rendered)


def _packed(ids: list[Any]) -> bytes | None:
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error:
        return None
