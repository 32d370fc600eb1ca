"""Ranvier: a prefix's home by jump hash, and two ways to leave it: over the median, or over a bound.

    key     = the leading system messages, or without any the first 128 tokens
    home    = what was learned for the key, else jump_hash(key) over the endpoints sorted by name
    median: = away to the least loaded when load(home) > 2 * median + 2           (the first article's)
    bounded: a cap of max(1, ceil(1.25 * (total + 1) / n)) open requests; from the home on to the next
              bucket below it, else the least loaded                              (today's default)

What is learned is the home, never where a request was diverted to. So a diverted request leaves no trace: the
next one goes home again. The median is the upper one of an even number. Without a chain there is no key, and
the first endpoint takes the request, as in Ranvier.

Invariant: the learned map is bounded. Called by: the package's table.
Source: Ranvier, docs/internals/prefix-affinity-routing.md and src/router_service.cpp (thresholds 2.0 and 2,
epsilon .25, 128 tokens, 100,000 routes, 1 h); J. Lamping, E. Veach, arXiv:1406.2294 (jump hash).
"""

from __future__ import annotations

import math
from collections import OrderedDict

import xxhash

from extproc import policy, pool, router
from extproc.sim import chooser
from extproc.sim.baselines import baseline

__all__ = ["HashBounded", "HashMedian", "cap", "jump_hash", "overloaded"]

_PREFIX_TOKENS = 128
_ROUTES_MAX = 100_000
_ROUTE_S = 3600.0


def overloaded(load: int, loads: list[int]) -> bool:
    """Whether an endpoint with `load` open requests is left: load > 2 * median(loads) + 2."""
    return load > 2 * sorted(loads)[len(loads) // 2] + 2


def cap(total: int, endpoints: int) -> int:
    """Open requests that an endpoint may hold, the new one included [>= 1]."""
    return max(1, math.ceil(1.25 * (total + 1) / endpoints))


def jump_hash(key: int, buckets: int) -> int:
    """The bucket [0..buckets) of `key` [unsigned 64-bit]; one bucket more moves 1 / buckets of all keys."""
    bucket, jump = -1, 0
    while jump < buckets:
        bucket = jump
        key = (key * 2862933555777941757 + 1) % 2**64
        jump = int((bucket + 1) * (2**31 / ((key >> 33) + 1)))
    return bucket


class _Hash(baseline.Baseline):
    """Key, home and what was learned."""

    indexed = False
    _learned: OrderedDict[int, tuple[pool.EndpointId, float]]

    def __init__(self, pool: pool.Pool, settings: router.Settings) -> None:
        super().__init__(pool, settings)
        self._learned = OrderedDict()

    def home(self, asked: baseline.Asked) -> int | None:
        """Position of the key's home, noted as learned; None for a request without a key."""
        key = _key(asked.request, self.block_tokens)
        if key is None:
            return None
        position = {endpoint.id: index for index, endpoint in enumerate(asked.endpoints)}
        name, until_s = self._learned.get(key, (None, 0.0))
        if name is None or name not in position or until_s <= asked.now:
            name = asked.endpoints[jump_hash(key, len(asked.endpoints))].id
        self._learned[key] = (name, asked.now + _ROUTE_S)
        self._learned.move_to_end(key)
        if len(self._learned) > _ROUTES_MAX:
            self._learned.popitem(last=False)
        return position[name]


class HashMedian(_Hash):
    """The first article's: hash home, but the least loaded when the home is over 2 * median + 2."""

    name = "hash_median"

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """The home, or the first of the least loaded."""
        home = self.home(asked)
        if home is None:
            return policy.Pick(0, policy.Reason.HOME)
        inflight = asked.inflight
        if len(inflight) > 1 and overloaded(inflight[home], inflight):
            return policy.Pick(baseline.least(inflight)[0], policy.Reason.OVERFLOW)
        return policy.Pick(home, policy.Reason.HOME)


class HashBounded(_Hash):
    """Ranvier's default: hash home, open requests bounded to 1.25 times the mean, next bucket."""

    name = "hash_bounded"

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """The home or the next bucket with room; the mean always leaves somebody room."""
        home = self.home(asked)
        if home is None:
            return policy.Pick(0, policy.Reason.HOME)
        inflight = asked.inflight
        most = cap(sum(inflight), len(inflight))
        for steps in range(len(inflight)):
            index = (home + steps) % len(inflight)
            if inflight[index] + 1 <= most:
                return policy.Pick(index, policy.Reason.OVERFLOW if steps else policy.Reason.HOME, steps)
        return policy.Pick(baseline.least(inflight)[0], policy.Reason.OVERFLOW)


def _key(request: chooser.Request, block_tokens: float) -> int | None:
    """The hash of what a route is learned for."""
    if request.chain is None:
        return None
    if request.system_tokens:
        return xxhash.xxh3_64_intdigest(f"{request.adapter}\0{request.system}".encode())
    blocks = int(_PREFIX_TOKENS / block_tokens)
    hashes = request.chain.hashes
    return hashes[blocks - 1] if len(hashes) >= blocks else request.chain.tail
