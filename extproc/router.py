"""Router: one pool's prompt, residency, ledger and anchors -> a choice and its lease.

`choose` is one synchronous step: candidates, chain, key, ring order, policy, lease, residency. So the next
request of the same loop turn sees all of it (a burst never reads a stale zero).

What keys a request says `keying`. An explicit key wins over the prompt: the `ring` policy decides then, so
that equal keys stay together up to the bound.

Never: I/O, clock, chance of its own. The pool is replaced, never edited, by `publish`; ledger, residency,
anchors and answers outlive it.
Called by: exchange; the simulator; `kvring explain`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from extproc import anchor as _anchor
from extproc import answers as _answers
from extproc import chain as _chain
from extproc import choice as _choice
from extproc import homes, keying, subset, tuning
from extproc import ledger as _ledger
from extproc import policy as _policy
from extproc import pool as _pool
from extproc import prompt as _prompt
from extproc import ramp as _ramp
from extproc import request as _request
from extproc import residency as _residency
from extproc import ring as _ring
from extproc import sent as _sent
from extproc import signals as _signals

__all__ = ["Request", "Router", "Settings"]

# The policies that ask nothing about the prompt: no key of any kind changes what they do.
_CHAINLESS = {"round_robin", "random"}
_KEYLESS = {*_CHAINLESS, "least_load"}


Settings = tuning.Settings
Request = _request.Request


class Router:
    """Chooses for one pool. Not thread-safe: one event loop, or one simulator, calls it."""

    __slots__ = (
        "_anchors", "_kv_tokens", "_turns", "answers", "ledger", "pool", "ramp", "residency", "ring", "sent",
        "settings", "signals",
    )  # fmt: skip

    def __init__(self, pool: _pool.Pool, settings: Settings) -> None:
        """Start with empty state over `pool`."""
        self.settings = settings
        self.pool = pool
        self.ring = _ring.Ring(pool.membership, settings.ring_points)
        self.ledger = _ledger.Ledger(settings.prefill_tokens_per_s)
        self.residency = _residency.Residency(tuning.capacity(settings), settings.residency_idle_s)
        self.answers = _answers.Answers(settings.answers_max)
        self._anchors = _anchor.Anchors(half_life_s=settings.anchor_half_life_s)
        self._turns = dict.fromkeys(_policy.POLICIES, 0)
        self._kv_tokens: dict[_pool.EndpointId, int] = {}  # of those that are known not to be as configured
        self.ramp = _ramp.Ramp(settings.slow_start_s)
        self.sent = _sent.Record()
        self.signals = _signals.Board(settings.signals_age_max_s)

    def publish(self, pool: _pool.Pool) -> None:
        """Replace the pool. Endpoints that left are forgotten; their open leases end harmlessly."""
        if pool.membership != self.pool.membership:
            self.ring = _ring.Ring(pool.membership, self.settings.ring_points)
            members = {endpoint.id for endpoint in pool.endpoints}
            for kept in (self.ledger, self.residency, self.ramp, self.sent, self.signals):
                kept.retain(members)
            self._kv_tokens = {name: size for name, size in self._kv_tokens.items() if name in members}
        self.pool = pool

    def restart(self, endpoint: _pool.EndpointId, now: float) -> None:
        """Its process is a new one: what it held is gone, but for what it shares with others; it ramps up."""
        self.residency.forget(endpoint)
        self.signals.drop(endpoint)
        self.ramp.begin(endpoint, now)

    def resize(self, endpoint: _pool.EndpointId, kv_tokens: float, host_kv_tokens: float) -> None:
        """Count on so much KV cache at `endpoint` [tokens]."""
        own = replace(self.settings, kv_tokens=round(kv_tokens), host_kv_tokens=round(host_kv_tokens))
        capacity = tuning.capacity(own)
        self.residency.resize(endpoint, capacity.gpu_blocks, capacity.host_blocks)
        self._kv_tokens[endpoint] = max(round(kv_tokens), 1)

    def retune(self, prefill_tokens_per_s: float, bytes_per_token: float) -> None:
        """Reckon with these from now on. The chains stay as they are."""
        self.settings = replace(
            self.settings, prefill_tokens_per_s=prefill_tokens_per_s, bytes_per_token=bytes_per_token
        )
        self.ledger.prefill_tokens_per_s = prefill_tokens_per_s

    def choose(
        self,
        prompt: _prompt.Prompt | _prompt.Unkeyed,
        now: float,
        chance: float,
        allowed: Collection[str] | None = None,
        key: str | None = None,
        model: str | None = None,
    ) -> _choice.Decision | _choice.NoEndpoint:
        """The endpoint for `prompt`, with the lease already taken.

        Args:
            prompt: what the engine will prefill, or why that is not known.
            now: monotonic time [s].
            chance: uniform in [0, 1).
            allowed: addresses the gateway allows; None allows all.
            key: the request's explicit key from a header; None if it has none.
            model: that must be served, where `prompt` does not tell it.
        """
        return self.place(self.read(prompt, key, model), now, chance, allowed)

    def place(
        self, request: Request, now: float, chance: float, allowed: Collection[str] | None = None
    ) -> _choice.Decision | _choice.NoEndpoint:
        """As `choose`, of a request that was read already."""
        endpoints = self.pool.ready if request.model is None else self.pool.serving(request.model)
        if not endpoints and allowed is None:
            return self._nobody(_choice.Why.NO_ENDPOINT, refuse=self.settings.refuses_empty)
        if allowed is not None:  # by the protocol: nobody outside, not even by Envoy's own balancing
            endpoints = subset.within(endpoints, allowed)
            if not endpoints:
                return self._nobody(_choice.Why.SUBSET, refuse=True)
        if self.settings.inflight_max:
            endpoints = tuple(e for e in endpoints if self._inflight(e.id, now) < self.settings.inflight_max)
            if not endpoints:
                return self._nobody(_choice.Why.SATURATED, refuse=True)
        key = keying.key_of(request, self._anchors, self.answers, len(self.pool.endpoints), now)
        return self._decide(endpoints, request, key, now, chance)

    def is_anchored(self, prompt: _prompt.Prompt) -> bool:
        """Whether more of a prompt that was cut off would not change its ring key; counts nothing."""
        if prompt.cache_key is not None or prompt.previous_response is not None:
            return True
        chain = _request.chain_of(prompt, self.settings)
        return self._anchors.locate(chain, len(self.pool.endpoints)).settled

    def served(self, decision: _choice.Decision, address: str, now: float) -> _pool.EndpointId | None:
        """Envoy sent the request to `address`: lease and residency are put right if that was not the choice.

        Returns the endpoint there; None if it is none of the pool: the lease is released then.
        """
        chosen = decision.choice.endpoint
        found = next((e for e in self.pool.endpoints if e.address == address), None)
        if found is not None and found.id == chosen.id:
            return found.id
        noted = decision.noted
        if noted is not None:
            self.residency.retract(chosen.id, noted.chain, noted.held, noted.noted_s)
        if found is None:
            decision.lease.release()
            return None
        cached = 0.0
        if noted is not None:
            held = self.residency.match(found.id, noted.chain, now).gpu_blocks
            cached = held * self.settings.block_bytes / self.settings.bytes_per_token
            self.residency.add(found.id, noted.chain, now)
        decision.lease.move(found.id, max(round(decision.choice.prompt_tokens - cached), 0), now)
        return found.id

    def read(
        self, prompt: _prompt.Prompt | _prompt.Unkeyed, key: str | None = None, model: str | None = None
    ) -> Request:
        """The request of `prompt`; `key` is its explicit key from a header; `model` as in `choose`."""
        return _request.read(prompt, self.settings, key, model)

    def chain_of(self, prompt: _prompt.Prompt) -> _chain.Chain:
        """The chain of `prompt` under this pool's block size."""
        return _request.chain_of(prompt, self.settings)

    def _nobody(self, why: _choice.Why, *, refuse: bool) -> _choice.NoEndpoint:
        pool = self.pool
        return _choice.NoEndpoint(len(pool.endpoints), len(pool.ready), pool.name, why, refuse)

    def _inflight(self, endpoint: _pool.EndpointId, now: float) -> float:
        _, foreign = self.signals.load(endpoint, self.sent.to(endpoint).uncached_tokens, now)
        return self.ledger.load(endpoint, now).inflight + foreign

    def _decide(
        self,
        endpoints: Sequence[_pool.Endpoint],
        request: Request,
        key: keying.Key,
        now: float,
        chance: float,
    ) -> _choice.Decision:
        footprint = self._footprint(request)
        candidates = [self._candidate(endpoint, request, footprint, now) for endpoint in endpoints]
        name = self._policy_for(key)
        # Counted by policy: keyed requests that come in step must not fix whose turn the others find.
        turn = self._turns[name]
        self._turns[name] += 1

        def ring_order() -> Iterator[int]:
            if key.value is None:
                return ((turn + step) % len(endpoints) for step in range(len(endpoints)))
            position = {endpoint.id: index for index, endpoint in enumerate(endpoints)}
            order = homes.order(self.ring, key.value, position, key.hot, key.first)
            return (position[name] for name in order)

        limits = self.settings.limits
        question = _policy.Question(candidates, request.tokens, ring_order, limits, turn, chance)
        pick = _policy.POLICIES[name](question)
        chosen = candidates[pick.index]
        made = _choice.Choice(
            endpoint=chosen.endpoint,
            alternates=self._alternates(pick, candidates, ring_order),
            policy=name,
            reason=pick.reason,
            unkeyed=request.unkeyed,
            keyed_by=key.by,
            key=key.value,
            anchor_block=key.anchor_block,
            chain_blocks=0 if request.chain is None else len(request.chain),
            ring_steps=pick.ring_steps,
            work_seen=chosen.work,
            prompt_tokens=request.tokens,
            cached_tokens=chosen.cached_tokens,
            candidates=tuple(endpoint.id for endpoint in endpoints),
            costs=pick.costs,
            pool=self.pool.name,
            signals=self.signals.age(chosen.endpoint.id, now),
        )
        noted = None
        if request.chain is not None and request.prefills:
            held = self.residency.add(chosen.endpoint.id, request.chain, now)
            noted = _choice.Noted(request.chain, held, now)
        # The lease comes last: a fault before it leaves nothing to release.
        uncached = max(round(request.tokens - chosen.cached_tokens), 0) if request.prefills else 0
        if request.prefills:
            read = 0.0 if request.chain is None else request.tokens
            self.sent.count(
                chosen.endpoint.id,
                uncached,
                read,
                chosen.gpu_tokens,
                chosen.cached_tokens,
                read * self.settings.bytes_per_token,
            )
        lease = self.ledger.take(chosen.endpoint.id, uncached, now, footprint)
        return _choice.Decision(made, lease, noted)

    def _policy_for(self, key: keying.Key) -> str:
        name = self.settings.policy
        if name in _KEYLESS:
            return name
        if key.by is _choice.KeyedBy.NOTHING:
            return "least_load"
        return name if key.by is _choice.KeyedBy.ANCHOR else "ring"

    def _footprint(self, request: Request) -> _ledger.Footprint:
        if not request.prefills:
            return _ledger.Footprint()
        hashes = () if request.chain is None else request.chain.hashes
        block_tokens = self.settings.block_bytes / self.settings.bytes_per_token
        return _ledger.footprint(hashes, block_tokens, request.tokens)

    def _candidate(
        self, endpoint: _pool.Endpoint, request: Request, footprint: _ledger.Footprint, now: float
    ) -> _policy.Candidate:
        load = self.ledger.load(endpoint.id, now)
        cached = gpu = 0.0
        if request.chain is not None:
            match = self.residency.match(endpoint.id, request.chain, now)
            colder = match.any_blocks - match.gpu_blocks
            blocks = match.gpu_blocks + colder * (1 - self.settings.host_load_cost)
            tokens_per_block = self.settings.block_bytes / self.settings.bytes_per_token
            cached, gpu = blocks * tokens_per_block, match.gpu_blocks * tokens_per_block
            if match.any_blocks and match.any_blocks == len(request.chain):
                cached += request.unread_tokens  # who holds all we can see holds, most likely, the rest
        sent_tokens = self.sent.to(endpoint.id).uncached_tokens
        told, foreign = self.signals.load(endpoint.id, sent_tokens, now)
        counted = self.ledger.kv_after(endpoint.id, footprint) / self._kv_tokens.get(
            endpoint.id, self.settings.kv_tokens
        )
        return _policy.Candidate(
            endpoint,
            load.inflight + foreign,
            load.pending,
            cached,
            kv_usage=max(counted, told or 0.0),
            share=self.ramp.share(endpoint.id, now),
            gpu_tokens=gpu,
        )

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
