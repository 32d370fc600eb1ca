"""Answers: which endpoint gave which stored answer, so that a request that continues one can follow it.

Only where kvring sees answers (response bodies are sent to it) and an API stores them (Responses). Bounded:
the least recently used leave; an entry unused for `idle_s` is gone.

Never: a guess; ids match exactly. Called by: router.
"""

from __future__ import annotations

from collections import OrderedDict

from extproc import pool

__all__ = ["Answers"]


class Answers:
    """Ids of answers and where they were given."""

    __slots__ = ("_entries", "_entries_max", "_idle_s")

    def __init__(self, entries_max: int, idle_s: float = 3600.0) -> None:
        """`entries_max`: bound [>= 0; 0 keeps nothing]; `idle_s`: how long an entry lives unused [s, > 0]."""
        self._entries: OrderedDict[str, tuple[pool.EndpointId, float]] = OrderedDict()
        self._entries_max = entries_max
        self._idle_s = idle_s

    def __len__(self) -> int:
        """Entries held."""
        return len(self._entries)

    def remember(self, answer: str, endpoint: pool.EndpointId, now: float) -> None:
        """Note that `endpoint` gave `answer` at `now` [s, monotonic]."""
        self._entries[answer] = (endpoint, now)
        self._entries.move_to_end(answer)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def find(self, answer: str, now: float) -> pool.EndpointId | None:
        """The endpoint that gave `answer`; None if that is not known (any more)."""
        entry = self._entries.get(answer)
        if entry is None:
            return None
        endpoint, used_s = entry
        if now - used_s > self._idle_s:
            del self._entries[answer]
            return None
        self._entries[answer] = (endpoint, now)
        self._entries.move_to_end(answer)
        return endpoint
