"""Outbox: what happened to this process's own leases and endpoints, until other replicas of kvring are told.

    began -> prefilled -> ended          of each own lease, in this order
    restarted                            an endpoint's process is a new one

The ledger and the router write, the shared view reads (`news.view`). Nobody waits for it: where the reader is
slow, the oldest entries leave, counted, and what they would have told is told again by the list of open
leases.

Never: prompt text; more than `entries_max` entries; a lease that stays `open` after its end.
Called by: router, ledger (write), news.view (reads).
"""

from __future__ import annotations

from collections import deque

import msgspec

from extproc import chain
from extproc import pool as _pool

__all__ = ["ENTRIES_MAX", "Began", "Ended", "Entry", "Open", "Outbox", "Prefilled", "Restarted"]

ENTRIES_MAX = 8192


class Began(msgspec.Struct, frozen=True, gc=False):
    """A dispatch: which endpoint of which pool, and what was sent there.

    `number`: of the lease [>= 1]. `hashes`: the chain, () if there is none; `known_blocks`: how many leading
    ones some endpoint held already, so that other replicas know them. `prompt_tokens`, `uncached_tokens`,
    `gpu_tokens`, `cached_tokens`: as estimated [>= 0]. `prefills`: whether the engine computes the prompt.
    """

    number: int
    pool: str
    endpoint: _pool.EndpointId
    hashes: tuple[chain.BlockHash, ...] = ()
    known_blocks: int = 0
    prompt_tokens: float = 0.0
    uncached_tokens: int = 0
    gpu_tokens: float = 0.0
    cached_tokens: float = 0.0
    prefills: bool = True


class Open(msgspec.Struct, gc=False):
    """An own lease that has not ended. `uncached_tokens`: 0 once its prompt is seen to be prefilled.

    `end`: the last hash of its chain, 0 if it has none: nothing here is as long as a prompt.
    """

    pool: str
    endpoint: _pool.EndpointId
    prompt_tokens: float
    uncached_tokens: int
    end: chain.BlockHash
    prefills: bool


class Prefilled(msgspec.Struct, frozen=True, gc=False):
    """The prompt of lease `number` is seen to be prefilled."""

    number: int


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The request of lease `number` is over."""

    number: int


class Restarted(msgspec.Struct, frozen=True, gc=False):
    """The process behind `endpoint` is a new one."""

    pool: str
    endpoint: _pool.EndpointId


Entry = Began | Prefilled | Ended | Restarted


class Outbox:
    """One process's entries. `open`: own leases that have not ended; `dropped`: entries nobody read in
    time.
    """

    __slots__ = ("_entries", "_numbers", "dropped", "open")

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        """`entries_max`: kept until they are taken [>= 1]."""
        self._entries: deque[Entry] = deque(maxlen=entries_max)
        self._numbers = 0
        self.open: dict[int, Open] = {}
        self.dropped = 0

    def __len__(self) -> int:
        """Entries that wait."""
        return len(self._entries)

    def next_number(self) -> int:
        """A number no other lease of this process has [1, 2, ...]."""
        self._numbers += 1
        return self._numbers

    def began(self, dispatch: Began) -> None:
        """A lease was taken."""
        end = dispatch.hashes[-1] if dispatch.hashes else 0
        self.open[dispatch.number] = Open(
            dispatch.pool,
            dispatch.endpoint,
            dispatch.prompt_tokens,
            dispatch.uncached_tokens,
            end,
            dispatch.prefills,
        )
        self._note(dispatch)

    def prefilled(self, number: int) -> None:
        """The prompt of an open lease is prefilled."""
        found = self.open.get(number)
        if found is not None and found.uncached_tokens:
            found.uncached_tokens = 0
            self._note(Prefilled(number))

    def ended(self, number: int) -> None:
        """A lease was released; repeating it has no effect."""
        if self.open.pop(number, None) is not None:
            self._note(Ended(number))

    def restarted(self, pool_name: str, endpoint: _pool.EndpointId) -> None:
        """An endpoint was seen to be another process."""
        self._note(Restarted(pool_name, endpoint))

    def take(self, entries_max: int) -> list[Entry]:
        """The oldest entries, at most so many; they are gone from here then."""
        waiting = self._entries
        return [waiting.popleft() for _ in range(min(entries_max, len(waiting)))]

    def _note(self, entry: Entry) -> None:
        if len(self._entries) == self._entries.maxlen:
            self.dropped += 1
        self._entries.append(entry)
