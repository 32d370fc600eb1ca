"""Answers: which endpoint gave which stored answer, so that a request that continues one can follow it.

Of ids only a hash is kept, and told to other replicas: with an id one could ask the engine for the answer.
Only where kvring sees answers (response bodies are sent to it) and an API stores them (Responses). Bounded:
the least recently used leave; an entry unused for `idle_s` is gone.

Never: a guess; 64-bit hashes of ids match exactly. Called by: router.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict

from extproc import chain, pool

__all__ = ["Answers"]

_RECENT_MAX = 32_768  # told to a newcomer: some 1 MB of messages


class Answers:
    """Ids of answers and where they were given."""

    __slots__ = ("_entries", "_entries_max", "_idle_s")

    def __init__(self, entries_max: int, idle_s: float = 3600.0) -> None:
        """`entries_max`: bound [>= 0; 0 keeps nothing]; `idle_s`: how long an entry lives unused [s, > 0]."""
        self._entries: OrderedDict[int, tuple[pool.EndpointId, float]] = OrderedDict()
        self._entries_max = entries_max
        self._idle_s = idle_s

    def __len__(self) -> int:
        """Entries held."""
        return len(self._entries)

    def remember(self, answer: str, endpoint: pool.EndpointId, now: float) -> int:
        """Note that `endpoint` gave `answer` at `now` [s, monotonic]; what `learn` knows the answer by."""
        key = _key(answer)
        self.learn(key, endpoint, now)
        return key

    def learn(self, key: int, endpoint: pool.EndpointId, now: float) -> None:
        """Note that `endpoint` gave an answer of this key."""
        self._entries[key] = (endpoint, now)
        self._entries.move_to_end(key)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def recall(self, key: int, endpoint: pool.EndpointId, used_s: float) -> None:
        """Note what another replica knows: of several, those used last come first. What is known stays."""
        if key not in self._entries and len(self._entries) < self._entries_max:
            self._entries[key] = (endpoint, used_s)
            self._entries.move_to_end(key, last=False)

    def recent(self, oldest_s: float) -> list[tuple[int, pool.EndpointId, float]]:
        """Key, endpoint and time [s, monotonic] of what was used since `oldest_s`, the latest first, of many
        the first.
        """
        found = []
        for key, (endpoint, used_s) in itertools.islice(reversed(self._entries.items()), _RECENT_MAX):
            if used_s < oldest_s:
                break
            found.append((key, endpoint, used_s))
        return found

    def find(self, answer: str, now: float) -> pool.EndpointId | None:
        """The endpoint that gave `answer`; None if that is not known (any more)."""
        key = _key(answer)
        entry = self._entries.get(key)
        if entry is None:
            return None
        endpoint, used_s = entry
        if now - used_s > self._idle_s:
            del self._entries[key]
            return None
        self._entries[key] = (endpoint, now)
        self._entries.move_to_end(key)
        return endpoint


def _key(answer: str) -> int:
    return chain.seed_of((b"answer", answer.encode("utf-8", "surrogatepass")))
