"""Shorthand for tests that read prompts: body in, prompt or chain out."""

from __future__ import annotations

import json
from typing import Any

from extproc import chain, prompt

__all__ = ["CHAT", "MANY", "fields_of", "hashes", "is_start", "keyed", "read"]

CHAT = "/v1/chat/completions"
MANY = 1 << 30


def read(
    body: bytes | dict[str, Any], path: str = CHAT, *, whole: bool = True, bytes_max: int = MANY
) -> prompt.Prompt | prompt.Unkeyed:
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    return prompt.read(path, encoded, prompt.Settings(bytes_max=bytes_max), whole=whole)


def keyed(body: bytes | dict[str, Any], path: str = CHAT, **how: Any) -> prompt.Prompt:
    """The prompt of a body that must have one, with a chain."""
    found = read(body, path, **how)
    assert isinstance(found, prompt.Prompt), found
    assert found.unkeyed is None, found.unkeyed
    return found


def hashes(found: prompt.Prompt, block_bytes: int = 8) -> tuple[int, ...]:
    return chain.build(chain.seed_of(found.seeds), found.text, block_bytes, MANY).hashes


def is_start(cut: prompt.Prompt | prompt.Unkeyed, whole: prompt.Prompt, block_bytes: int = 8) -> bool:
    """Whether what `cut` claims to be known of a prompt is a start of all of it; claiming nothing is."""
    if isinstance(cut, prompt.Unkeyed) or cut.unkeyed is not None:
        return True
    short, long = hashes(cut, block_bytes), hashes(whole, block_bytes)
    return cut.seeds == whole.seeds and short == long[: len(short)] and whole.text.startswith(cut.text)


def fields_of(body: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(body)
    return fields
