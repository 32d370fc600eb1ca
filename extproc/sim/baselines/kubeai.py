"""KubeAI: consistent hashing with bounded loads, on requests.

    key = adapter + first 100 characters of the first user message
    an endpoint may take one more while   load + 1 <= 1.25 * (total + 1) / n,   or while nothing is in flight

From the key's place on a circle of 256 points an endpoint the walk goes on clockwise to the first that may;
if none may, the first one met takes it. So with total + 1 < n / 1.25 nobody may, and all requests of a key
share its home: the bound holds from there on. The system prompt is no part of the key.

Invariant: equal names give equal circles. Called by: the package's table.
Source: KubeAI, internal/loadbalancer/balance_chwbl.go (rule, fallback), its defaults for replication and load
percentage; bounded loads after arXiv:1608.01350.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

import xxhash

from extproc import policy, pool, router
from extproc.sim import chooser
from extproc.sim.baselines import baseline

__all__ = ["FACTOR", "POINTS", "KubeAI", "may_take"]

FACTOR = 1.25
POINTS = 256


def may_take(load: int, total: int, endpoints: int, factor: float = FACTOR) -> bool:
    """Whether an endpoint with `load` of `total` open requests may take one more."""
    return total == 0 or load + 1 <= factor * (total + 1) / endpoints


class KubeAI(baseline.Baseline):
    """KubeAI: consistent hash of adapter and user message, load at most 1.25 times the mean, clockwise."""

    name = "kubeai"
    indexed = False

    def __init__(self, pool: pool.Pool, settings: router.Settings) -> None:
        super().__init__(pool, settings)
        self._circle = _Circle(endpoint.id for endpoint in pool.ready)

    def publish(self, pool: pool.Pool) -> None:
        """Replace the pool; the circle holds those that are ready, as KubeAI's does."""
        super().publish(pool)
        self._circle = _Circle(endpoint.id for endpoint in pool.ready)

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """The first clockwise that may take it, else the home."""
        position = {endpoint.id: index for index, endpoint in enumerate(asked.endpoints)}
        inflight = asked.inflight
        total = sum(inflight)
        home = None
        for steps, name in enumerate(self._circle.walk(_key(asked.request))):
            index = position[name]
            home = index if home is None else home
            if may_take(inflight[index], total, len(position)):
                return policy.Pick(index, policy.Reason.OVERFLOW if steps else policy.Reason.HOME, steps)
        return policy.Pick(home or 0, policy.Reason.HOME)


class _Circle:
    """Points of all endpoints, in order."""

    def __init__(self, names: Iterable[pool.EndpointId]) -> None:
        placed = sorted(
            (xxhash.xxh64_intdigest(f"{name}{number}".encode()), name)
            for name in names
            for number in range(POINTS)
        )
        self._positions = [position for position, _ in placed]
        self._owners = [name for _, name in placed]

    def walk(self, key: int) -> Iterator[pool.EndpointId]:
        """Every endpoint once, as met clockwise from `key`."""
        at = bisect_left(self._positions, key)
        met: set[pool.EndpointId] = set()
        for step in range(len(self._owners)):
            owner = self._owners[(at + step) % len(self._owners)]
            if owner not in met:
                met.add(owner)
                yield owner


def _key(request: chooser.Request) -> int:
    return xxhash.xxh64_intdigest(f"{request.adapter}\0{request.user}".encode())
