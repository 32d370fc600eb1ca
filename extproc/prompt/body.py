"""Body: a parsed request body, whole or cut off, and the prompt made from it.

A body is read up to `bytes_max`. Clients write long values first (the OpenAI SDK: messages, then model and
tools), so of a longer body the end is searched too, for keys that come behind the cut: the suffix that
begins with such a key and, with a brace before it, is a JSON object, can only be the top level's rest.

Never: an exception; more than `bytes_max + TAIL_BYTES_MAX` bytes parsed. Called by: prompt, API modules.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jiter

from extproc.prompt import text as _text
from extproc.prompt import volatile

__all__ = ["TAIL_BYTES_MAX", "Body", "Prompt", "Settings", "Unkeyed", "parse"]

TAIL_BYTES_MAX = 128 * 1024
"""Bytes at the end of a long body that are searched for keys."""

# Looked for in all of the end, since a large value may stand behind them ...
_TAIL_KEYS = (b'"model"', b'"tools"', b'"system"', b'"instructions"')
# ... and in its last bytes, where small fields stand.
_LAST_BYTES = 4096
_LAST_KEYS = (
    b'"cache_salt"', b'"chat_template"', b'"chat_template_kwargs"', b'"documents"', b'"previous_response_id"',
    b'"prompt_cache_key"', b'"reasoning"', b'"reasoning_effort"', b'"tool_choice"',
)  # fmt: skip
_TAIL_TRIES_MAX = 16


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
    PREVIOUS = "previous_response"


@dataclass(frozen=True, slots=True)
class Settings:
    """How bodies are read.

    `bytes_max`: of a body, no more than this is read from its start [bytes]. `spans`: what hashing leaves
    out. `cache_keys`: whether `prompt_cache_key` is obeyed.
    """

    bytes_max: int = 512 * 1024
    spans: Sequence[volatile.Span] = volatile.KNOWN
    cache_keys: bool = True


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine will prefill, as far as it was read.

    `seeds`: prompts share cache only if these are equal. `text`: the rendered prompt, marks included;
    `segments`: what it is made of, kind and length [bytes]. `cut`: more was to come, of which
    `unread_bytes` are known of. `prefills`: False if the engine only counts or renders it. `cache_key`: the
    client's own key. `previous_response`: the answer it continues; its `text` is then not the prompt's start
    and `unkeyed` says so.
    """

    api: str
    model: str
    seeds: tuple[bytes, ...]
    text: bytes
    segments: tuple[tuple[str, int], ...] = ()
    cut: bool = False
    unread_bytes: int = 0
    prefills: bool = True
    cache_key: str | None = None
    previous_response: str | None = None
    unkeyed: Unkeyed | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object with a model. `cut_key`: the key whose value may be incomplete, if the body was cut."""

    fields: dict[str, Any]
    model: str
    cut_key: str | None
    unread_bytes: int
    settings: Settings

    def text(self) -> _text.Text:
        """An empty text."""
        return _text.Text(self.settings.spans)

    def is_cut(self, key: str) -> bool:
        """Whether the value of `key` may be incomplete."""
        return self.cut_key == key

    def prompt(self, api: str, rendered: _text.Text) -> Prompt:
        """The prompt of what was rendered, seeded by all that divides the engine's cache."""
        salt = self.fields.get("cache_salt")
        salted = _text.encode(salt) if isinstance(salt, str) else b""
        return Prompt(
            api=api,
            model=self.model,
            seeds=(api.encode(), _text.encode(self.model), salted),
            text=rendered.done(),
            segments=rendered.segments(),
            cut=self.cut_key is not None,
            unread_bytes=self.unread_bytes,
            cache_key=self._cache_key(),
        )

    def _cache_key(self) -> str | None:
        key = self.fields.get("prompt_cache_key")
        return key if self.settings.cache_keys and isinstance(key, str) and key else None


def parse(body: bytes, settings: Settings, *, whole: bool) -> Body | Unkeyed:
    """The JSON object in `body`, or why it can't be used.

    Of a body that is not whole, or too long, what can be told from its start and end. Nesting is bounded by
    the parser (200 levels).
    """
    if not body:
        return Unkeyed.BODY
    unread = max(len(body) - settings.bytes_max, 0)
    complete = whole and not unread
    try:
        # In partial mode only what is missing at the end is forgiven; whole bodies are checked strictly.
        fields = jiter.from_json(
            body[: settings.bytes_max],
            partial_mode=False if complete else "trailing-strings",
            cache_mode="keys",
        )
    except ValueError:
        return Unkeyed.JSON
    if not isinstance(fields, dict):
        return Unkeyed.SHAPE
    cut_key = None if complete else next(reversed(fields), "")
    if unread and whole:
        fields = {**_tail(body[max(len(body) - TAIL_BYTES_MAX, settings.bytes_max) :]), **fields}
    model = fields.get("model")
    if cut_key is not None and (model is None or cut_key == "model"):
        return Unkeyed.CUT  # a seed is missing: any chain would be another prompt's
    if not isinstance(model, str) or not model:
        return Unkeyed.MODEL
    return Body(fields, model, cut_key, unread, settings)


def _tail(end: bytes) -> dict[str, Any]:
    """The top level's last keys, found in the end of a body; none if none can be told.

    Only the top level's keys have a rest that, behind a brace, is an object: a key that is nested leaves
    closing braces over, and a text cannot hold a quote that is not escaped.
    """
    found = {end.find(key) for key in _TAIL_KEYS}
    found |= {end.find(key, max(len(end) - _LAST_BYTES, 0)) for key in (*_TAIL_KEYS, *_LAST_KEYS)}
    for at in sorted(found - {-1})[:_TAIL_TRIES_MAX]:
        try:
            fields = jiter.from_json(b"{" + end[at:], cache_mode="keys")
        except ValueError:
            continue
        if isinstance(fields, dict):
            return fields
    return {}
