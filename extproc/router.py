"""Router: one pool's prompt, residency, ledger and anchors -> a choice and its lease.

`choose` is one synchronous step: candidates, chain, anchor, ring order, policy, lease, residency. So the next
request of the same loop turn sees all of it (a burst never reads a stale zero).

Never: I/O, clock, chance of its own. The pool is replaced, never edited, by `publish`; ledger, residency and
anchors outlive it.
Called by: exchange; the simulator; `kvring explain`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from extproc import anchor as _anchor
from extproc import chain as _chain
from extproc import ledger as _ledger
from extproc import policy as _policy
from extproc import pool as _pool
from extproc import prompt as _prompt
from extproc import residency as _residency
from extproc import ring as _ring

__all__ = ["Choice", "Decision", "NoEndpoint", "Router", "Settings"]

_CHAINLESS = {"round_robin", "random"}  # the policies that ask nothing about the prompt anyway


@dataclass(frozen=True, slots=True)
class Settings:
    """One pool's tuning. Units in the names; what each is worth is in docs/configuration.md."""

    policy: str = "cost"
    limits: _policy.Limits = field(default_factory=_policy.Limits)
    ring_points: int = _ring.POINTS
    block_bytes: int = 256
    blocks_max: int = 8192
    bytes_per_token: float = 4.0
    prefill_tokens_per_s: float = 8000.0
    kv_tokens: int = 400_000
    host_kv_tokens: int = 0
    external_kv_tokens: int = 0
    host_load_cost: float = 0.1
    residency_idle_s: float = 1200.0
    anchor_half_life_s: float = 300.0
    alternates: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision and its explanation; metrics, log, trace and `explain` are readers of it.

    `alternates`: where to retry, in order. `unkeyed`: why there was no chain, None if there was one.
    `ring_steps`: endpoints passed over in ring order. `work_seen`: at the chosen one before this request
    [tokens]. `cached_tokens`: of `prompt_tokens`, what the chosen one is thought to hold.
    `costs`: by candidate, () if the policy computes none.
    """

    endpoint: _pool.Endpoint
    alternates: tuple[_pool.Endpoint, ...]
    policy: str
    reason: _policy.Reason
    unkeyed: _prompt.Unkeyed | None
    ring_steps: int
    work_seen: int
    prompt_tokens: float
    cached_tokens: float
    chain: _chain.Chain | None
    anchor: _anchor.Anchor | None
    candidates: tuple[_pool.EndpointId, ...]
    costs: tuple[float, ...]

    @property
    def addresses(self) -> str:
        """What Envoy is told: the endpoint, then the alternates, "ip:port,ip:port"."""
        return ",".join(endpoint.address for endpoint in (self.endpoint, *self.alternates))


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice, and the lease that must be released when the request is over."""

    choice: Choice
    lease: _ledger.Lease


