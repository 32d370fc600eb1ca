"""AIBrix: prefix-cache: the longest match whose running requests are not far above the mean.

    1. max - min of running requests > 8: only those with the fewest may match
    2. of those that match, the longest match (fewer running on a tie) with running <= mean + sigma
    3. else the fewest running, ties by chance

mean and sigma (of the population) are over all endpoints. A match is told in whole per cents of the prompt's
blocks. "Running" is what the gateway itself has open, counted when it sends.

The index is one table for all endpoints, 200,000 blocks of 128 bytes for 20 minutes: as many bytes are
given to each endpoint here, so it forgets no sooner. It does not know what an engine evicts.

Called by: the package's table. Source: AIBrix, pkg/plugins/gateway/algorithms/prefix_cache.go; its Helm
values.
"""

from __future__ import annotations

import statistics

from extproc import policy, pool, residency, router
from extproc.sim.baselines import baseline

__all__ = ["Aibrix", "within_sigma"]

_IMBALANCE = 8
_INDEX_BYTES = 200_000 * 128
_INDEX_S = 1200.0


def within_sigma(running: int, all_running: list[int]) -> bool:
    """Whether `running` <= mean + one standard deviation of `all_running`."""
    return running <= statistics.fmean(all_running) + statistics.pstdev(all_running)


class Aibrix(baseline.Baseline):
    """AIBrix prefix-cache: longest match with running requests within mean + sigma."""

    name = "aibrix"

    def __init__(self, pool: pool.Pool, settings: router.Settings) -> None:
        super().__init__(pool, settings, residency.Capacity(_INDEX_BYTES // settings.block_bytes), _INDEX_S)

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """By match within bounds, else by load."""
        running = asked.inflight
        fewest = baseline.least(running)
        percent = [int(share * 100) for share in asked.match]
        may = fewest if max(running) - min(running) > _IMBALANCE else range(len(running))
        matched = [index for index in may if percent[index] and within_sigma(running[index], running)]
        if not matched:
            return policy.Pick(baseline.among(fewest, asked.chance), policy.Reason.LEAST_LOAD)
        ranks = [(-percent[index], running[index]) for index in range(len(running))]
        best = min(ranks[index] for index in matched)
        ties = [index for index in matched if ranks[index] == best]
        return policy.Pick(baseline.among(ties, asked.chance), policy.Reason.WARM)
