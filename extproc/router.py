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

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

from extproc import anchor as _anchor
from extproc import answers as _answers
from extproc import apart as _apart
from extproc import candidates as _candidates
from extproc import chain as _chain
from extproc import choice as _choice
from extproc import footprint as _footprint
from extproc import homes, keying, request, subset, tuning
from extproc import ledger as _ledger
from extproc import outbox as _outbox
from extproc import policy as _policy
from extproc import pool as _pool
from extproc import prompt as _prompt
from extproc import ramp as _ramp
from extproc import residency as _residency
from extproc import ring as _ring
from extproc import sent as _sent
from extproc import signals as _signals
from extproc import survey as _survey

__all__ = ["Preview", "Request", "Router", "Settings"]

# The policies that ask nothing about the prompt: no key of any kind changes what they do.
_CHAINLESS = {"round_robin", "random"}
_KEYLESS = {*_CHAINLESS, "least_load"}

_SAME_RESTART_S = 5.0


Preview = request.Preview
Request = request.Request
_Key = keying.Key
Settings = tuning.Settings


class _Weighed(NamedTuple):
    choice: _choice.Choice
    asked: _policy.Question
    held: _residency.Held
    footprint: _footprint.Footprint


class Router:
    """Chooses for one pool. Not thread-safe: one event loop, or one simulator, calls it."""

    __slots__ = (
        "_candidates", "_homes", "_members", "_restarts", "_seats", "_survey", "_turns", "anchors", "answers",
        "ledger", "outbox", "pool", "ramp", "records", "residency", "ring", "sent", "sent_own", "settings",
        "signals", "unheard",
    )  # fmt: skip

    def __init__(self, pool: _pool.Pool, settings: Settings, outbox: _outbox.Outbox | None = None) -> None:
        """Start with empty state over `pool`.

        Args: outbox: where other replicas learn of what happens here; None if there are none.
        """
        self.settings = settings
        self.pool = pool
        self.ring = _ring.Ring(pool.membership, settings.ring_points)
        self._homes = homes.Homes(self.ring)
        self._seats = _apart.Seats(self.ring)  # empty as long as all others are heard
        self._candidates = _candidates.Candidates(pool.ready)
        self.outbox = outbox
        self.ledger = _ledger.Ledger(settings.prefill_tokens_per_s, outbox)
        self.residency = tuning.residency_of(settings)
        self.answers = _answers.Answers(settings.answers_max)
        self.anchors = _anchor.Anchors(half_life_s=settings.anchor_half_life_s)
        self._turns = dict.fromkeys(_policy.POLICIES, 0)
        self.ramp = _ramp.Ramp(settings.slow_start_s)
        self.sent = _sent.Record()  # by all replicas, as far as is known
        self.sent_own = self.sent if outbox is None else _sent.Record()
        self.records = (self.sent,) if outbox is None else (self.sent, self.sent_own)  # of an own request
        self._restarts: dict[_pool.EndpointId, tuple[float, bool]] = {}  # when, and whether seen here
        self._members = {endpoint.id for endpoint in pool.endpoints}
        self.signals = _signals.Board(settings.signals_age_max_s)
        self._survey = _survey.Survey(self.ledger, self.residency, self.ramp, self.sent, self.signals)
        self.unheard = settings.replicas - 1
        """Other replicas of kvring whose dispatches do not reach this one [>= 0]; set by who hears them."""

    def publish(self, pool: _pool.Pool) -> None:
        """Replace the pool. Endpoints that left are forgotten; their open leases end harmlessly."""
        if pool.membership != self.pool.membership:
            self.ring = _ring.Ring(pool.membership, self.settings.ring_points)
            self._homes = homes.Homes(self.ring)
            self._seats = _apart.Seats(self.ring)
            members = {endpoint.id for endpoint in pool.endpoints}
            for kept in (self.ledger, self.residency, self.ramp, *self.records, self.signals):
                kept.retain(members)
            self._survey.retain(members)
            self._members = members
            self._restarts = {name: last for name, last in self._restarts.items() if name in members}
        self.pool = pool

    def has(self, endpoint: str) -> bool:
        """Whether `endpoint` is a member of the pool, ready or not."""
        return endpoint in self._members

    def restart(self, endpoint: _pool.EndpointId, now: float, *, told: bool = True) -> None:
        """Its process is a new one: what it held is gone, but for what it shares with others; it ramps up.

        Args: told: whether other replicas should hear of it; False: one of them saw it. A restart that one
            saw before another did is one restart.
        """
        at_s, seen_here = self._restarts.get(endpoint, (-math.inf, told))
        if now - at_s < _SAME_RESTART_S and not (told and seen_here):
            self._restarts[endpoint] = at_s, seen_here or told  # seen here again, it is another one
            return
        self._restarts[endpoint] = now, told
        if told and self.outbox is not None:
            self.outbox.restarted(self.pool.name, endpoint)
        self.residency.forget(endpoint)
        self.signals.drop(endpoint)
        self.ramp.begin(endpoint, now)

    def replace(self, endpoint: _pool.EndpointId, now: float) -> None:
        """Another endpoint has taken over its name: as `restart`, and what is open is not open there."""
        self.restart(endpoint, now)
        self.ledger.forget(endpoint)
        for record in self.records:
            record.forget(endpoint)

    def answered(self, answer: str, endpoint: _pool.EndpointId, now: float) -> None:
        """Note that `endpoint` gave the stored answer of this id."""
        key = self.answers.remember(answer, endpoint, now)
        if self.outbox is not None:
            self.outbox.answered(self.pool.name, endpoint, key)

    def resize(self, endpoint: _pool.EndpointId, kv_tokens: float, host_kv_tokens: float) -> None:
        """Count on so much KV cache at `endpoint` [tokens]."""
        own = replace(self.settings, kv_tokens=round(kv_tokens), host_kv_tokens=round(host_kv_tokens))
        capacity = tuning.capacity(own)
        self.residency.resize(endpoint, capacity.gpu_blocks, capacity.host_blocks)
        self._survey.resize(endpoint, max(round(kv_tokens), 1))

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
        found = self._who(request, allowed, now)
        if isinstance(found, _choice.NoEndpoint):
            return found
        key = keying.key_of(request, self.anchors, self.answers, len(self.pool.endpoints), now)
        if self.unheard and key.lone is not None:
            self._seats.take(key.lone, now)
        return self._decide(found, request, key, now, chance)

    def preview(self, request: Request, now: float, chance: float) -> Preview | _choice.NoEndpoint:
        """What `place` would choose now; nothing is taken or counted."""
        found = self._who(request, None, now)
        if isinstance(found, _choice.NoEndpoint):
            return found
        size = len(self.pool.endpoints)
        key = keying.key_of(request, self.anchors, self.answers, size, now, counts=False)
        made, asked, _, _ = self._weigh(found, request, key, now, chance)
        order = () if key.value is None else tuple(found.names[at] for at in asked.ring_order())
        return Preview(made, found.names, asked, order)

    def is_anchored(self, prompt: _prompt.Prompt) -> bool:
        """Whether more of a prompt that was cut off would not change its ring key; counts nothing."""
        if prompt.cache_key is not None or prompt.previous_response is not None:
            return True
        return self.anchors.is_settled(self.chain_of(prompt), len(self.pool.endpoints))

    def _who(
        self, request: Request, allowed: Collection[str] | None, now: float
    ) -> _candidates.Candidates | _choice.NoEndpoint:
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
        if self._candidates.endpoints is not endpoints:  # else it is as it was the last time
            self._candidates = _candidates.Candidates(endpoints)
        return self._candidates

    def _nobody(self, why: _choice.Why, *, refuse: bool) -> _choice.NoEndpoint:
        return _choice.NoEndpoint(len(self.pool.endpoints), len(self.pool.ready), self.pool.name, why, refuse)

    def _inflight(self, endpoint: _pool.EndpointId, now: float) -> float:
        _, foreign = self.signals.load(endpoint, self.sent.to(endpoint).uncached_tokens, now)
        return self.ledger.load(endpoint, now).inflight + foreign

    def read(
        self, prompt: _prompt.Prompt | _prompt.Unkeyed, key: str | None = None, model: str | None = None
    ) -> Request:
        """The request of `prompt`; `key` is its explicit key from a header; `model` as in `choose`."""
        return request.read(prompt, self.settings, key, model)

    def chain_of(self, prompt: _prompt.Prompt) -> _chain.Chain:
        """The chain of `prompt` under this pool's block size."""
        return request.chain_of(prompt, self.settings)

    def _decide(
        self, found: _candidates.Candidates, request: Request, key: _Key, now: float, chance: float
    ) -> _choice.Decision:
        made, _, held, footprint = self._weigh(found, request, key, now, chance)
        # Counted by policy: keyed requests that come in step must not fix whose turn the others find.
        self._turns[made.policy] += 1
        chosen = made.endpoint.id
        # The lease comes last: a fault before it leaves nothing to release.
        uncached, gpu_tokens, cached = 0, 0.0, made.cached_tokens
        noted = None
        if request.prefills:
            uncached = max(round(request.tokens - cached), 0)
            if request.chain is not None:
                noted = _choice.Noted(request.chain, self.residency.add(chosen, request.chain, now), now)
            read = 0.0 if request.chain is None else request.tokens
            gpu_tokens = held.of(chosen).gpu_blocks * self.block_tokens
            read_bytes = read * self.settings.bytes_per_token
            for record in self.records:
                record.to(chosen).add(uncached, read, gpu_tokens, cached, read_bytes)
        lease = self.ledger.take(chosen, uncached, now, footprint)
        if self.outbox is not None:
            lease.number = self.outbox.dispatched(
                self.pool.name, chosen, () if request.chain is None else request.chain.hashes, held.most,
                request.tokens, uncached, gpu_tokens, cached, request.prefills,
            )  # fmt: skip
        return _choice.Decision(made, lease, noted)

    def _weigh(
        self, found: _candidates.Candidates, request: Request, key: _Key, now: float, chance: float
    ) -> _Weighed:
        """The choice; nothing is taken or counted yet."""
        footprint = request.footprint(self.block_tokens)
        held = _residency.NOTHING if request.chain is None else self.residency.held(request.chain, now)
        name = self._policy_for(key)
        turn = self._turns[name]

        def ring_order() -> Iterator[int]:
            count = len(found)
            if key.value is None:
                return ((turn + step) % count for step in range(count))
            first = self._seats.find(key.lone) if self.unheard and key.lone is not None else key.first
            order = self._homes.order(key.value, found.position, key.hot, first)
            return (found.position[name] for name in order)

        known = self._survey.columns(found, request, held, footprint, self.settings, now)
        if self.unheard:
            self._survey.count_unheard(known, found, footprint, key.shared_blocks, self.settings, now)

        if self.unheard and key.by is _choice.KeyedBy.ANCHOR:
            home = next(ring_order())
            known.cached[home] = max(known.cached[home], _apart.PRESUMED_SHARE * request.tokens)
        look = self._survey.look(known, found, request, footprint, self.settings)
        limits = _apart.limits(self.settings.limits, self.unheard, told=bool(self.signals))
        question = _policy.Question(
            known.inflight, known.pending, known.work, known.kv_tokens, known.cached, known.kv_usage,
            request.tokens, ring_order, limits, turn, chance, look,
            key.common_blocks(len(found)) * self.block_tokens, key.shared_blocks * self.block_tokens,
            not self.unheard,
        )  # fmt: skip
        pick = _policy.POLICIES[name](question)
        endpoint = found.endpoints[pick.index]
        cached = question.cached[pick.index]
        made = _choice.Choice(
            endpoint=endpoint,
            alternates=found.alternates(pick, ring_order, self.settings.alternates),
            policy=name,
            reason=pick.reason,
            unkeyed=request.unkeyed,
            keyed_by=key.by,
            key=key.value,
            anchor_block=key.anchor_block,
            chain_blocks=0 if request.chain is None else len(request.chain),
            ring_steps=pick.ring_steps,
            work_seen=int(question.work[pick.index]),
            prompt_tokens=request.tokens,
            cached_tokens=cached,
            candidates=found.names,
            costs=pick.costs,
            pool=self.pool.name,
            signals=self.signals.age(endpoint.id, now),
            mean_cached_tokens=sum(question.cached) / len(found) if request.prefills else cached,
            prefill_tokens_per_s=self.settings.prefill_tokens_per_s,
            limits=request.limits(self.settings.blocks_max),
        )
        return _Weighed(made, question, held, footprint)

    def _policy_for(self, key: _Key) -> str:
        name = self.settings.policy
        if name in _KEYLESS:
            return name
        if key.by is _choice.KeyedBy.NOTHING:
            return "least_load"
        return name if key.by is _choice.KeyedBy.ANCHOR else "ring"

    @property
    def block_tokens(self) -> float:
        """Tokens in a block of the chain, estimated."""
        return self.settings.block_bytes / self.settings.bytes_per_token
