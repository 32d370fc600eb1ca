"""DualMap: two homes by two hashes of the prompt's prefix; the warmer one, unless it would be too slow.

    ttft_i = (pending_i + new_i) / R_peak
    the one of two homes that holds more of the prompt (less pending on a tie), while its ttft <= slo_s;
    else the one with the lower ttft

The paper's key is a prefix of adaptive length; here the first block whose share of traffic is below 2/n, by
the production router's counter: two homes can carry twice the share of one. The second home is the first of
the other ring that is not the first one. Not modelled: moving queued requests between their homes, which a
gateway cannot do once they are sent.

slo_s: 2 [s], a choice of ours, the best for it of .5, 1, 2 and 5 on coding agents.

Called by: the package's table. Source: DualMap, arXiv:2602.06502 (ICLR 2026).
"""

from __future__ import annotations

from extproc import anchor, policy, pool, ring, router
from extproc.sim.baselines import baseline

__all__ = ["SLO_S", "DualMap"]

SLO_S = 2.0
_SECOND = 0x9E3779B97F4A7C15  # what makes the second hash another one


class DualMap(baseline.Baseline):
    """DualMap: two hash homes, the warmer unless its TTFT exceeds the SLO."""

    name = "dualmap"

    def __init__(self, pool: pool.Pool, settings: router.Settings) -> None:
        super().__init__(pool, settings)
        self._ring = ring.Ring(pool.membership)
        self._anchors = anchor.Anchors()

    def publish(self, pool: pool.Pool) -> None:
        """Replace the pool."""
        super().publish(pool)
        self._ring = ring.Ring(pool.membership)

    def homes(self, key: int, asked: baseline.Asked) -> list[int]:
        """Positions of the two homes of `key`; one if there is but one endpoint."""
        position = {endpoint.id: index for index, endpoint in enumerate(asked.endpoints)}
        first = next(self._ring.order(key, position.keys()))
        others = position.keys() - {first}
        second = [next(self._ring.order(key ^ _SECOND, others))] if others else []
        return [position[name] for name in (first, *second)]

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """One of two homes."""
        chain = asked.request.chain
        if chain is None:
            return policy.Pick(
                baseline.among(baseline.least(asked.inflight), asked.chance), policy.Reason.LEAST_LOAD
            )
        key = self._anchors.observe(chain, max(len(self.pool.endpoints) // 2, 1), asked.now).key
        homes = self.homes(key, asked)
        new, pending = asked.new_tokens, asked.pending
        warmest = min(homes, key=lambda index: (new[index], pending[index]))
        quickest = min(homes, key=lambda index: pending[index] + new[index])
        slow = (pending[warmest] + new[warmest]) / self.settings.prefill_tokens_per_s > SLO_S
        chosen = quickest if slow else warmest
        if chosen == homes[0]:
            return policy.Pick(chosen, policy.Reason.HOME)
        return policy.Pick(chosen, policy.Reason.OVERFLOW if slow else policy.Reason.WARM, 1)
