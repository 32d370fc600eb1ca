"""Reading: what a request's headers and body tell of its prompt, whole or as far as it came.

Of a body that was cut off, `content-length` tells how much is to come: who holds all that can be seen holds,
most likely, the rest, and whoever does not has that much more to prefill.

Never: a body changed; an exception. Called by: exchange, `kvring explain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from extproc import prompt

__all__ = ["Reading", "read"]

_MODEL_TOLD = (prompt.Unkeyed.PATH, prompt.Unkeyed.SHAPE)  # no prompt that we know, but perhaps a model


@dataclass(frozen=True, slots=True)
class Reading:
    """The prompt, or why there is none; the model it is for, None if that is not known."""

    prompt: prompt.Prompt | prompt.Unkeyed
    model: str | None


def read(headers: Mapping[str, str], body: bytes, settings: prompt.Settings, *, whole: bool) -> Reading:
    """Read a request.

    Args: headers: names in lower case; body: what came of it; whole: whether that is all.
    """
    came = len(body)
    coding = headers.get("content-encoding", "")
    plain = prompt.inflate(coding, body, settings.whole_bytes_max, whole=whole) if coding else None
    if coding and plain is None:
        return Reading(prompt.Unkeyed.ENCODING, None)
    ended = whole if plain is None else plain.whole
    if plain is not None:
        body = plain.data
    found = prompt.read(headers.get(":path", ""), body, settings, whole=ended)
    if isinstance(found, prompt.Prompt):
        return Reading(found if whole else _with_the_rest(found, headers, came, settings), found.model)
    told = prompt.model_of(body, settings, whole=ended) if found in _MODEL_TOLD else None
    return Reading(found, told)


def _with_the_rest(
    found: prompt.Prompt, headers: Mapping[str, str], came: int, settings: prompt.Settings
) -> prompt.Prompt:
    """`found` with what is to come; bounded, as anybody may claim any length."""
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) < 16):
        return found
    more = min(int(length) - came, settings.bytes_max)
    return replace(found, unread_bytes=found.unread_bytes + more) if more > 0 else found