@dataclass(frozen=True, slots=True)
class NoEndpoint:
    """Nobody to choose: the pool is empty, nobody is ready, or the gateway's subset names nobody ready."""

    in_pool: int
    ready: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is known of one request."""

    chain: _chain.Chain | None = None
    anchor: _anchor.Anchor | None = None
    tokens: float = 0.0
    unkeyed: _prompt.Unkeyed | None = None


class Router:
    """Chooses for one pool. Not thread-safe: one event loop, or one simulator, calls it."""

    __slots__ = ("_anchors", "_turns", "ledger", "pool", "residency", "ring", "settings")

    def __init__(self, pool: _pool.Pool, settings: Settings) -> None:
        """Start with empty state over `pool`."""
        self.settings = settings
        self.pool = pool
        self.ring = _ring.Ring(pool.membership, settings.ring_points)
        self.ledger = _ledger.Ledger(settings.prefill_tokens_per_s)
        self.residency = _residency.Residency(_capacity(settings), settings.residency_idle_s)
        self._anchors = _anchor.Anchors(half_life_s=settings.anchor_half_life_s)
        self._turns = dict.fromkeys(_policy.POLICIES, 0)

    def publish(self, pool: _pool.Pool) -> None:
        """Replace the pool. Endpoints that left are forgotten; their open leases end harmlessly."""
        if pool.membership != self.pool.membership:
            self.ring = _ring.Ring(pool.membership, self.settings.ring_points)
            members = {endpoint.id for endpoint in pool.endpoints}
            self.ledger.retain(members)
            self.residency.retain(members)
        self.pool = pool

    def choose(
        self,
        prompt: _prompt.Prompt | _prompt.Unkeyed,
        now: float,
        chance: float,
        subset: Collection[str] | None = None,
    ) -> Decision | NoEndpoint:
        """The endpoint for `prompt`, with the lease already taken.

        Args:
            prompt: what the engine will prefill, or why that is not known.
            now: monotonic time [s].
            chance: uniform in [0, 1).
            subset: addresses the gateway allows; None allows all.
        """
        endpoints = self.pool.ready
        if subset is not None:
            endpoints = tuple(endpoint for endpoint in endpoints if endpoint.address in subset)
        if not endpoints:
            return NoEndpoint(len(self.pool.endpoints), len(self.pool.ready))
        if isinstance(prompt, _prompt.Unkeyed):
            return self._decide(endpoints, _Asked(unkeyed=prompt), now, chance)
        chain = self.chain_of(prompt)
        anchor = self._anchors.observe(chain, len(self.pool.endpoints), now)
        tokens = len(prompt.text) / self.settings.bytes_per_token
        return self._decide(endpoints, _Asked(chain, anchor, tokens), now, chance)

    def chain_of(self, prompt: _prompt.Prompt) -> _chain.Chain:
        """The chain of `prompt` under this pool's block size."""
        seed = _chain.seed_of(prompt.seeds)
        return _chain.build(seed, prompt.text, self.settings.block_bytes, self.settings.blocks_max)

    def _decide(
        self,
        endpoints: Sequence[_pool.Endpoint],
        asked: _Asked,
        now: float,
        chance: float,
    ) -> Decision:
        chain, anchor, tokens = asked.chain, asked.anchor, asked.tokens
        candidates = [self._candidate(endpoint, chain, now) for endpoint in endpoints]

        name = self.settings.policy
        if chain is None and name not in _CHAINLESS:
            name = "least_load"
        # Counted by policy: keyed requests that come in step must not fix whose turn the others find.
        turn = self._turns[name]
        self._turns[name] += 1

        def ring_order() -> Iterator[int]:
            if anchor is None:
                return ((turn + step) % len(endpoints) for step in range(len(endpoints)))
            position = {endpoint.id: index for index, endpoint in enumerate(endpoints)}
            return (position[name] for name in self.ring.order(anchor.key, position.keys()))

        question = _policy.Question(candidates, tokens, ring_order, self.settings.limits, turn, chance)
        pick = _policy.POLICIES[name](question)
        chosen = candidates[pick.index]
        uncached = max(round(tokens - chosen.cached_tokens), 0)
        lease = self.ledger.take(chosen.endpoint.id, uncached, now)
        if chain is not None:
            self.residency.add(chosen.endpoint.id, chain, now)
        choice = Choice(
            endpoint=chosen.endpoint,
            alternates=self._alternates(pick, candidates, ring_order),
            policy=name,
            reason=pick.reason,
            unkeyed=asked.unkeyed,
            ring_steps=pick.ring_steps,
            work_seen=chosen.work,
            prompt_tokens=tokens,
            cached_tokens=chosen.cached_tokens,
            chain=chain,
            anchor=anchor,
            candidates=tuple(endpoint.id for endpoint in endpoints),
            costs=pick.costs,
        )
        return Decision(choice, lease)

    def _candidate(
        self, endpoint: _pool.Endpoint, chain: _chain.Chain | None, now: float
    ) -> _policy.Candidate:
        load = self.ledger.load(endpoint.id, now)
        cached = 0.0
        if chain is not None:
            match = self.residency.match(endpoint.id, chain, now)
            colder = match.any_blocks - match.gpu_blocks
            blocks = match.gpu_blocks + colder * (1 - self.settings.host_load_cost)
            cached = blocks * self.settings.block_bytes / self.settings.bytes_per_token
        return _policy.Candidate(endpoint, load.inflight, load.pending, cached)

    def _alternates(
        self, pick: _policy.Pick, candidates: Sequence[_policy.Candidate], ring_order: _policy.RingOrder
    ) -> tuple[_pool.Endpoint, ...]:
        wanted = self.settings.alternates
        if not wanted:
            return ()
        if pick.costs:
            ranked: Sequence[int] = sorted(range(len(candidates)), key=pick.costs.__getitem__)
        else:
            ranked = list(ring_order())
        others = [candidates[index].endpoint for index in ranked if index != pick.index]
        return tuple(others[:wanted])


def _capacity(settings: Settings) -> _residency.Capacity:
    """Tokens of KV cache as blocks of the chain."""
    per_block = settings.block_bytes / settings.bytes_per_token

    def blocks(tokens: int) -> int:
        return int(tokens / per_block)

    return _residency.Capacity(
        blocks(settings.kv_tokens),
        blocks(settings.kv_tokens + settings.host_kv_tokens) if settings.host_kv_tokens else 0,
        blocks(settings.external_kv_tokens),
    )
