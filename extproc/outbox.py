"""Outbox: what happened to this process's own leases and endpoints, until other replicas of kvring are told.

    began -> retracted -> prefilled -> ended          of each own lease, in this order
    restarts                             endpoints whose process is a new one

The ledger and the router write, the shared view reads (`news.view`). What waits has a weight, by which the
reader tells it sooner or later:

    weight = sum over dispatches of (uncached tokens + 128)        [tokens]; infinite with a restart

That is how far others are wrong about what endpoints have to do; an open request counts beside its prefill,
as others cap open requests. First tokens, ends, answers and what is taken back weigh nothing: they go with
what does. Nobody waits for the reader: where it is slow, the oldest entries leave, counted, and what they
would have told of open leases is told again by the list of these.

Never: prompt text; more than `entries_max` entries, or `BLOCKS_MAX` blocks in them; a lease that stays `open`
after its end.
Called by: router, ledger (write), news.view (reads).
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

from extproc import chain
from extproc import pool as _pool

__all__ = ["ENTRIES_MAX", "Answered", "Began", "Ended", "Entry", "Open", "Outbox", "Prefilled", "Retracted"]

ENTRIES_MAX = 8192
BLOCKS_MAX = 1 << 17
RESTARTS_MAX = 1024
OPEN_TOKENS = 128
"""What an open request weighs beside its prefill. Eight, the floor of the cap on open requests, weigh as
much as is told soon (`news.view.Settings`)."""


class Began(msgspec.Struct, frozen=True, gc=False):
    """A dispatch: which endpoint of which pool, and what was sent there.

    `number`: of the lease [>= 1]. `back`, `depth`, `hashes`: its chain from the first block on that no
    endpoint held, so that others don't know it; `back` is the block before, at `depth` blocks, 0 and 0 where
    there is none. `prompt_tokens`, `uncached_tokens`, `gpu_tokens`, `cached_tokens`: as estimated [>= 0].
    `prefills`: whether the engine computes the prompt. `again`: of a request that was told before, and then
    went elsewhere.
    """

    number: int
    pool: str
    endpoint: _pool.EndpointId
    back: chain.BlockHash = 0
    depth: int = 0
    hashes: tuple[chain.BlockHash, ...] = ()
    prompt_tokens: float = 0.0
    uncached_tokens: int = 0
    gpu_tokens: float = 0.0
    cached_tokens: float = 0.0
    prefills: bool = True
    again: bool = False


class Open(msgspec.Struct, gc=False):
    """An own lease that has not ended. `uncached_tokens`: 0 once its prompt is seen to be prefilled.

    `end`: the last hash of its chain, at `depth` blocks, 0 if it has none: nothing here is as long as a
    prompt.
    """

    pool: str
    endpoint: _pool.EndpointId
    prompt_tokens: float
    uncached_tokens: int
    end: chain.BlockHash
    depth: int
    prefills: bool


class Prefilled(msgspec.Struct, frozen=True, gc=False):
    """The prompt of lease `number` is seen to be prefilled."""

    number: int


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The request of lease `number` is over."""

    number: int


class Retracted(msgspec.Struct, frozen=True, gc=False):
    """The request of lease `number` did not go to `endpoint`, where it was told to have gone.

    `end`, `depth`: its chain, by its last hash and its blocks [>= 1]; `left`: how many of these are thought
    to be held there all the same [blocks]. `prompt_tokens`, `gpu_tokens`, `cached_tokens`: as of `Began`.
    """

    number: int
    pool: str
    endpoint: _pool.EndpointId
    end: chain.BlockHash
    depth: int
    left: int
    prompt_tokens: float
    gpu_tokens: float
    cached_tokens: float


class Answered(msgspec.Struct, frozen=True, gc=False):
    """`endpoint` gave the stored answer `key`."""

    pool: str
    endpoint: _pool.EndpointId
    key: int


Entry = Began | Retracted | Prefilled | Ended | Answered


