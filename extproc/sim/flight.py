"""Flight: one request from its placing to its end, and the record that stays of it.

Invariant: a record is complete when the run ends; a failed request has one too.
Called by: simulation (makes), figures (reads).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from extproc import ledger
from extproc.sim import client

__all__ = ["Flight", "Record", "Thread"]


@dataclass(slots=True)
class Record:
    """What is known of one request. Times in seconds since the run began, lengths in tokens.

    `first_s`, `shown_s`, `finished_s`: its first token, the one a buffering client waits for, its last; None
    until then. `overflow`: chosen since another was over the bound. `fullness`: work of the chosen endpoint
    over the bound, before this request, both by the simulator's own count.
    """

    group: str
    started_s: float
    prompt_tokens: int
    output_tokens: int
    endpoint: str = ""
    first_s: float | None = None
    shown_s: float | None = None
    finished_s: float | None = None
    device_tokens: int = 0
    host_tokens: int = 0
    external_tokens: int = 0
    overflow: bool = False
    fullness: float = 0.0
    error: str | None = None


@dataclass(slots=True, eq=False)
class Thread:
    """A running script. `parent` goes on when none of its `children` is left."""

    script: client.Script
    parent: Thread | None = None
    children: int = 0


@dataclass(slots=True, eq=False)
class Flight:
    """A request in flight: its record, who waits for it, the routers' leases and the simulator's own."""

    request_id: str
    record: Record
    thread: Thread
    leases: list[ledger.Lease] = field(default_factory=list)
    truth: ledger.Lease | None = None

    def prefilled(self, *, seen: bool) -> None:
        """Its first token came; `seen`: by the routers too."""
        if self.truth is not None:
            self.truth.prefilled()
        if seen:
            for lease in self.leases:
                lease.prefilled()

    def release(self) -> None:
        """It is over."""
        if self.truth is not None:
            self.truth.release()
        for lease in self.leases:
            lease.release()
