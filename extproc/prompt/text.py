"""Text: a prompt being rendered, piece by piece, in the order the engine's template would.

Pieces of different origin are kept apart by marks, bytes that never occur in UTF-8, so that no content can
imitate structure. Marks only begin things: what ends a piece is the next one's mark, and a text cut off
anywhere is therefore a start of the whole. Volatile spans (see `volatile`) are left out.
A piece that is cut is the last one: what comes behind it is not known to follow. So is the piece that makes
`PIECES_MAX`: every piece costs, however short, and a body of 512 KiB can hold 200,000.

Never: anything sorted; a piece changed for any other reason. Called by: the API modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from extproc.prompt import volatile

__all__ = ["JSON", "MESSAGE", "PART", "PIECES_MAX", "Text", "canonical", "encode"]

MESSAGE = b"\xff"
PART = b"\xfe"
JSON = b"\xfd"

PIECES_MAX = 16_384
"""Pieces of one text; a conversation of 5,000 messages has about 12,000."""

_CUT_JSON_ENDS = b'"]}0123456789.eE+-'


class Text:
    """Collects pieces; `done` gives the bytes, `kinds` and `sizes` what each piece was and how long."""

    __slots__ = ("_pieces", "_spans", "_starts", "ended", "kinds")

    def __init__(self, spans: Sequence[volatile.Span]) -> None:
        """`spans`: what to leave out of texts. `ended`: whether nothing more is taken."""
        self._spans = spans
        self._starts = tuple({span.start for span in spans})
        self.kinds: list[str] = []
        self._pieces: list[bytes] = []
        self.ended = False

    def name(self, kind: str, name: str) -> None:
        """Begin a message or field of that name. `kind` names the piece for people, from a closed set."""
        self._append(kind, MESSAGE + encode(name))

    def add(self, kind: str, mark: bytes, text: str, *, cut: bool = False) -> None:
        """Append `text` behind `mark`, without volatile spans. If `cut`, more of it was to come."""
        if self.ended:
            return
        if cut or self._has_start(text):
            text = volatile.without(text, self._spans, cut=cut)
        self._append(kind, mark + encode(text), cut=cut)

    def turn(self, kind: str, role: str, text: str) -> None:
        """As `name`, then `add` of one part: most messages of most prompts, hence in one call."""
        if self.ended or len(self._pieces) > PIECES_MAX - 2:
            self.ended = True
            return
        if self._has_start(text):
            text = volatile.without(text, self._spans, cut=False)
        self.kinds += ("role", kind)
        self._pieces += (MESSAGE + encode(role), PART + encode(text))

    def add_json(self, kind: str, value: Any, *, cut: bool = False) -> None:
        """Append a JSON value: no white space, keys in the order they came."""
        self._append(kind, JSON + canonical(value, cut=cut), cut=cut)

    def add_bytes(self, kind: str, piece: bytes) -> None:
        """Append bytes that are no text (packed token ids)."""
        self._append(kind, piece)

    def done(self) -> bytes:
        """All pieces in a row."""
        return b"".join(self._pieces)

    def sizes(self) -> tuple[int, ...]:
        """Lengths of the pieces, marks included [bytes]."""
        return tuple(map(len, self._pieces))

    def _has_start(self, text: str) -> bool:
        for start in self._starts:  # noqa: SIM110 - any() takes twice the time, and this is all the time
            if start in text:
                return True
        return False

    def _append(self, kind: str, piece: bytes, *, cut: bool = False) -> None:
        if not self.ended:
            self.kinds.append(kind)
            self._pieces.append(piece)
            self.ended = cut or len(self._pieces) >= PIECES_MAX


def canonical(value: Any, *, cut: bool) -> bytes:
    """JSON of `value` without white space, in the order it came; of a cut value a start of the whole."""
    encoded = msgspec.json.encode(value)
    return encoded.rstrip(_CUT_JSON_ENDS) if cut else encoded


def encode(text: str) -> bytes:
    """UTF-8 of `text`; a lone surrogate is encoded as itself."""
    return text.encode("utf-8", "surrogatepass")
