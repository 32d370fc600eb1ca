"""In-flight: balancing on open requests alone: the least of all, or of two drawn by chance.

Both count a request when they choose, as Envoy's LEAST_REQUEST and HAProxy's leastconn do. Ties fall by
chance: always the first would make one endpoint the victim of every quiet hour. Neither reads the prompt.

Called by: the package's table. Source: M. Mitzenmacher, The power of two choices, 2001; Envoy's
LEAST_REQUEST with its default `choice_count` of 2 draws with repetition, here the two differ.
"""

from __future__ import annotations

from extproc import policy
from extproc.sim.baselines import baseline

__all__ = ["LeastInflight", "PowerOfTwo"]


class LeastInflight(baseline.Baseline):
    """Least requests in flight, ties by chance."""

    name = "least_inflight"
    indexed = False

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """One of those with the fewest open requests."""
        return policy.Pick(
            baseline.among(baseline.least(asked.inflight), asked.chance), policy.Reason.LEAST_LOAD
        )


class PowerOfTwo(baseline.Baseline):
    """Power of two choices: of two endpoints drawn by chance the one with fewer requests in flight."""

    name = "power_of_two"
    indexed = False

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """The better of two; the first drawn on a tie."""
        count = len(asked.endpoints)
        if count == 1:
            return policy.Pick(0, policy.Reason.LEAST_LOAD)
        first, offset = divmod(int(asked.chance * count * (count - 1)), count - 1)
        second = (first + 1 + offset) % count
        inflight = asked.inflight
        better = second if inflight[second] < inflight[first] else first
        return policy.Pick(better, policy.Reason.LEAST_LOAD)
