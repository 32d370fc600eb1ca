"""Volatile: spans of text that change with every request though the prompt is the same; hashing skips them.

A span starts with one literal and ends with another, within a bounded length; so finding spans takes time
linear in the text, whatever is configured (regular expressions were rejected: backtracking). Only hashing
leaves them out. Bodies are never changed.

Known: Claude Code's billing header in its first system block, new for each request; vLLM drops it too
(vllm#36829), other engines do not (vllm-mlx#277).

Law: of a text cut off anywhere, what remains is a start of what remains of the whole.
Called by: prompt.text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["KNOWN", "Span", "without"]


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` to the next `end` (included), at most `chars_max` characters in between.

    `end` "" stands for the end of the text. A start without an end in reach is no span.
    """

    start: str
    end: str
    chars_max: int = 1024


KNOWN = (Span("x-anthropic-billing-header:", "\n"), Span("x-anthropic-billing-header:", ""))


def without(text: str, spans: Sequence[Span], *, cut: bool) -> str:
    """`text` without `spans`. If `cut`, more text was to come: what may yet become a span is left out too."""
    for span in spans:
        if cut or span.start in text:
            text = _without(text, span, cut=cut)
    return text


def _without(text: str, span: Span, *, cut: bool) -> str:
    kept: list[str] = []
    position = 0
    end = 0 if span.end else len(text)
    while True:
        start = text.find(span.start, position)
        if start < 0:
            rest = text[position:]
            kept.append(rest[: len(rest) - _begun(rest, span.start)] if cut else rest)
            return "".join(kept)
        inner = start + len(span.start)
        last = inner + span.chars_max
        if 0 <= end < inner:
            end = text.find(span.end, inner)  # no character is searched twice: many starts share one end
        if end < 0 and cut and last + len(span.end) > len(text):
            kept.append(text[position:start])  # its end may be still to come
            return "".join(kept)
        if end < 0 or end > last:
            kept.append(text[position:inner])
            position = inner
            continue
        kept.append(text[position:start])
        position = end + len(span.end)


def _begun(text: str, start: str) -> int:
    """How many characters at the end of `text` may be the beginning of `start`."""
    return next((n for n in range(min(len(start) - 1, len(text)), 0, -1) if text.endswith(start[:n])), 0)
