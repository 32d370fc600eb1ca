"""Usage: the token counts that an engine reports in its answer, read while the answer passes.

    JSON     {"id": ..., "choices": [...], "usage": {"prompt_tokens": 9, ...}}
    SSE      data: {..., "usage": {...}}           the last event, or every one (counts so far)
    SSE      message_start with input_tokens, message_delta with output_tokens (Anthropic)

The key is looked for in the bytes, so it does not matter how the answer is cut: the bytes `"usage"` can't
stand within a JSON string, whose quotes are escaped. What follows is gathered up to `_BYTES_MAX` and parsed
once its end has come; each byte is looked at once on the way there, however small the pieces are. A later
count replaces an earlier one of its kind; null, text, numbers and unknown shapes count nothing.

Never: an exception, or more than `_BYTES_MAX` bytes kept. Called by: exchange (by way of `passing`).
Source: API references of OpenAI and Anthropic; vLLM and SGLang answer in these forms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import msgspec

__all__ = ["Reader", "Usage"]

_KEY = b'"usage"'
_BYTES_MAX = 4096  # of one report; those known have less than 600
_TOKENS_MAX = 1 << 40
_SOLID = re.compile(rb"[^:\s]")  # of what follows the key, the first byte of the value
_ESCAPE = ord("\\")
_MARK = re.compile(rb'\\.|["{}]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens [>= 0], None where not told: of the prompt, those of it that were cached, of the answer."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class Reader:
    """Reads one answer. `usage`: what was told so far; None while nothing was."""

    __slots__ = ("_end", "_kept", "usage")

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._kept = b""  # the end of what came: perhaps the key's start, or a report's
        self._end: _End | None = None  # of a report, whose key stood before what is kept
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> None:
        """The next bytes of the answer, cut anywhere."""
        text, at = self._kept + data, 0
        while True:
            if self._end is None:
                found = text.find(_KEY, at)
                if found < 0:
                    self._kept = text[max(at, len(text) - len(_KEY) + 1) :]
                    return
                self._end, at = _End(), found + len(_KEY)
            length = self._end.find(text, at)
            if length is None and len(text) - at < _BYTES_MAX:
                self._kept = text[at:]
                return
            self._end = None
            if length is None:
                at += _BYTES_MAX  # all of it: keys within would each be followed as far again
            elif length:
                self._take(text[at : at + length])
                at += length

    def _take(self, text: bytes) -> None:
        lines = text.partition(b":")[2].replace(b"\r", b"\n").split(b"\n")
        joined = b"".join(line.removeprefix(b"data:") for line in lines)  # an event of several lines
        try:
            told = msgspec.json.decode(joined)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if isinstance(told, dict):
            self._merge(told)

    def _merge(self, told: dict[str, Any]) -> None:
        before = self.usage or Usage()
        created = _count(told, "cache_creation_input_tokens")
        read = _count(told, "cache_read_input_tokens")
        prompt = _count(told, "prompt_tokens")
        cached = _detail(told, "prompt_tokens_details", "input_tokens_details")
        if prompt is None:
            prompt = _count(told, "input_tokens")
            if prompt is not None and (read is not None or created is not None):
                prompt += (read or 0) + (created or 0)  # Anthropic counts them apart
        output = _count(told, "completion_tokens")
        found = {
            "prompt_tokens": prompt,
            "cached_tokens": cached if cached is not None else read,
            "output_tokens": _count(told, "output_tokens") if output is None else output,
        }
        known = {name: count for name, count in found.items() if count is not None}
        if known:
            self.usage = replace(before, **known)


class _End:
    """Looks for the end of `: {...}` in text that grows, from where it last stopped."""

    __slots__ = ("_depth", "_looked", "_quoted")

    def __init__(self) -> None:
        self._looked = 0  # bytes of it
        self._depth = 0  # of braces; 0: the first has not come
        self._quoted = False

    def find(self, text: bytes, at: int) -> int | None:
        """Its length, from `at` on; 0 if that is no object; None while it has no end within `_BYTES_MAX`."""
        start, end = at + self._looked, min(len(text), at + _BYTES_MAX)
        if not self._depth:
            first = _SOLID.search(text, start, end)
            if first is not None and first[0] != b"{":
                return 0
            start = end if first is None else first.start()
        done = start
        for mark in _MARK.finditer(text, start, end):
            done = mark.end()
            match mark[0]:
                case b'"':
                    self._quoted = not self._quoted
                case b"{" if not self._quoted:
                    self._depth += 1
                case b"}" if not self._quoted:
                    self._depth -= 1
                    if not self._depth:
                        return done - at
                case _:
                    pass
        is_cut = done < end and text[end - 1] == _ESCAPE  # what it escapes has not come
        self._looked = end - is_cut - at
        return None


def _count(told: dict[str, Any], name: str) -> int | None:
    value = told.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _TOKENS_MAX:
        return None
    return value


def _detail(told: dict[str, Any], *names: str) -> int | None:
    for name in names:
        details = told.get(name)
        if isinstance(details, dict):
            return _count(details, "cached_tokens")
    return None
