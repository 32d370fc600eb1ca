"""Baseline: what all peers' rules stand on: a pool, a ledger, an index of prompts sent, and scrapes.

A rule is a subclass that says which endpoint it wants; this class counts. In order: candidates with their
load, how much of the prompt each is thought to hold, the rule's pick, index, lease. All in one step, so a
rule that counts requests in flight sees every request before it, as its real router does.

Pending tokens fall at the first token alone: no peer here expects the end of a prefill, all of them see
answers.

Invariant: one lease a request, taken last; the index only learns what was sent. Called by: the rules of this
package. Source of each rule: its own module, and docs/baselines.md.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field

from extproc import choice, ledger, policy, pool, residency, router
from extproc import footprint as _footprint
from extproc.sim import chooser

__all__ = ["Asked", "Baseline", "among", "capacity", "least"]

# So slow that no prefill is ever expected to be over [tokens/s].
_NEVER = 1e-9


@dataclass(frozen=True, slots=True)
class Asked:
    """One decision to make. Lists are by candidate.

    `held_blocks`: leading blocks of the chain thought to be there, 0 without an index; `host_blocks`: those
    after them in the host tier. `chance` is uniform in [0, 1).
    """

    request: chooser.Request
    endpoints: Sequence[pool.Endpoint]
    loads: Sequence[ledger.Load]
    held_blocks: Sequence[int]
    host_blocks: Sequence[int]
    block_tokens: float
    now: float
    chance: float

    @property
    def inflight(self) -> list[int]:
        """Open requests by candidate."""
        return [load.inflight for load in self.loads]

    @property
    def pending(self) -> list[int]:
        """Uncached prompt tokens by candidate whose first token has not come."""
        return [load.pending for load in self.loads]

    @property
    def new_tokens(self) -> list[float]:
        """This prompt's tokens that a candidate would have to compute [>= 0]; both tiers count as held."""
        blocks = [gpu + host for gpu, host in zip(self.held_blocks, self.host_blocks, strict=True)]
        return [max(self.request.tokens - held * self.block_tokens, 0.0) for held in blocks]

    @property
    def match(self) -> list[float]:
        """Share of the prompt's full blocks by candidate [0..1]; 0 for a prompt without any."""
        chain = self.request.chain
        total = 0 if chain is None else len(chain)
        if not total:
            return [0.0] * len(self.endpoints)
        blocks = [gpu + host for gpu, host in zip(self.held_blocks, self.host_blocks, strict=True)]
        return [held / total for held in blocks]


@dataclass(slots=True)
class _Scrapes:
    """The last scrape of each endpoint."""

    signals: dict[pool.EndpointId, chooser.Signals] = field(default_factory=dict)

    def add(self, endpoint: pool.EndpointId, signals: chooser.Signals) -> bool:
        """Keep it; whether it tells of a restart."""
        before = self.signals.get(endpoint)
        self.signals[endpoint] = signals
        return before is not None and before.started_s != signals.started_s


class Baseline(abc.ABC):
    """A chooser that counts for its rule."""

    name = "baseline"
    indexed = True
    """Whether the rule knows what it sent where."""
    survives_restart = False
    """Whether the index outlives an endpoint's process: a router that knows it by address does not notice."""

    def __init__(
        self,
        pool: pool.Pool,
        settings: router.Settings,
        held: residency.Capacity | None = None,
        idle_s: float | None = None,
    ) -> None:
        """`held`: the index's size, None for what the engines can hold; `idle_s`: its time to live [s]."""
        self.pool = pool
        self.settings = settings
        self.block_tokens = settings.block_bytes / settings.bytes_per_token
        self.ledger = ledger.Ledger(_NEVER)
        self.residency = residency.Residency(
            held or capacity(settings), settings.residency_idle_s if idle_s is None else idle_s
        )
        self._scrapes = _Scrapes()

    @abc.abstractmethod
    def pick(self, asked: Asked) -> policy.Pick:
        """The rule: position in `asked.endpoints` (at least one), and why."""

    def place(
        self, request: chooser.Request, now: float, chance: float
    ) -> choice.Decision | choice.NoEndpoint:
        """The endpoint that the rule picks, with the lease taken."""
        endpoints = self.pool.ready
        if not endpoints:
            return choice.NoEndpoint(len(self.pool.endpoints), 0)
        asked = self.asked(request, endpoints, now, chance)
        picked = self.pick(asked)
        chosen = endpoints[picked.index]
        new = asked.new_tokens[picked.index]
        if self.indexed and request.chain is not None and request.prefills:
            self.residency.add(chosen.id, request.chain, now)
        uncached = round(new) if request.prefills else 0
        lease = self.ledger.take(chosen.id, uncached, now, self.footprint(request))
        return chooser.decision(
            chosen,
            lease,
            request,
            policy_name=self.name,
            reason=picked.reason,
            ring_steps=picked.ring_steps,
            work_seen=asked.loads[picked.index].work,
            cached_tokens=max(request.tokens - new, 0.0),
        )

    def publish(self, pool: pool.Pool) -> None:
        """Replace the pool; endpoints that left are forgotten."""
        self.pool = pool
        members = {endpoint.id for endpoint in pool.endpoints}
        self.ledger.retain(members)
        self.residency.retain(members)
        for gone in self._scrapes.signals.keys() - members:
            del self._scrapes.signals[gone]

    def observe(self, endpoint: pool.EndpointId, signals: chooser.Signals, now: float) -> None:  # noqa: ARG002
        """Keep the scrape; an endpoint that started anew has lost what it held."""
        if self._scrapes.add(endpoint, signals) and not self.survives_restart:
            self.residency.forget(endpoint)

    def scraped(self, endpoint: pool.EndpointId) -> chooser.Signals | None:
        """The last scrape of `endpoint`; None before the first."""
        return self._scrapes.signals.get(endpoint)

    def footprint(self, request: chooser.Request) -> _footprint.Footprint:  # noqa: ARG002
        """What the ledger notes as held while a request is open; nothing, but for rules that ask."""
        return _footprint.NOTHING

    def asked(
        self, request: chooser.Request, endpoints: Sequence[pool.Endpoint], now: float, chance: float
    ) -> Asked:
        """The decision to make, as the rule will see it."""
        gpu, host = [0] * len(endpoints), [0] * len(endpoints)
        if self.indexed and request.chain is not None:
            for index, endpoint in enumerate(endpoints):
                match = self.residency.match(endpoint.id, request.chain, now)
                gpu[index], host[index] = match.gpu_blocks, match.any_blocks - match.gpu_blocks
        loads = [self.ledger.load(endpoint.id, now) for endpoint in endpoints]
        return Asked(request, endpoints, loads, gpu, host, self.block_tokens, now, chance)


def capacity(settings: router.Settings) -> residency.Capacity:
    """What an engine's own tiers hold [blocks of the chain]; a store shared by all favours nobody."""
    per_block = settings.block_bytes / settings.bytes_per_token
    gpu = int(settings.kv_tokens / per_block)
    both = int((settings.kv_tokens + settings.host_kv_tokens) / per_block)
    return residency.Capacity(gpu, both if settings.host_kv_tokens else 0)


def least(values: Sequence[float], within: Sequence[int] | None = None) -> list[int]:
    """Positions of the least of `values`, of those in `within` if given (at least one); in order."""
    positions = range(len(values)) if within is None else within
    lowest = min(values[index] for index in positions)
    return [index for index in positions if values[index] == lowest]


def among(positions: Sequence[int], chance: float) -> int:
    """One of `positions` (at least one), each as likely; `chance` uniform in [0, 1)."""
    return positions[int(chance * len(positions))]
