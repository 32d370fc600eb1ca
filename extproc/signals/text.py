"""Text: samples of named families in a Prometheus exposition, without reading the rest of it.

One scrape is 60 KB of which a router needs two percent. Parsing all of it takes 10 ms; here a family is
found by its name at a line's start, near where it was in the scrape before (expositions keep their order and
nearly their length), and only its own lines are read. Families that were not there are looked for again every
16th time, since each such look passes over the whole text.

Never: an exception, whatever the bytes are; a name that merely begins with the one asked for; a value that is
negative, infinite or no number.
Called by: signals.reading. Source: Prometheus text format 0.0.4; OpenMetrics exemplars are cut off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

__all__ = ["Finder", "Where", "fold", "label", "labels", "parse"]

Where = tuple[tuple[bytes, ...], ...]
"""What a sample's line must hold: of each group one, written `{name="value"` or `,name="value"`."""

_BACK_BYTES = 2048  # how far before its last place a family is looked for
_LOOK_AGAIN = 16
_LINES_MAX = 4096  # of one family
_AFTER_NAME = (b"{", b" ", b"\t")
_PAIR = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\\n]|\\.)*)"')


class Finder:
    """Finds families in one endpoint's expositions; remembers where they were."""

    __slots__ = ("_places", "_turn")

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._places: dict[bytes, int] = {}  # -1: was not there
        self._turn = 0

    def next(self) -> None:
        """A new exposition follows."""
        self._turn += 1

    def lines(self, text: bytes, name: bytes) -> bytes:
        """The lines from the first sample called `name` up to the next family's; b"" if there are none."""
        last = self._places.get(name, 0)
        if last < 0 and self._turn % _LOOK_AGAIN:
            return b""
        start = last - _BACK_BYTES if last > _BACK_BYTES else 0
        at = _find(text, name, start)
        if at < 0 and start:
            at = _find(text, name, 0)
        self._places[name] = at
        if at < 0:
            return b""
        end = text.find(b"\n#", at)  # the next family's HELP or TYPE
        return text[at:end] if end >= 0 else text[at:]


def parse(lines: bytes, name: bytes) -> list[tuple[bytes, float]]:
    """The samples called `name` among `lines`: labels as they stand between the braces, and value."""
    found = []
    for line in _each(lines):
        value = _value(line, name)
        if value is not None:
            found.append((line[len(name) + 1 : max(line.rfind(b"}"), 0)], value))
    return found


def fold(lines: bytes, name: bytes, where: Where, both: Callable[[float, float], float]) -> float | None:
    """The values of the samples called `name` among `lines` put together by `both`; None without any.

    Of tensor-parallel ranks, which all tell the same, only the first counts.
    """
    if not lines:
        return None
    if not where and lines.find(b"\n", 0, len(lines) - 1) < 0:  # one line, as usual
        return _value(lines, name)
    folded: float | None = None
    for line in _each(lines):
        # A quote inside a label's value is escaped, so no value can hold such a pair.
        if where and not all(any(pair in line for pair in pairs) for pairs in where):
            continue
        if b'tp_rank="' in line and b'tp_rank="0"' not in line:
            continue
        value = _value(line, name)
        if value is not None:
            folded = value if folded is None else both(folded, value)
    return folded


def label(pairs: bytes, name: bytes) -> bytes | None:
    """The raw value of one label; None if it is not there."""
    for key, value in _PAIR.findall(pairs):
        if key == name:
            return bytes(value)
    return None


def labels(pairs: bytes) -> dict[str, str]:
    """All labels, decoded."""
    return {key.decode(): _plain(value) for key, value in _PAIR.findall(pairs)}


def _each(lines: bytes) -> list[bytes]:
    return lines.split(b"\n", _LINES_MAX)[:_LINES_MAX] if lines else []


def _find(text: bytes, name: bytes, start: int) -> int:
    """Where the first line from `start` on begins that is a sample called `name`; -1 if there is none."""
    size = len(name)
    if not start and text.startswith(name) and text[size : size + 1] in _AFTER_NAME:
        return 0
    needle = b"\n" + name
    at = text.find(needle, start)
    while at >= 0:
        after = at + 1 + size
        if text[after : after + 1] in _AFTER_NAME:
            return at + 1
        at = text.find(needle, after)
    return -1


def _value(line: bytes, name: bytes) -> float | None:
    size = len(name)
    if not line.startswith(name) or line[size : size + 1] not in _AFTER_NAME:
        return None
    if b" # " in line:
        line = line.partition(b" # ")[0]  # an exemplar
    close = line.rfind(b"}")
    words = line[close + 1 if close >= 0 else size :].split(None, 1)
    try:
        value = float(words[0])
    except (ValueError, IndexError):
        return None
    return value if 0 <= value < math.inf else None


def _plain(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    return text.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\") if "\\" in text else text
