"""Body: a parsed request body, whole or cut off, and the prompt made from it.

A body is read up to `bytes_max`, or to its end if that is not much farther (`whole_bytes_max`). Clients write
what is rendered first behind the long messages: OpenAI's Python SDK 1.x sends messages, model, tools; 3.x
model, messages, tools; Anthropic's messages, model, system, tools (tests/data/sdk_bodies). So of a longer
body the end is searched too, for keys that come behind the cut: the suffix that begins with such a key and,
with a brace before it, is a JSON object, can only be the top level's rest. A field of more than
`TAIL_BYTES_MAX` behind the cut stays unseen.

Never: an exception; more than `bytes_max + TAIL_BYTES_MAX` bytes parsed. Called by: prompt, API modules.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jiter

from extproc.prompt import text as _text
from extproc.prompt import volatile

__all__ = ["TAIL_BYTES_MAX", "Body", "Prompt", "Settings", "Unkeyed", "parse"]

TAIL_BYTES_MAX = 128 * 1024
"""Bytes at the end of a long body that are searched for keys."""

# Keys that clients send behind the messages. One that is not its object's first has a comma before it.
_LATE_KEY = re.compile(
    rb',\s*("(?:model|tools|tool_choice|system|instructions|query|cache_salt|prompt_cache_key|documents'
    rb'|chat_template|chat_template_kwargs|output_config|previous_response_id|reasoning|reasoning_effort)"\s*:)'
)
_TRIES_MAX = 32  # from the first and from the last of them
_ERROR_AT = re.compile(r"at line (\d+) column (\d+)$")
_LONG = {"messages", "input", "prompt", "token_ids", "tokens"}  # read up to the budget, no further
_RENDERED_FIRST = {"tools", "system", "instructions"}


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

    @property
    def whole_bytes_max(self) -> int:
        """A body that has come whole and has no more bytes than this is read to its end."""
        return self.bytes_max + min(self.bytes_max // 4, TAIL_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine will prefill, as far as it was read.

    `seeds`: prompts share cache only if these are equal. `text`: the rendered prompt, marks included;
    `kinds`, `sizes`: what it is made of, length [bytes]. `cut`: more was to come, of which
    `unread_bytes` are known of. `prefills`: False if the engine only counts or renders it. `cache_key`: the
    client's own key. `previous_response`: the answer it continues; its `text` is then not the prompt's start
    and `unkeyed` says so.
    """

    api: str
    model: str
    seeds: tuple[bytes, ...]
    text: bytes
    kinds: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    cut: bool = False
    unread_bytes: int = 0
    prefills: bool = True
    cache_key: str | None = None
    previous_response: str | None = None
    unkeyed: Unkeyed | None = None

    @property
    def segments(self) -> tuple[tuple[str, int], ...]:
        """Kind and length [bytes] of each piece of the text, in order."""
        return tuple(zip(self.kinds, self.sizes, strict=True))


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object with a model.

    `cut_key`: the key whose value may be incomplete, if the body was cut; `end_seen`: whether the fields
    behind it are known all the same.
    """

    fields: dict[str, Any]
    model: str
    cut_key: str | None
    end_seen: bool
    unread_bytes: int
    settings: Settings

    def text(self) -> _text.Text:
        """An empty text."""
        return _text.Text(self.settings.spans)

    def is_cut(self, key: str) -> bool:
        """Whether the value of `key` may be incomplete."""
        return self.cut_key == key

    def is_cut_behind(self, key: str) -> bool:
        """Whether `key` came whole and the cut is behind it: what is rendered before it may still come."""
        return self.cut_key not in {None, key} and not self.end_seen and key in self.fields

    def listed(self, key: str) -> list[Any] | None:
        """The list at `key`; None if there is no list, or nothing in it.

        Empty if the budget ended in what is rendered before: that is then all there is of the prompt.
        """
        if key not in self.fields and self.unread_bytes and self.cut_key in _RENDERED_FIRST:
            return []
        value = self.fields.get(key)
        return value if isinstance(value, list) and value else None

    def prompt(self, api: str, rendered: _text.Text) -> Prompt:
        """The prompt of what was rendered, seeded by all that divides the engine's cache."""
        text = rendered.done()
        cut = self.cut_key is not None
        salt = self.fields.get("cache_salt")
        salted = _text.encode(salt) if isinstance(salt, str) else b""
        return Prompt(
            api=api,
            model=self.model,
            seeds=(api.encode(), _text.encode(self.model), salted),
            text=text,
            kinds=tuple(rendered.kinds),
            sizes=rendered.sizes(),
            cut=cut,
            unread_bytes=self.unread_bytes,
            cache_key=self._cache_key(),
            unkeyed=Unkeyed.CUT if cut and not text else None,
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
    bytes_max = settings.bytes_max
    if whole and len(body) <= settings.whole_bytes_max:
        bytes_max = len(body)
    unread = len(body) - bytes_max if len(body) > bytes_max else 0
    complete = whole and not unread
    try:
        # In partial mode only what is missing at the end is forgiven; whole bodies are checked strictly.
        fields = jiter.from_json(
            body[:bytes_max],
            partial_mode=False if complete else "trailing-strings",
            cache_mode="keys",
        )
    except ValueError:
        return Unkeyed.JSON
    if not isinstance(fields, dict):
        return Unkeyed.SHAPE
    cut_key = None if complete else next(reversed(fields), "")
    end: dict[str, Any] = {}
    if unread and whole:
        end = _tail(body[-TAIL_BYTES_MAX:])
        if cut_key in end and cut_key not in _LONG:  # the end holds all of it, and of what comes behind
            del fields[cut_key]
            cut_key, unread = None, 0
        fields = {**end, **fields}
    model = fields.get("model")
    if cut_key is not None and (model is None or cut_key == "model"):
        return Unkeyed.CUT  # a seed is missing: any chain would be another prompt's
    if not isinstance(model, str) or not model:
        return Unkeyed.MODEL
    return Body(fields, model, cut_key, bool(end), unread, settings)


def _tail(end: bytes) -> dict[str, Any]:
    """The top level's last keys, found in the end of a body; none if none can be told.

    Only the top level's keys have a rest that, behind a brace, is an object: a key that is nested leaves
    closing braces over, and a text cannot hold a quote that is not escaped.
    """
    keys = [match.start(1) for match in _LATE_KEY.finditer(end)]
    passed = 0
    for at in [*keys[:_TRIES_MAX], *keys[_TRIES_MAX:][-_TRIES_MAX:]]:
        if at < passed:
            continue
        try:
            fields = jiter.from_json(b"{" + end[at:], cache_mode="keys")
        except ValueError as error:
            passed = at + _position(error, end[at:])  # all keys up to there are in the same nested object
            continue
        if isinstance(fields, dict):
            return fields
    return {}


def _position(error: ValueError, text: bytes) -> int:
    """Where in `text`, to which a brace was put in front, the parser stopped; 0 if it does not say."""
    found = _ERROR_AT.search(str(error))
    if found is None:
        return 0
    before = int(found[1]) - 1
    return sum(len(line) + 1 for line in text.split(b"\n", before)[:before]) + int(found[2]) - 2
