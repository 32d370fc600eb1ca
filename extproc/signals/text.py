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
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Finder", "Name", "label", "labels", "parse"]

_BACK_BYTES = 2048  # how far before its last place a family is looked for
_LOOK_AGAIN = 16
_SAMPLES_MAX = 4096  # of one family
_AFTER_NAME = (b"{", b" ", b"\t")
_PAIR = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\\n]|\\.)*)"')


class Name:
    """A metric's name, of which only the samples count that have one of the given values in each given label.

    A quote inside a label's value is escaped, so the text of such a pair can't be part of a value.
    """

    __slots__ = ("name", "needle", "pattern", "size", "where")

    def __init__(self, name: str, where: Mapping[str, Sequence[str]] | None = None) -> None:
        """Args: where: label -> values."""
        self.name = name.encode()
        self.where = dict(where or {})
        self.needle = b"\n" + self.name
        self.size = len(self.name)
        labels = "".join(
            rf'(?=[^\n]*[{{,]{re.escape(key)}="(?:{"|".join(map(re.escape, values))})")'
            for key, values in self.where.items()
        )
        # Greedy up to the last brace: a brace may stand in a label's value, none in a number.
        self.pattern = re.compile(
            rf"^{re.escape(name)}{labels}(?:\{{[^\n]*\}})?[ \t]+([^\s#]+)".encode(), re.MULTILINE
        )


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

    def total(self, text: bytes, wanted: Name, both: Callable[[float, float], float]) -> float | None:
        """The values of the samples of `wanted` in `text` put together by `both`; None without any.

        Of tensor-parallel ranks, which all tell the same, only the first counts.
        """
        at = self._find(text, wanted)
        if at < 0:
            return None
        end = text.find(b"\n#", at)  # the next family's HELP or TYPE
        end = end if end >= 0 else len(text)
        if text.find(b" # ", at, end) >= 0 or text.find(b'tp_rank="', at, end) >= 0:
            values = wanted.pattern.findall(_plainer(text[at:end]))
        else:
            values = wanted.pattern.findall(text, at, end)
        total: float | None = None
        for told in values[:_SAMPLES_MAX]:
            try:
                value = float(told)
            except ValueError:
                continue
            if 0.0 <= value < math.inf:
                total = value if total is None else both(total, value)
        return total

    def lines(self, text: bytes, wanted: Name) -> bytes:
        """The lines from the first sample of `wanted` up to the next family's; b"" if there are none."""
        at = self._find(text, wanted)
        if at < 0:
            return b""
        end = text.find(b"\n#", at)
        return text[at:end] if end >= 0 else text[at:]

    def _find(self, text: bytes, wanted: Name) -> int:
        """Where the first line begins that is a sample of `wanted`; -1 if there is none."""
        last = self._places.get(wanted.name, 0)
        if last < 0 and self._turn % _LOOK_AGAIN:
            return -1
        at = -1
        if last > _BACK_BYTES:
            at = _line(text, wanted, last - _BACK_BYTES)
        if at < 0:
            at = _line(text, wanted, 0)
        self._places[wanted.name] = at
        return at


def parse(lines: bytes, name: bytes) -> list[tuple[bytes, float]]:
    """The samples called `name` among `lines`: labels as they stand between the braces, and value."""
    found = []
    for line in lines.split(b"\n", _SAMPLES_MAX)[:_SAMPLES_MAX] if lines else ():
        value = _value(line, name)
        if value is not None:
            found.append((line[len(name) + 1 : max(line.rfind(b"}"), 0)], value))
    return found


def label(pairs: bytes, name: bytes) -> bytes | None:
    """The raw value of one label; None if it is not there."""
    for key, value in _PAIR.findall(pairs):
        if key == name:
            return bytes(value)
    return None


def labels(pairs: bytes) -> dict[str, str]:
    """All labels, decoded."""
    return {key.decode(): _plain(value) for key, value in _PAIR.findall(pairs)}


def _line(text: bytes, wanted: Name, start: int) -> int:
    if not start and text.startswith(wanted.name) and text[wanted.size : wanted.size + 1] in _AFTER_NAME:
        return 0
    at = text.find(wanted.needle, start)
    while at >= 0:
        after = at + 1 + wanted.size
        if text[after : after + 1] in _AFTER_NAME:
            return at + 1
        at = text.find(wanted.needle, after)
    return -1


def _plainer(lines: bytes) -> bytes:
    """Without exemplars, and without tensor-parallel ranks but the first."""
    return b"\n".join(
        line.partition(b" # ")[0]
        for line in lines.split(b"\n", _SAMPLES_MAX)[:_SAMPLES_MAX]
        if b'tp_rank="' not in line or b'tp_rank="0"' in line
    )


def _value(line: bytes, name: bytes) -> float | None:
    size = len(name)
    if not line.startswith(name) or line[size : size + 1] not in _AFTER_NAME:
        return None
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
