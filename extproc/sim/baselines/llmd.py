"""llm-d: the router's two compositions: three weighted scores, and sticky until saturated.

Weighted: the most of

    3 * match + 2 * queue + 2 * (1 - kv_usage)

match: share of the prompt's blocks held; queue: (longest - own) / (longest - shortest) of the scraped
waiting requests, 1 when all are equal; kv_usage scraped. All but `match` is as old as the scrape
(`SCRAPE_S`: llm-d asks every 50 ms); requests in flight are not counted, so a burst sees one state.

Sticky: candidates are those with match >= .8, unless the least pending of them exceeds the least pending of
the others by more than penalty_s * R_peak tokens (then, or if there are none: all); of the candidates the
least of

    pending + new        (uncached tokens whose first token has not come, and this prompt's own there)

R_peak is calibrated to the engine, as its guide asks; penalty_s is 18 by default, and 2 as a second set.
Equal scores fall by chance. The index takes its capacity from the engines (`autoTune`), blocks of 64
tokens.

Called by: the package's table. Source: llm-d-router, plugins queue-scorer, kv-cache-utilization-scorer,
prefix-cache-scorer, prefix-cache-affinity-filter, token-load-scorer, approx-prefix-cache-producer,
inflight-load-producer (their READMEs); weights of its default profile.
"""

from __future__ import annotations

from extproc import policy
from extproc.sim.baselines import baseline

__all__ = ["SCRAPE_S", "Sticky", "Sticky2s", "Weighted", "queue_scores", "saturated"]

SCRAPE_S = 0.05
_AFFINITY = 0.8


def queue_scores(waiting: list[int]) -> list[float]:
    """1 for the shortest queue, 0 for the longest; 1 for all when they are equal."""
    low, high = min(waiting), max(waiting)
    if low == high:
        return [1.0] * len(waiting)
    return [(high - own) / (high - low) for own in waiting]


def saturated(warm: list[int], cold: list[int], penalty_tokens: float) -> bool:
    """Whether stickiness is given up: least pending of `warm` - least of `cold` > `penalty_tokens`."""
    return bool(warm) and bool(cold) and min(warm) - min(cold) > penalty_tokens


class Weighted(baseline.Baseline):
    """llm-d's weighted scores: 3 prefix, 2 queue, 2 KV."""

    name = "llmd_weighted"

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """One with the highest score."""
        signals = [self.scraped(endpoint.id) for endpoint in asked.endpoints]
        queue = queue_scores([0 if one is None else one.waiting for one in signals])
        free = [1.0 if one is None else 1 - one.kv_usage for one in signals]
        costs = tuple(
            -(3 * match + 2 * short + 2 * room)
            for match, short, room in zip(asked.match, queue, free, strict=True)
        )
        best = baseline.among(baseline.least(costs), asked.chance)
        return policy.Pick(best, policy.Reason.WARM, 0, costs)


class Sticky(baseline.Baseline):
    """llm-d's sticky until saturated, 18 s."""

    name = "llmd_sticky"
    penalty_s = 18.0

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """The least tokens to prefill, among the warm while they are not saturated."""
        everyone = range(len(asked.endpoints))
        warm = [index for index in everyone if asked.match[index] >= _AFFINITY]
        cold = [index for index in everyone if asked.match[index] < _AFFINITY]
        pending = asked.pending
        released = saturated(
            [pending[index] for index in warm],
            [pending[index] for index in cold],
            self.penalty_s * self.settings.prefill_tokens_per_s,
        )
        costs = tuple(waits + new for waits, new in zip(pending, asked.new_tokens, strict=True))
        within = everyone if released or not warm else warm
        best = baseline.among(baseline.least(costs, within), asked.chance)
        return policy.Pick(best, policy.Reason.OVERFLOW if released else policy.Reason.WARM, 0, costs)


class Sticky2s(Sticky):
    """llm-d's sticky until saturated, 2 s."""

    name = "llmd_sticky_2s"
    penalty_s = 2.0
