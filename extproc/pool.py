"""Pool: all endpoints of one model group, as an immutable snapshot with a generation number.

Whoever learns of a change makes a new pool and publishes it; nobody edits one. A pool lists members,
ready or not: membership decides the ring, readiness only who may be chosen, so that an endpoint that is
down for a minute gets exactly its own keys back.

Never: two endpoints of one name, or an order that depends on how the source listed them.
Called by: endpoint sources (make), router (reads).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NewType

__all__ = ["Endpoint", "EndpointId", "Pool", "make", "with_ready"]

EndpointId = NewType("EndpointId", str)
"""An endpoint's stable name: it keys ring, residency and ledger, and outlives a change of address."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model server address.

    `address`: "ip:port", IPv6 in brackets, as Envoy must be told. `weight`: share of the ring relative to
    other endpoints [1..100]. `ready`: whether it may be chosen.
    """

    id: EndpointId
    address: str
    weight: int = 1
    ready: bool = True


@dataclass(frozen=True, slots=True)
class Pool:
    """Endpoints sorted by name, and the number of this snapshot [1, 2, ...]."""

    name: str
    endpoints: tuple[Endpoint, ...]
    generation: int = 1
    ready: tuple[Endpoint, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Keep what every choice asks for."""
        object.__setattr__(self, "ready", tuple(e for e in self.endpoints if e.ready))

    @property
    def membership(self) -> tuple[tuple[EndpointId, int], ...]:
        """What the ring depends on: names and weights."""
        return tuple((e.id, e.weight) for e in self.endpoints)


def make(name: str, endpoints: Iterable[Endpoint], generation: int = 1) -> Pool:
    """A pool of `endpoints` in any order; of one name repeated, the last stands."""
    by_id = {endpoint.id: endpoint for endpoint in endpoints}
    return Pool(name, tuple(by_id[key] for key in sorted(by_id)), generation)


def with_ready(pool: Pool, ready: Mapping[EndpointId, bool]) -> Pool:
    """The next generation of `pool`, with the readiness of those named in `ready` replaced.

    The same object if nothing changes.
    """
    endpoints = tuple(
        endpoint if ready.get(endpoint.id, endpoint.ready) == endpoint.ready
        else replace(endpoint, ready=ready[endpoint.id])
        for endpoint in pool.endpoints
    )  # fmt: skip
    if endpoints == pool.endpoints:
        return pool
    return Pool(pool.name, endpoints, pool.generation + 1)