class Outbox:
    """One process's entries. `open`: own leases that have not ended; `dropped`: entries nobody read in
    time; `restarts`: pool and name of endpoints that were seen to be another process; `weight`: of what
    waits [tokens, >= 0].
    """

    __slots__ = ("_blocks", "_entries", "_entries_max", "_numbers", "dropped", "open", "restarts", "weight")

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        """`entries_max`: kept until they are taken [>= 1]."""
        self._entries: deque[Entry] = deque()
        self._entries_max = entries_max
        self._blocks = 0
        self._numbers = 0
        self.open: dict[int, Open] = {}
        self.restarts: deque[tuple[str, _pool.EndpointId]] = deque(maxlen=RESTARTS_MAX)
        self.dropped = 0
        self.weight = 0.0

    def __len__(self) -> int:
        """Entries that wait."""
        return len(self._entries)

    def next_number(self) -> int:
        """A number no other lease of this process has [1, 2, ...]."""
        self._numbers += 1
        return self._numbers

    def dispatched(
        self,
        pool_name: str,
        endpoint: _pool.EndpointId,
        hashes: tuple[chain.BlockHash, ...],
        known_blocks: int,
        prompt_tokens: float,
        uncached_tokens: int,
        gpu_tokens: float,
        cached_tokens: float,
        prefills: bool,  # noqa: FBT001  (as in `Began`)
    ) -> int:
        """An own lease was taken; its number. `hashes`: the whole chain; `known_blocks`: how many leading
        ones some endpoint held already; the rest as in `Began`.
        """
        number = self.next_number()
        back = hashes[known_blocks - 1] if known_blocks else 0
        self.began(
            Began(
                number, pool_name, endpoint, back, known_blocks, hashes[known_blocks:], prompt_tokens,
                uncached_tokens, gpu_tokens, cached_tokens, prefills,
            )
        )  # fmt: skip
        return number

    def began(self, dispatch: Began) -> None:
        """A lease was taken."""
        end = dispatch.hashes[-1] if dispatch.hashes else dispatch.back
        self.open[dispatch.number] = Open(
            dispatch.pool,
            dispatch.endpoint,
            dispatch.prompt_tokens,
            dispatch.uncached_tokens,
            end,
            dispatch.depth + len(dispatch.hashes),
            dispatch.prefills,
        )
        self._note(dispatch)
        self.weight += dispatch.uncached_tokens + OPEN_TOKENS

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

    def retracted(self, entry: Retracted) -> None:
        """A request did not go where it was told to have gone."""
        if entry.number:
            self._note(entry)

    def moved(
        self, number: int, endpoint: _pool.EndpointId, uncached_tokens: int, cached_tokens: float = 0.0
    ) -> int:
        """The request of an open lease went to `endpoint` in the end; the lease's number from now on.

        Args: uncached_tokens: left to prefill there [>= 0]; cached_tokens: thought to be held there.
        """
        found = self.open.get(number)
        if found is None:
            return 0
        self.ended(number)
        began = Began(
            self.next_number(), found.pool, endpoint, found.end, found.depth, (), found.prompt_tokens,
            uncached_tokens, cached_tokens, cached_tokens, found.prefills, again=True,
        )  # fmt: skip
        self.began(began)
        return began.number

    def answered(self, pool_name: str, endpoint: _pool.EndpointId, key: int) -> None:
        """An own request got a stored answer."""
        self._note(Answered(pool_name, endpoint, key))

    def restarted(self, pool_name: str, endpoint: _pool.EndpointId) -> None:
        """An endpoint was seen to be another process."""
        self.restarts.append((pool_name, endpoint))
        self.weight = math.inf

    def take(self, entries_max: int) -> list[Entry]:
        """The oldest entries, at most so many; they are gone from here then."""
        waiting = self._entries
        if entries_max >= len(waiting):
            self.weight = 0.0
        return [self._oldest() for _ in range(min(entries_max, len(waiting)))]

    def _note(self, entry: Entry) -> None:
        if isinstance(entry, Began):
            self._blocks += len(entry.hashes)
        while len(self._entries) >= self._entries_max or (self._blocks > BLOCKS_MAX and self._entries):
            self._oldest()
            self.dropped += 1
        self._entries.append(entry)

    def _oldest(self) -> Entry:
        entry = self._entries.popleft()
        if isinstance(entry, Began):
            self._blocks -= len(entry.hashes)
        return entry
