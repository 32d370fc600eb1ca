"""Cache-aware: SGLang's router, today SMG: longest match in a tree of what was sent where, unless unbalanced.

    unbalanced = max - min > absolute  and  max > relative * min      (open requests, counted when sent)
    unbalanced:               the one with the fewest open requests
    match > threshold:        who holds the deepest matched block
    else:                     the one with the fewest open requests

Several may hold the deepest block. SMG then takes whichever its hash map lists first and stays with it;
here the first in ring order of that block, as arbitrary and as constant. "Fewest" means the first of the
list on a tie.

Two sets: the defaults .5 / 32 / 1.1, and .3 / 8 / 1.5. The tree is bounded by its size alone, 2^26 characters
an endpoint: it does not know what an engine evicts, nor of restarts.

Called by: the package's table. Simplified: blocks of 64 tokens instead of characters.
Source: SMG, model_gateway/src/policies/cache_aware.rs, crates/kv_index/src/string_tree.rs; its command line.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc import policy, pool, residency, ring, router
from extproc.sim.baselines import baseline

__all__ = ["CacheAware", "CacheAwareTight", "Thresholds", "unbalanced"]

_TREE_CHARACTERS = 2**26


@dataclass(frozen=True, slots=True)
class Thresholds:
    """`match`: share of the prompt [0..1]; `absolute`: open requests; `relative`: ratio."""

    match: float
    absolute: int
    relative: float


def unbalanced(inflight: list[int], thresholds: Thresholds) -> bool:
    """Whether the load alone decides."""
    low, high = min(inflight), max(inflight)
    return high - low > thresholds.absolute and high > thresholds.relative * low


class CacheAware(baseline.Baseline):
    """SGLang/SMG cache_aware, defaults: match > .5, shortest queue beyond 32 and 1.1."""

    name = "cache_aware"
    survives_restart = True
    thresholds = Thresholds(0.5, 32, 1.1)

    def __init__(self, pool: pool.Pool, settings: router.Settings) -> None:
        super().__init__(pool, settings, residency.Capacity(_TREE_CHARACTERS // settings.block_bytes), 1e9)
        self._ring = ring.Ring(pool.membership)

    def publish(self, pool: pool.Pool) -> None:
        """Replace the pool."""
        super().publish(pool)
        self._ring = ring.Ring(pool.membership)

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """By load, or by the deepest match."""
        inflight = asked.inflight
        fewest = baseline.least(inflight)[0]
        chain = asked.request.chain
        if chain is None or unbalanced(inflight, self.thresholds):
            return policy.Pick(fewest, policy.Reason.LEAST_LOAD)
        held = max(asked.held_blocks)
        matched = held * asked.block_tokens / asked.request.tokens if asked.request.tokens else 0.0
        if matched <= self.thresholds.match:
            return policy.Pick(fewest, policy.Reason.LEAST_LOAD)
        deepest = {
            endpoint.id: index
            for index, endpoint in enumerate(asked.endpoints)
            if asked.held_blocks[index] == held
        }
        owner = next(self._ring.order(chain.hashes[held - 1], deepest.keys()))
        return policy.Pick(deepest[owner], policy.Reason.WARM)


class CacheAwareTight(CacheAware):
    """SGLang/SMG cache_aware, balancing sooner: match > .3, shortest queue beyond 8 and 1.5."""

    name = "cache_aware_tight"
    thresholds = Thresholds(0.3, 8, 1.5)
