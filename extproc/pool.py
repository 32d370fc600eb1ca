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
    other endpoints [1..100]. `ready`: whether it may be chosen. `models`: names it serves, adapters among
    them; None if it does not tell, and is then taken to serve all that the pool is asked for.
    """

    id: EndpointId
    address: str
    weight: int = 1
    ready: bool = True
    models: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """Endpoints sorted by name, and the number of this snapshot [1, 2, ...]."""

    name: str
    endpoints: tuple[Endpoint, ...]
    generation: int = 1
    ready: tuple[Endpoint, ...] = field(init=False)
    _named: frozenset[str] = field(init=False, compare=False, repr=False)
    _serving: dict[str, tuple[Endpoint, ...]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Keep what every choice asks for."""
        object.__setattr__(self, "ready", tuple(e for e in self.endpoints if e.ready))
        named = frozenset().union(*(e.models for e in self.endpoints if e.models))
        object.__setattr__(self, "_named", named)
        object.__setattr__(self, "_serving", {})

    @property
    def models(self) -> frozenset[str]:
        """All models that some member says it serves."""
        return self._named

    @property
    def membership(self) -> tuple[tuple[EndpointId, int], ...]:
        """What the ring depends on: names and weights."""
        return tuple((e.id, e.weight) for e in self.endpoints)

    def serving(self, model: str) -> tuple[Endpoint, ...]:
        """Who may be chosen for `model`: those ready that serve it, or do not tell what they serve.

        If nobody says so, ready or not, and nobody is silent: all that are ready; the engine's own refusal
        is then the right answer.
        """
        found = self._serving.get(model)
        if found is not None:
            return found
        if not self._named:
            return self.ready
        known = model in self._named
        found = tuple(e for e in self.ready if e.models is None or model in e.models)
        if not known:
            return found or self.ready  # not kept: clients invent names without end
        self._serving[model] = found
        return found


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
