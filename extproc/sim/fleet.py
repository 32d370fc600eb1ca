"""Fleet: the model servers of a simulation, each an engine that may die, start again, or join late.

GPU and host tiers die with the process; an external store is the fleet's and survives.

Invariant: a replica that is down has no engine. Called by: simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from extproc import pool
from extproc.sim import chooser, kv_cache, leap, performance

if TYPE_CHECKING:
    from extproc.sim import flight

__all__ = ["Fleet", "Replica"]


@dataclass(slots=True, eq=False)
class Replica:
    """One model server. `flights`: requests it holds. `due_s`: when the simulation will look at it next."""

    id: pool.EndpointId
    model: performance.Performance
    engine: leap.LeapingEngine | None = None
    started_s: float = 0.0
    due_s: float | None = None
    flights: dict[str, flight.Flight] = field(default_factory=dict)

    def signals(self) -> chooser.Signals | None:
        """What a scrape shows; None while it is down."""
        engine = self.engine
        if engine is None:
            return None
        return chooser.Signals(engine.kv_usage, engine.running, engine.waiting, self.started_s)


class Fleet:
    """All replicas, and the pool as endpoint discovery and health probes know it."""

    def __init__(
        self, models: Mapping[str, performance.Performance], external_kv_tokens: int, shown: int
    ) -> None:
        """`models`: by name, those up at the start. `shown`: see `leap`."""
        self._shown = shown
        self._external: kv_cache.External | None = None
        if external_kv_tokens:
            block_tokens = next(iter(models.values())).block_tokens
            self._external = kv_cache.External(max(external_kv_tokens // block_tokens, 1))
        self.replicas: dict[pool.EndpointId, Replica] = {}
        self.pool = pool.make("sim", ())
        for name, model in models.items():
            self.join(name, model, 0.0)

    def join(self, name: str, model: performance.Performance, now: float) -> None:
        """A new replica, up and known."""
        replica = Replica(pool.EndpointId(name), model)
        self.replicas[replica.id] = replica
        self.boot(replica, now)
        number = len(self.replicas)
        endpoint = pool.Endpoint(replica.id, f"10.0.{number // 250}.{number % 250 + 1}:8000")
        self.pool = pool.make("sim", (*self.pool.endpoints, endpoint), self.pool.generation + 1)

    def boot(self, replica: Replica, now: float) -> None:
        """A fresh process for `replica`, with nothing cached but what the external store holds."""
        replica.engine = leap.LeapingEngine(replica.model, self._external, self._shown)
        replica.started_s = now
        replica.due_s = None

    def kill(self, replica: Replica) -> list[flight.Flight]:
        """End the process of `replica`; the requests that die with it."""
        replica.engine = None
        replica.due_s = None
        lost = list(replica.flights.values())
        replica.flights.clear()
        return lost

    def see(self) -> bool:
        """Look which replicas are up; whether the pool changed by it."""
        up = {replica.id: replica.engine is not None for replica in self.replicas.values()}
        seen = pool.with_ready(self.pool, up)
        changed = seen is not self.pool
        self.pool = seen
        return changed
