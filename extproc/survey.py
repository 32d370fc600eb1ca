"""Survey: what is known of all candidates for one prompt, in columns, one value for each.

    work = pending + 512 * inflight, each of them divided by share

`inflight` includes requests of others that the engine tells, `share` is 1 but for endpoints that are new (see
`ramp`). Of the prompt's tokens those count as cached that some tier holds, less the time it takes to load
them; where it goes on behind an earlier prompt, the answer to that one too, as long as answers are expected
to be. KV usage is what open requests and this one would hold, as counted here or as the engine tells,
whichever is more.

Grows with the candidates: some tenths of a microsecond each; nothing is made for a candidate.
Never: changes anything. Called by: router.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import msgspec

from extproc import candidates as _candidates
from extproc import footprint as _footprint
from extproc import ledger as _ledger
from extproc import policy, pool, ramp, residency, sent, signals, tuning
from extproc import request as _request

__all__ = ["Columns", "Look", "Survey"]


class Columns(msgspec.Struct):
    """By candidate, as in `policy.Question`."""

    inflight: list[float]
    pending: list[float]
    work: list[float]
    kv_tokens: list[int]
    cached: list[float]
    kv_usage: list[float]


class Look(msgspec.Struct):
    """As in `policy.Look`."""

    displaced_s: Callable[[int], float]
    kv_taken: Callable[[int], float]
    has_new_crowd: Callable[[int], bool]


class Survey:
    """Reads what the mutable parts of a router know."""

    __slots__ = ("_kv_tokens", "_ledger", "_ramp", "_residency", "_sent", "_signals")

    def __init__(
        self,
        book: _ledger.Ledger,
        cache: residency.Residency,
        starts: ramp.Ramp,
        record: sent.Record,
        board: signals.Board,
    ) -> None:
        """Of these; they may change, and stay the same objects."""
        self._ledger = book
        self._residency = cache
        self._ramp = starts
        self._sent = record
        self._signals = board
        self._kv_tokens: dict[pool.EndpointId, int] = {}  # of those that are known not to be as configured

    def resize(self, endpoint: pool.EndpointId, kv_tokens: int) -> None:
        """The KV cache of `endpoint` is so large [tokens, > 0]."""
        self._kv_tokens[endpoint] = kv_tokens

    def retain(self, members: Collection[pool.EndpointId]) -> None:
        """Forget endpoints that are not in `members`."""
        self._kv_tokens = {name: size for name, size in self._kv_tokens.items() if name in members}

    def columns(
        self,
        found: _candidates.Candidates,
        request: _request.Request,
        held: residency.Held,
        footprint: _footprint.Footprint,
        settings: tuning.Settings,
        now: float,
    ) -> Columns:
        """What is known at `now` [s, monotonic]; `held`: of the chain; `footprint`: of the prompt."""
        requests, waiting, kv_tokens = self._ledger.loads(found.names, now)
        told = self._add_foreign(found, requests, now)
        inflight: list[float] = [*requests]
        pending: list[float] = [*waiting]
        if self._ramp:
            shares = [self._ramp.share(name, now) for name in found.names]
            inflight = [each / share for each, share in zip(requests, shares, strict=True)]
            pending = [each / share for each, share in zip(waiting, shares, strict=True)]
        work = [
            tokens + _ledger.REQUEST_TOKENS * count for tokens, count in zip(pending, inflight, strict=True)
        ]
        usage = self._kv_usage(found, footprint, kv_tokens, told, settings.kv_tokens)
        return Columns(inflight, pending, work, kv_tokens, _cached(found, request, held, settings), usage)

    def count_unheard(
        self,
        known: Columns,
        found: _candidates.Candidates,
        footprint: _footprint.Footprint,
        shared_blocks: int,
        settings: tuning.Settings,
        now: float,
    ) -> None:
        """Count the KV that requests of others hold as taken beside that of our own.

        Args: shared_blocks: how much of the prompt is a prefix that many have, so that others hold it open.
        """
        shared_tokens = shared_blocks * settings.block_bytes / settings.bytes_per_token
        for index, name in enumerate(found.names):
            foreign = self._signals.foreign_kv_tokens(name, now) - shared_tokens
            if foreign > 0:
                taken = self._ledger.kv_after(name, footprint) + foreign
                size = self._kv_tokens.get(name, settings.kv_tokens)
                known.kv_usage[index] = max(known.kv_usage[index], taken / size)

    def look(
        self,
        known: Columns,
        found: _candidates.Candidates,
        request: _request.Request,
        footprint: _footprint.Footprint,
        settings: tuning.Settings,
    ) -> Look:
        """At single candidates, beside what is `known`."""

        def displaced_s(index: int) -> float:
            more = max(request.tokens - known.cached[index], 0.0)
            blocks = math.ceil(more * settings.bytes_per_token / settings.block_bytes)
            return self._residency.displaced_s(found.names[index], blocks)

        def kv_taken(index: int) -> float:
            name = found.names[index]
            size = self._kv_tokens.get(name, settings.kv_tokens)
            return max(known.kv_usage[index], self._ledger.kv_after(name, footprint) / size)

        def has_new_crowd(index: int) -> bool:
            return self._ledger.has_new_crowd(found.names[index])

        return Look(displaced_s, kv_taken, has_new_crowd)

    def _add_foreign(
        self, found: _candidates.Candidates, inflight: list[int], now: float
    ) -> list[float] | None:
        """KV usage that the engines tell, None if none does; requests of others are added to `inflight`."""
        if not self._signals:
            return None
        usage = [0.0] * len(found)
        for index, name in enumerate(found.names):
            told, foreign = self._signals.load(name, self._sent.to(name).uncached_tokens, now)
            usage[index] = told or 0.0
            inflight[index] += foreign
        return usage

    def _kv_usage(
        self,
        found: _candidates.Candidates,
        footprint: _footprint.Footprint,
        kv_tokens: list[int],
        told: list[float] | None,
        usual: int,
    ) -> list[float]:
        """Share of each one's KV cache that is taken with this prompt; exact where space is short."""
        own, sizes = footprint.tokens, self._kv_tokens
        usage = [0.0] * len(found)
        if max(kv_tokens) + own > policy.KV_USAGE_FREE * min((usual, *sizes.values())):
            for index, name in enumerate(found.names):
                size = sizes.get(name, usual)
                if kv_tokens[index] + own > policy.KV_USAGE_FREE * size:  # some of it may be shared
                    usage[index] = self._ledger.kv_after(name, footprint) / size
        if told is not None:
            usage = list(map(max, usage, told))
        return usage


