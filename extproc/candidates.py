"""Candidates: who may be chosen for a request, with what every choice among them asks for.

Made once for each set of endpoints and kept as long as the pool gives out the same one.

Never: empty. Called by: router.
"""

from __future__ import annotations

from collections.abc import Sequence

from extproc import policy, pool

__all__ = ["Candidates"]


class Candidates:
    """Endpoints in a fixed order, their names, and where each name stands."""

    __slots__ = ("endpoints", "names", "position")

    def __init__(self, endpoints: Sequence[pool.Endpoint]) -> None:
        """Of `endpoints`, at least one."""
        self.endpoints = endpoints
        self.names = tuple(endpoint.id for endpoint in endpoints)
        self.position = {name: index for index, name in enumerate(self.names)}

    def __len__(self) -> int:
        """How many there are."""
        return len(self.endpoints)

    def alternates(
        self, pick: policy.Pick, ring_order: policy.RingOrder, wanted: int
    ) -> tuple[pool.Endpoint, ...]:
        """Where to retry, at most `wanted`: by cost, else in ring order."""
        if not wanted:
            return ()
        if pick.costs:
            ranked: Sequence[int] = sorted(range(len(self)), key=pick.costs.__getitem__)
        else:
            ranked = list(ring_order())
        others = [self.endpoints[index] for index in ranked if index != pick.index]
        return tuple(others[:wanted])
