"""Held: the chunks of a request body that wait for the choice (FULL_DUPLEX_STREAMED).

They are looked at when their bytes have doubled, so that all looks together cost about as much as the last.
Never: a chunk changed or joined when it is handed back. Called by: exchange.
"""

from __future__ import annotations

from extproc.protocol import RequestBody

__all__ = ["Held"]

_FIRST_LOOK_BYTES = 16 * 1024  # shorter ones come whole, or the deadline is soon enough


class Held:
    """The chunks, in order, and their length `size` [bytes]."""

    __slots__ = ("_chunks", "_look_at", "size")

    def __init__(self) -> None:
        """Nothing is held."""
        self._chunks: list[RequestBody] = []
        self._look_at = _FIRST_LOOK_BYTES
        self.size = 0

    def add(self, chunk: RequestBody) -> None:
        """Hold one more."""
        self._chunks.append(chunk)
        self.size += len(chunk.data)

    def drop_last(self, chunk: RequestBody) -> bool:
        """Give up `chunk` if it is the last one held; whether it was."""
        if not self._chunks or self._chunks[-1] is not chunk:
            return False
        self._chunks.pop()
        self.size -= len(chunk.data)
        return True

    def body(self) -> bytes:
        """All bytes."""
        return b"".join(chunk.data for chunk in self._chunks)

    def take(self) -> list[RequestBody]:
        """The chunks; nothing is held then."""
        chunks, self._chunks, self.size = self._chunks, [], 0
        return chunks

    def is_worth_a_look(self) -> bool:
        """Whether the bytes have doubled since this was last so."""
        if self.size < self._look_at:
            return False
        self._look_at = 2 * self.size
        return True
