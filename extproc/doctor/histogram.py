"""Histogram: observations by upper bound, as engines expose them; differences, sums and quantiles of them.

    counts[i] = observations <= bounds[i]        total = sum of all observations

Invariant: counts never fall along the bounds of one engine's histogram; a difference of two readings of one
process has no negative count. Called by: sample (makes), figures, traffic, twin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from extproc import signals

__all__ = ["EMPTY", "Histogram", "merge"]


@dataclass(frozen=True, slots=True)
class Histogram:
    """`buckets`: (upper bound, observations up to it) in order of the bounds."""

    buckets: tuple[tuple[float, float], ...] = ()
    total: float = 0.0

    @property
    def count(self) -> float:
        """Observations."""
        return max((count for _, count in self.buckets), default=0.0)

    @property
    def mean(self) -> float | None:
        """Mean observation, exact; None without any."""
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """The value below which `share` [0..1] of the observations lie; see `signals.quantile`."""
        return signals.quantile(self.buckets, share)

    def up_to(self, bound: float) -> float:
        """Share of observations <= `bound`, which should be one of the bounds [0..1]; 0 without any."""
        below = max((count for edge, count in self.buckets if edge <= bound), default=0.0)
        return below / self.count if self.count else 0.0

    def minus(self, earlier: Histogram) -> Histogram:
        """What was observed since `earlier`; all of it if a count fell, for then it began anew."""
        before = dict(earlier.buckets)
        rest = tuple((bound, count - before.get(bound, 0.0)) for bound, count in self.buckets)
        if any(count < 0 for _, count in rest) or self.total < earlier.total:
            return self
        return Histogram(rest, self.total - earlier.total)

    def mean_below(self, bound: float) -> float | None:
        """Mean of the observations up to `bound`, each taken to lie at its bucket's geometric middle."""
        weight = value = low = seen = 0.0
        for edge, count in self.buckets:
            if edge > bound or math.isinf(edge):
                break
            weight += count - seen
            value += (count - seen) * (math.sqrt(low * edge) if low > 0 else edge / 2)
            low, seen = edge, count
        return value / weight if weight else None


EMPTY = Histogram()


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """All observations of several histograms together.

    Bounds of one engine are the same in each of its processes; where they differ, a histogram counts at a
    bound it lacks what it has at its next lower one.
    """
    several = [one for one in histograms if one.buckets]
    bounds = sorted({bound for one in several for bound, _ in one.buckets})
    counts = [0.0] * len(bounds)
    for one in several:
        at, seen = 0, 0.0
        for number, bound in enumerate(bounds):
            while at < len(one.buckets) and one.buckets[at][0] <= bound:
                seen = one.buckets[at][1]
                at += 1
            counts[number] += seen
    return Histogram(tuple(zip(bounds, counts, strict=True)), sum(one.total for one in several))
