"""Text: samples of named families in a Prometheus exposition, without reading the rest of it.

One scrape is 60 KB of which a router needs two percent. Parsing all of it takes 10 ms; here a family is
found by its name at a line's start, near where it was in the scrape before (expositions keep their order and
nearly their length), and only its own lines are read. Families that were not there are looked for again every
16th time, since each such look passes over the whole text.

Never: an exception, whatever the bytes are; a name that merely begins with the one asked for.
Called by: signals.reading. Source: Prometheus text format 0.0.4; OpenMetrics exemplars are cut off.
"""

from __future__ import annotations

import re

__all__ = ["Finder", "Sample", "label", "labels", "parse"]

Sample = tuple[bytes, float]
"""Label pairs as they stand between the braces, and the value; never NaN."""

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

    def samples(self, text: bytes, name: bytes) -> list[Sample]:
        """The samples called `name` in `text`, which begins with a new line; [] if there are none."""
        return parse(self.lines(text, name), name)

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
        return text[at + 1 : end] if end >= 0 else text[at + 1 :]


def parse(lines: bytes, name: bytes) -> list[Sample]:
    """The samples called `name` among `lines`."""
    found = []
    for line in lines.split(b"\n", _LINES_MAX)[:_LINES_MAX] if lines else ():
        sample = _sample(line, name)
        if sample is not None:
            found.append(sample)
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


def _find(text: bytes, name: bytes, start: int) -> int:
    needle = b"\n" + name
    at = text.find(needle, start)
    while at >= 0:
        after = at + len(needle)
        if text[after : after + 1] in _AFTER_NAME:
            return at
        at = text.find(needle, after)
    return -1


def _sample(line: bytes, name: bytes) -> Sample | None:
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
    if value != value:  # noqa: PLR0124  (NaN; math.isnan is slower)
        return None
    return (line[size + 1 : close] if close >= 0 else b""), value


def _plain(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    return text.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\") if "\\" in text else text
