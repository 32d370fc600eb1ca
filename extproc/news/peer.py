"""Peer: another replica of kvring as this one knows it: when it was heard, and its open leases.

Its leases stand in this replica's ledger beside the own ones, so that a bound holds over all replicas.
They end when the peer says so, when the peer's list of open leases lacks them, or when the peer has been
silent too long.

Never: more leases of all peers than their `Room`; a lease that outlives its peer. Called by: news.view.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from extproc import ledger

__all__ = ["ALL_S", "OVERLAP_S", "Missing", "Peer", "Room"]

ALL_S = 1e9
"""Longer than anything has been known."""

OVERLAP_S = 1.0
"""More than a message takes: asked for beyond the time that was missed."""


class Missing:
    """From when on something may have been missed, and whether it was asked for.

    noticed: there is something  ->  asked  ->  answered: nothing, unless more was noticed after the question
    """

    __slots__ = ("_asked_s", "_from_s", "_noticed_s")

    def __init__(self) -> None:
        """Nothing is missing."""
        self._from_s = math.inf
        self._noticed_s = -math.inf
        self._asked_s: float | None = None

    def notice(self, from_s: float, now: float) -> None:
        """What happened since `from_s` may be unknown here, so it seems at `now` [s, monotonic]."""
        self._from_s = min(self._from_s, from_s)
        self._noticed_s = now

    def question(self, now: float, patience_s: float) -> float | None:
        """How far back to ask, now [s]; None if nothing is missing, or an answer may be on its way."""
        if self._from_s == math.inf or (self._asked_s is not None and now - self._asked_s < patience_s):
            return None
        self._asked_s = now
        return min(now - self._from_s, ALL_S)

    def answered(self) -> None:
        """All that was asked for has come."""
        asked_s, self._asked_s = self._asked_s, None
        if asked_s is not None:
            self._from_s = math.inf if self._noticed_s <= asked_s else asked_s - OVERLAP_S


class Room:
    """`left`: leases that may still be kept, of all peers together [>= 0]."""

    __slots__ = ("left",)

    def __init__(self, leases_max: int) -> None:
        """Nothing is kept yet."""
        self.left = leases_max


class Peer:
    """`number`: of its last message; `heard_s`: when that came [s]; `listed_s`: when its open leases were
    asked for; `missing`: what endpoints were sent that may be unknown here; `noted`: when residency was told
    of the prompt of which open lease [s], so that it can be taken back.
    """

    __slots__ = ("_leases", "_room", "heard_s", "listed_s", "missing", "noted", "number")

    def __init__(self, number: int, now: float, room: Room) -> None:
        """Heard for the first time at `now` [s, monotonic], with its message `number`."""
        self._room = room
        self.number = number
        self.heard_s = now
        self.listed_s: float | None = None
        self.missing = Missing()
        self._leases: dict[int, ledger.Lease | None] = {}
        self.noted: dict[int, float] = {}

    def __len__(self) -> int:
        """Its open leases, as far as is known here."""
        return len(self._leases)

    def knows(self, number: int) -> bool:
        """Whether its lease `number` stands here."""
        return number in self._leases

    def began(self, number: int, lease: ledger.Lease | None, noted_s: float | None = None) -> None:
        """It took a lease; None: of an endpoint that is none of ours. One of the same number ends before.

        `noted_s`: when residency was told of its prompt [s], None if it was not.
        """
        self.ended(number)
        if self._room.left:
            self._room.left -= 1
            self._leases[number] = lease
            if noted_s is not None:
                self.noted[number] = noted_s
        elif lease is not None:
            lease.release()

    def prefilled(self, number: int) -> None:
        """A prompt of its is prefilled."""
        lease = self._leases.get(number)
        if lease is not None:
            lease.prefilled()

    def ended(self, number: int) -> None:
        """A request of its is over."""
        if number not in self._leases:
            return
        self.noted.pop(number, None)
        self._room.left += 1
        lease = self._leases.pop(number)
        if lease is not None:
            lease.release()

    def only(self, open_leases: Mapping[int, object]) -> None:
        """End those that are not among `open_leases`."""
        for number in self.noted.keys() - open_leases.keys():
            del self.noted[number]
        for number in self._leases.keys() - open_leases.keys():
            self.ended(number)

    def gone(self) -> None:
        """It is there no more: end all."""
        self.only({})
