"""Router: one pool's prompt, residency, ledger and anchors -> a choice and its lease.

`choose` is one synchronous step: candidates, chain, key, ring order, policy, lease, residency. So the next
request of the same loop turn sees all of it (a burst never reads a stale zero).

What keys a request: an explicit key (header, then `prompt_cache_key`), else the stored answer it continues,
else its chain's anchor. An explicit key wins over the prompt: the `ring` policy decides then, so that equal
keys stay together up to the bound.

Never: I/O, clock, chance of its own. The pool is replaced, never edited, by `publish`; ledger, residency,
anchors and answers outlive it.
Called by: exchange; the simulator; `kvring explain`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from extproc import anchor as _anchor
from extproc import answers as _answers
from extproc import chain as _chain
from extproc import choice as _choice
from extproc import ledger as _ledger
from extproc import policy as _policy
from extproc import pool as _pool
from extproc import prompt as _prompt
from extproc import residency as _residency
from extproc import ring as _ring

__all__ = ["Router", "Settings"]

# The policies that ask nothing about the prompt: no key of any kind changes what they do.
_CHAINLESS = {"round_robin", "random"}
_KEYLESS = {*_CHAINLESS, "least_load"}


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
    answers_max: int = 65_536
    alternates: int = 0


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is known of one request.

    `first`: an endpoint to try before the ring's. `unread_tokens`: of `tokens`, those behind the chain.
    `prefills`: whether the engine will compute it.
    """

    keyed_by: _choice.KeyedBy = _choice.KeyedBy.NOTHING
    key: int | None = None
    chain: _chain.Chain | None = None
    anchor_block: int | None = None
    first: _pool.EndpointId | None = None
    tokens: float = 0.0
    unread_tokens: float = 0.0
    prefills: bool = True
    unkeyed: _prompt.Unkeyed | None = None