def _cached(
    found: _candidates.Candidates,
    request: _request.Request,
    held: residency.Held,
    settings: tuning.Settings,
) -> list[float]:
    """Tokens of the prompt that each candidate holds; those of colder tiers count less."""
    if request.chain is None:
        return [0.0] * len(found)
    per_block = settings.block_bytes / settings.bytes_per_token
    gpu = held.gpu
    if not (held.host or held.external):
        cached = [gpu.get(name, 0) * per_block for name in found.names]
    else:
        cost = settings.host_load_cost
        matches = [held.of(name) for name in found.names]
        cached = [
            (match.any_blocks - (match.any_blocks - match.gpu_blocks) * cost) * per_block for match in matches
        ]
    if held.answered:
        # The answer, and what of the earlier prompt filled no block.
        answer_tokens = _footprint.OUTPUT_TOKENS + per_block / 2
        for name in held.answered:
            index = found.position.get(name)
            if index is not None:
                cached[index] += answer_tokens
    if request.unread_tokens and len(request.chain):
        # Who holds all we can see holds, most likely, the rest.
        for index, name in enumerate(found.names):
            if held.of(name).any_blocks == len(request.chain):
                cached[index] += request.unread_tokens
    if max(cached) > request.tokens:
        cached = [min(tokens, request.tokens) for tokens in cached]
    return cached
