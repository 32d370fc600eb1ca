"""Passing: what is read of an answer's body while it passes: its first token, its id, its token counts.

Nothing is kept but the answer's start until its id has come, and a report of tokens that is cut off.
Never: more than `prompt.ANSWER_BYTES_MAX` bytes kept; a byte changed. Called by: exchange.
"""

from __future__ import annotations

from extproc import prompt, usage

__all__ = ["Passing"]

_ERROR_EVENTS = (b'data: {"error"', b"event: error")  # how a stream begins that the engine refuses


class Passing:
    """One answer's body.

    `begun`: its first byte has come. `refused`: it began with an error, though its status was good. `answer`:
    id of an answer that the engine stores, once it came; looked for only if `stored`.
    """

    __slots__ = ("_reader", "_start", "answer", "begun", "refused")

    def __init__(self, *, stored: bool) -> None:
        """Nothing has come yet."""
        self._reader = usage.Reader()
        self._start: bytes | None = b"" if stored else None
        self.begun = False
        self.refused = False
        self.answer: str | None = None

    @property
    def usage(self) -> usage.Usage | None:
        """Tokens as the engine counted them; None while it has told nothing."""
        return self._reader.usage

    def feed(self, data: bytes) -> None:
        """The next piece."""
        if data and not self.begun:
            self.begun = True
            self.refused = data.startswith(_ERROR_EVENTS)
        self._reader.feed(data)
        if self._start is not None:
            start = self._start + data[: prompt.ANSWER_BYTES_MAX]
            self.answer = prompt.answer_id(start)
            self._start = None if self.answer or len(start) >= prompt.ANSWER_BYTES_MAX else start
