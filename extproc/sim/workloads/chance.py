"""Chance: arrivals and popularity, drawn from a generator that is handed in. Called by: workloads."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

__all__ = ["arrivals", "popularity"]


def arrivals(rng: random.Random, per_s: Callable[[float], float], per_s_max: float) -> Iterator[float]:
    """Moments of a Poisson process of rate `per_s(t)` <= `per_s_max` [1/s], for ever.

    Source: thinning, Lewis and Shedler 1979.
    """
    moment = 0.0
    while True:
        moment += rng.expovariate(per_s_max)
        if rng.random() * per_s_max < per_s(moment):
            yield moment


def popularity(count: int, exponent: float = 1.0) -> list[float]:
    """Cumulative weights 1 / rank^exponent of `count` things, for `random.choices(cum_weights=...)`."""
    return list(itertools.accumulate(1 / rank**exponent for rank in range(1, count + 1)))
