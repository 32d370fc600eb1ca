"""Ring: consistent hashing; a key gives every endpoint once, in a stable order.

Each endpoint owns `points * weight` positions of a 64-bit circle, hashed from its name. A key is looked
up by *probes*: probe i stands at xxh3_64(key, seed i) and takes the first point clockwise from there that
belongs to a wanted endpoint not yet taken. Probe 0 finds the home, the next ones the overflow targets.
Overflow therefore scatters by key: the neighbour of a hot endpoint on the circle does not fill up next
(the cascade of clockwise overflow, arXiv:1908.08762), and every step respects weights.

Laws, all tested: order(key, S) on any ring that has S equals order(key) on a ring of S alone, so an
endpoint that is down moves keys just as one that is gone; one of n endpoints more or less moves 1/n of
the homes; equal names give equal rings in every process.

Called by: router. Source: consistent hashing, Karger et al. 1997; probes as in arXiv:1505.00062.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence

import xxhash

from extproc import pool

__all__ = ["POINTS", "Ring", "place"]

POINTS = 256
"""Points of an endpoint of weight 1: the fullest of 8 then holds 1.09 times its fair share, 1.16 at worst."""


_CIRCLE = 2**64


class Ring:
    """Immutable ring over names and weights."""

    __slots__ = ("_names", "_owners", "_positions", "members")

    def __init__(self, members: Sequence[tuple[pool.EndpointId, int]], points: int = POINTS) -> None:
        """Build from (name, weight >= 1) pairs; `points` [>= 1] per unit of weight."""
        self.members = tuple(sorted(members))
        self._names = frozenset(name for name, _ in self.members)
        placed = sorted(
            (_point(name, i), name) for name, weight in self.members for i in range(points * weight)
        )
        self._positions = [position for position, _ in placed]
        self._owners = [name for _, name in placed]

    def order(self, key: int, among: Collection[pool.EndpointId] | None = None) -> Iterator[pool.EndpointId]:
        """Every endpoint once, home first; only those in `among` if given.

        Lazy: the first costs one lookup, where `among` tells a member quickly. `key`: unsigned 64-bit.
        """
        encoded = key.to_bytes(8, "little")
        first = self._probe(encoded, 0, self._names if among is None else among)
        if first is None:
            return
        yield first
        wanted = set(self._names if among is None else self._names.intersection(among))
        wanted.discard(first)
        probe = 1
        while wanted:
            owner = self._probe(encoded, probe, wanted)
            if owner is None:
                return
            wanted.discard(owner)
            yield owner
            probe += 1

    def home(self, key: int) -> pool.EndpointId | None:
        """The first endpoint in the order of `key`; None on an empty ring."""
        return next(self.order(key), None)

    def slots(self, count: int) -> list[pool.EndpointId]:
        """Who a key's first probe finds at `count` [> 0] even steps around the circle, to draw it by."""
        if not self._owners:
            return []
        places = (round((at + 0.5) / count * _CIRCLE) for at in range(count))
        size = len(self._owners)
        return [self._owners[bisect_left(self._positions, place) % size] for place in places]

    def _probe(
        self, encoded: bytes, probe: int, wanted: Collection[pool.EndpointId]
    ) -> pool.EndpointId | None:
        """The first clockwise of those wanted, from where this probe of a key stands, if there is any."""
        owners = self._owners
        at = bisect_left(self._positions, xxhash.xxh3_64_intdigest(encoded, probe))
        for step in range(at - len(owners), at):  # from the end, a negative index goes round by itself
            if owners[step] in wanted:
                return owners[step]
        return None


def place(key: int) -> float:
    """Where the first probe of `key` stands on the circle [0..1)."""
    return xxhash.xxh3_64_intdigest(key.to_bytes(8, "little"), 0) / _CIRCLE


def _point(name: str, number: int) -> int:
    # Length first: "vllm-1" with point 11 and "vllm-11" with point 1 must not meet.
    encoded = name.encode()
    return xxhash.xxh3_64_intdigest(
        len(encoded).to_bytes(4, "little") + encoded + number.to_bytes(4, "little")
    )
