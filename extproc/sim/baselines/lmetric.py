"""LMetric: the least product of work to prefill and batch size.

    score = (pending + new) * (inflight + 1)

pending: uncached tokens sent whose first token has not come; new: this prompt's uncached tokens there;
inflight: open requests. A product needs no weights: any factor on either term leaves the order as it is.
Ties fall by chance. All three count when a request is sent.

Called by: the package's table. Source: LMetric, arXiv:2603.15202 (indicators P-token and BS).
"""

from __future__ import annotations

from extproc import policy
from extproc.sim.baselines import baseline

__all__ = ["LMetric", "score"]


def score(pending: float, new: float, inflight: int) -> float:
    """The product [tokens * requests]."""
    return (pending + new) * (inflight + 1)


class LMetric(baseline.Baseline):
    """LMetric: new prefill tokens times batch size."""

    name = "lmetric"

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """The least score."""
        costs = tuple(
            score(load.pending, new, load.inflight)
            for load, new in zip(asked.loads, asked.new_tokens, strict=True)
        )
        best = baseline.among(baseline.least(costs), asked.chance)
        return policy.Pick(best, policy.Reason.WARM, 0, costs)
