"""Envoy's ring_hash with bounded load, by the hash that kvring sets in `steering: hash`.

    home: the first point clockwise of the hash, on a ring of points hashed from addresses
    an endpoint may take one more while   active <= max(1, ceil(ceil((total + 1) * factor) / n));
    where the home may not, the first that may in an order shuffled by the hash; if none may, the least busy

So a bound of active requests, the same for long and short prompts, and a little above `factor`, since an
endpoint that holds exactly its slots still takes one. Nothing is known of residency.

Simplified: the shuffle is another one than Envoy's Mersenne twister, and the ring is larger than Envoy's
default of 1,024 points, as `kvring envoy-config --steering hash` makes it. Counts are one Envoy's own.

Invariant: equal names give equal rings. Called by: the package's table.
Source: Envoy 1.40, ring_hash and the bounded-load wrapper of its thread-aware balancers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from extproc import choice, hasher, policy, pool, ring, router
from extproc.sim.baselines import baseline

__all__ = ["FACTOR", "EnvoyHash", "slots"]

FACTOR = 1.5
"""`hash_balance_factor` over 100, as `kvring envoy-config --steering hash` sets it."""


def slots(total: int, endpoints: int, factor: float = FACTOR) -> int:
    """Active requests up to which an endpoint takes one more, of `total` in all."""
    return max(1, math.ceil(math.ceil((total + 1) * factor) / endpoints))


class EnvoyHash(baseline.Baseline):
    """kvring's `steering: hash`: Envoy's ring_hash by the anchor's hash, active requests bounded."""

    name = "envoy_hash"
    indexed = False
    factor = FACTOR

    def __init__(self, pool: pool.Pool, settings: router.Settings) -> None:
        super().__init__(pool, settings)
        self._hasher = hasher.Hasher(pool.name, len(pool.endpoints), settings)
        self._circle = _circle(pool)

    def publish(self, pool: pool.Pool) -> None:
        """Replace the pool; the ring holds those that are well, as Envoy's does."""
        super().publish(pool)
        self._circle = _circle(pool)

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """The home of the request's hash, or another below the bound."""
        found = self._hasher.place(asked.request, asked.now)
        value = int(asked.chance * 2**64) if found.hash is None else found.hash
        position = {endpoint.id: index for index, endpoint in enumerate(asked.endpoints)}
        order = [position[name] for name in self._circle.order(value, position)]
        steps = _first(order, asked.inflight, slots(sum(asked.inflight), len(order), self.factor))
        return policy.Pick(order[steps], _reason(found, steps), steps)


def _circle(members: pool.Pool) -> ring.Ring:
    return ring.Ring([(endpoint.id, endpoint.weight) for endpoint in members.ready])


def _first(order: Sequence[int], inflight: Sequence[int], most: int) -> int:
    """How many of `order` are passed over for the first that may take one more, else for the least busy."""
    for steps, index in enumerate(order):
        if inflight[index] <= most:
            return steps
    return min(range(len(order)), key=lambda steps: inflight[order[steps]])


def _reason(found: choice.Hashed, steps: int) -> policy.Reason:
    if found.hash is None:
        return policy.Reason.LEAST_LOAD if steps else policy.Reason.TURN
    return policy.Reason.OVERFLOW if steps else policy.Reason.HOME