class Router:
    """Chooses for one pool. Not thread-safe: one event loop, or one simulator, calls it."""

    __slots__ = ("_anchors", "_turns", "answers", "ledger", "pool", "residency", "ring", "settings")

    def __init__(self, pool: _pool.Pool, settings: Settings) -> None:
        """Start with empty state over `pool`."""
        self.settings = settings
        self.pool = pool
        self.ring = _ring.Ring(pool.membership, settings.ring_points)
        self.ledger = _ledger.Ledger(settings.prefill_tokens_per_s)
        self.residency = _residency.Residency(_capacity(settings), settings.residency_idle_s)
        self.answers = _answers.Answers(settings.answers_max)
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
        key: str | None = None,
    ) -> _choice.Decision | _choice.NoEndpoint:
        """The endpoint for `prompt`, with the lease already taken.

        Args:
            prompt: what the engine will prefill, or why that is not known.
            now: monotonic time [s].
            chance: uniform in [0, 1).
            subset: addresses the gateway allows; None allows all.
            key: the request's explicit key from a header; None if it has none.
        """
        endpoints = self.pool.ready
        if subset is not None:
            endpoints = tuple(endpoint for endpoint in endpoints if endpoint.address in subset)
        if not endpoints:
            return _choice.NoEndpoint(len(self.pool.endpoints), len(self.pool.ready))
        return self._decide(endpoints, self._asked(prompt, key, now), now, chance)

    def chain_of(self, prompt: _prompt.Prompt) -> _chain.Chain:
        """The chain of `prompt` under this pool's block size."""
        seed = _chain.seed_of(prompt.seeds)
        return _chain.build(seed, prompt.text, self.settings.block_bytes, self.settings.blocks_max)

    def _asked(self, prompt: _prompt.Prompt | _prompt.Unkeyed, key: str | None, now: float) -> _Asked:
        keyed = _choice.KeyedBy
        if isinstance(prompt, _prompt.Unkeyed):
            if key is None:
                return _Asked(unkeyed=prompt)
            return _Asked(keyed.HEADER, _explicit(key), unkeyed=prompt)
        unread = prompt.unread_bytes / self.settings.bytes_per_token
        tokens = len(prompt.text) / self.settings.bytes_per_token + unread
        chain = first = block = ring_key = None
        keyed_by = keyed.NOTHING
        if prompt.unkeyed is None:
            chain = self.chain_of(prompt)
            anchor = self._anchors.observe(chain, len(self.pool.endpoints), now)
            keyed_by, ring_key, block = keyed.ANCHOR, anchor.key, anchor.block
        if prompt.previous_response is not None:
            first = self.answers.find(prompt.previous_response, now)
            if first is not None:
                keyed_by, ring_key = keyed.PREVIOUS, _explicit(prompt.previous_response)
        explicit = key or prompt.cache_key
        if explicit is not None:
            keyed_by = keyed.HEADER if key else keyed.CACHE_KEY
            ring_key, block, first = _explicit(explicit), None, None
        return _Asked(
            keyed_by, ring_key, chain, block, first, tokens, unread, prompt.prefills, prompt.unkeyed
        )

    def _decide(
        self, endpoints: Sequence[_pool.Endpoint], asked: _Asked, now: float, chance: float
    ) -> _choice.Decision:
        candidates = [self._candidate(endpoint, asked, now) for endpoint in endpoints]
        name = self._policy_for(asked)
        # Counted by policy: keyed requests that come in step must not fix whose turn the others find.
        turn = self._turns[name]
        self._turns[name] += 1

        def ring_order() -> Iterator[int]:
            if asked.key is None:
                return ((turn + step) % len(endpoints) for step in range(len(endpoints)))
            return self._ring_order(endpoints, asked.key, asked.first)

        limits = self.settings.limits
        question = _policy.Question(candidates, asked.tokens, ring_order, limits, turn, chance)
        pick = _policy.POLICIES[name](question)
        chosen = candidates[pick.index]
        made = _choice.Choice(
            endpoint=chosen.endpoint,
            alternates=self._alternates(pick, candidates, ring_order),
            policy=name,
            reason=pick.reason,
            unkeyed=asked.unkeyed,
            keyed_by=asked.keyed_by,
            key=asked.key,
            anchor_block=asked.anchor_block,
            chain_blocks=0 if asked.chain is None else len(asked.chain),
            ring_steps=pick.ring_steps,
            work_seen=chosen.work,
            prompt_tokens=asked.tokens,
            cached_tokens=chosen.cached_tokens,
            candidates=tuple(endpoint.id for endpoint in endpoints),
            costs=pick.costs,
        )
        if asked.chain is not None and asked.prefills:
            self.residency.add(chosen.endpoint.id, asked.chain, now)
        # The lease comes last: a fault before it leaves nothing to release.
        uncached = max(round(asked.tokens - chosen.cached_tokens), 0) if asked.prefills else 0
        return _choice.Decision(made, self.ledger.take(chosen.endpoint.id, uncached, now))

    def _policy_for(self, asked: _Asked) -> str:
        name = self.settings.policy
        if name in _KEYLESS:
            return name
        if asked.keyed_by is _choice.KeyedBy.NOTHING:
            return "least_load"
        return name if asked.keyed_by is _choice.KeyedBy.ANCHOR else "ring"

    def _ring_order(
        self, endpoints: Sequence[_pool.Endpoint], key: int, first: _pool.EndpointId | None
    ) -> Iterator[int]:
        position = {endpoint.id: index for index, endpoint in enumerate(endpoints)}
        if first in position:
            yield position[first]
        for name in self.ring.order(key, position.keys()):
            if name != first:
                yield position[name]

    def _candidate(self, endpoint: _pool.Endpoint, asked: _Asked, now: float) -> _policy.Candidate:
        load = self.ledger.load(endpoint.id, now)
        cached = 0.0
        if asked.chain is not None:
            match = self.residency.match(endpoint.id, asked.chain, now)
            colder = match.any_blocks - match.gpu_blocks
            blocks = match.gpu_blocks + colder * (1 - self.settings.host_load_cost)
            cached = blocks * self.settings.block_bytes / self.settings.bytes_per_token
            if match.any_blocks and match.any_blocks == len(asked.chain):
                cached += asked.unread_tokens  # who holds all we can see holds, most likely, the rest
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


def _explicit(key: str) -> int:
    """The ring key of an explicit key; its seed keeps it apart from every chain."""
    return _chain.seed_of((b"explicit", key.encode("utf-8", "surrogatepass")))


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
