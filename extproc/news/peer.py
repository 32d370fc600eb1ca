"""Peer: another replica of kvring as this one knows it: when it was heard, and its open leases.

Its leases stand in this replica's ledger beside the own ones, so that a bound holds over all replicas. They end
when the peer says so, when the peer's list of open leases lacks them, or when the peer has been silent too long.

Never: more leases than `LEASES_MAX`; a lease that outlives its peer. Called by: news.view.
"""

from __future__ import annotations

from collections.abc import Mapping

from extproc import ledger
from extproc.news import message

__all__ = ["Peer"]


class Peer:
    """`number`: of its last message; `heard_s`: when that came [s]; `asked_s`: when its leases were asked for."""

    __slots__ = ("_leases", "asked_s", "heard_s", "number")

    def __init__(self, number: int, now: float) -> None:
        """Heard for the first time at `now` [s, monotonic], with its message `number`."""
        self.number = number
        self.heard_s = now
        self.asked_s: float | None = None
        self._leases: dict[int, ledger.Lease | None] = {}

    def __len__(self) -> int:
        """Its open leases, as far as is known here."""
        return len(self._leases)

    def knows(self, number: int) -> bool:
        """Whether its lease `number` stands here."""
        return number in self._leases

    def began(self, number: int, lease: ledger.Lease | None) -> None:
        """It took a lease; None: of an endpoint that is none of ours."""
        if len(self._leases) < message.LEASES_MAX:
            self._leases[number] = lease
        elif lease is not None:
            lease.release()

    def prefilled(self, number: int) -> None:
        """A prompt of its is prefilled."""
        lease = self._leases.get(number)
        if lease is not None:
            lease.prefilled()

    def ended(self, number: int) -> None:
        """A request of its is over."""
        lease = self._leases.pop(number, None)
        if lease is not None:
            lease.release()

    def only(self, open_leases: Mapping[int, object]) -> None:
        """End those that are not among `open_leases`."""
        for number in self._leases.keys() - open_leases.keys():
            self.ended(number)

    def gone(self) -> None:
        """It is there no more: end all."""
        self.only({})
