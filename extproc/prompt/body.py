"""Body: a parsed request body, the prompt made from it, and the pieces all APIs share.

Text of different origin is kept apart by marks, bytes that never occur in UTF-8, so that no content can
imitate structure. Marks only begin things: what ends a piece is the next one's mark, and a text cut off
anywhere is therefore a start of the whole.
Called by: prompt and its API modules.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import jiter
import msgspec

__all__ = ["MARK_MESSAGE", "MARK_PART", "MARK_TOOL", "Body", "Prompt", "Unkeyed", "canonical", "parse"]

MARK_MESSAGE = b"\xff"
MARK_PART = b"\xfe"
MARK_TOOL = b"\xfd"

_CUT_JSON_ENDS = b'"]}0123456789.eE+-'


class Unkeyed(enum.StrEnum):
    """Why a request has no chain. A closed set: it labels metrics."""

    BODY = "no_body"
    PATH = "unknown_path"
    JSON = "bad_json"
    MODEL = "no_model"
    CUT = "cut_before_model"
    SHAPE = "unknown_shape"
    ENCODING = "content_encoding"
    MODE = "body_not_seen"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine will prefill, as far as it arrived.

    `seeds`: prompts share cache only if these are equal. `text`: the rendered prompt, marks included.
    `cut`: more was to come.
    """

    api: str
    model: str
    seeds: tuple[bytes, ...]
    text: bytes
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object with a model. If `cut`, the value of the last key may be incomplete."""

    fields: dict[str, Any]
    model: str
    cut: bool

    def is_cut(self, key: str) -> bool:
        """Whether the value of `key` may be incomplete."""
        return self.cut and next(reversed(self.fields)) == key

    def prompt(self, api: str, pieces: list[bytes]) -> Prompt:
        """The prompt that `pieces` make up, seeded by all that divides the engine's cache."""
        salt = self.fields.get("cache_salt")
        seeds = (api.encode(), encode(self.model), encode(salt) if isinstance(salt, str) else b"")
        return Prompt(api, self.model, seeds, b"".join(pieces), self.cut)


def parse(body: bytes, *, whole: bool) -> Body | Unkeyed:
    """The JSON object in `body`, or why it can't be used.

    Of a body that is not whole, what can be told from its start. Nesting is bounded by the parser (200).
    """
    if not body:
        return Unkeyed.BODY
    try:
        # In partial mode only what is missing at the end is forgiven; whole bodies are checked strictly.
        fields = jiter.from_json(body, partial_mode=False if whole else "trailing-strings")
    except ValueError:
        return Unkeyed.JSON
    if not isinstance(fields, dict):
        return Unkeyed.SHAPE
    cut = not whole
    model = fields.get("model")
    if cut and (model is None or next(reversed(fields)) == "model"):
        return Unkeyed.CUT  # a seed is missing: any chain would be another prompt's
    if not isinstance(model, str) or not model:
        return Unkeyed.MODEL
    return Body(fields, model, cut)


def canonical(value: Any, *, cut: bool) -> bytes:
    """JSON of `value` without white space, in the order it came; of a cut value a start of the whole."""
    encoded = msgspec.json.encode(value)
    return encoded.rstrip(_CUT_JSON_ENDS) if cut else encoded


def encode(text: str) -> bytes:
    """UTF-8 of `text`; a lone surrogate is encoded as itself."""
    return text.encode("utf-8", "surrogatepass")
