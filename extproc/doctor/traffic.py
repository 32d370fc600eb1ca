"""Traffic: what the metrics let us infer of the prompts: how much of them could be found, and what that
takes.

Engines tell lengths of prompts and how many tokens of each were computed, nothing of their content. A request
that finds its prefix computes only its tail; one that does not computes all. So the computed tokens have two
heaps. The bound b between them is the first bucket bound with a valley behind it, else where

    hit(b) = found(b) * (1 - tail(b) / prompt),    found(b) = share of requests computing <= b tokens,
                                                   tail(b) = their mean

comes nearest to the hit rate measured. Under even spreading and LRU, with prefixes equally popular,

    working set = KV cache of one replica * shared / hit  (of all replicas, where requests go by prefix)

This presumes that a request which found nothing would have found its prefix somewhere, or earlier: prompts of
which a part is new every time are not told apart from prompts that come too late. So what is inferred is what
routing or memory can bring at most.

Called by: diagnosis, twin.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from extproc.doctor import figures, histogram, stay

__all__ = ["FOUND_MIN", "Traffic", "infer"]

FOUND_MIN = 0.04
"""Fewer requests that find a prefix say nothing about what could be found."""

_TAIL_SHARE = 0.1  # where computed tokens are not told by request
_VALLEY = 0.08  # of the lower heap: a bucket with no more parts the two
_GAP_MAX = 0.2
_SMALLER = 0.7  # of the prompt: what a request that found its prefix computes at most


@dataclass(frozen=True, slots=True)
class Traffic:
    """Lengths in tokens. `found`: share of requests that find their prefix now; `shared`: of prompt tokens,
    those that could be found at most; `measured`: the tail was read from the metrics, not taken for granted.
    `prompts`: their distribution, empty if untold.
    """

    prompt_mean: float
    output_mean: float
    tail_mean: float
    found: float
    shared: float
    working_set: float
    measured: bool
    prompts: histogram.Histogram

    def lengths(self, count: int) -> list[int]:
        """`count` [>= 1] prefix lengths spread as the prompts' are, with the prompts' mean less the tail."""
        mean = max(self.prompt_mean - self.tail_mean, 1.0)
        drawn = [self.prompts.quantile((number + 0.5) / count) or self.prompt_mean for number in range(count)]
        drawn = [max(length - self.tail_mean, 0.1 * mean) for length in drawn]
        scale = mean * count / sum(drawn)
        return [max(round(length * scale), 1) for length in drawn]


def infer(seen: stay.Stay, told: figures.Figures, *, routed: bool) -> Traffic | None:
    """The traffic of a fleet; None if too little is told or found.

    Args: routed: requests go by prefix already, so that each prefix is kept once in the fleet.
    """
    prompt, hit = told.prompt_mean, told.hit
    if not prompt or hit is None or hit < FOUND_MIN or not seen.kv_tokens:
        return None
    uncached = seen.histograms.get("uncached", histogram.EMPTY)
    heap = _heap(uncached, prompt, hit)
    if heap is None:
        tail = _TAIL_SHARE * prompt
        found = min(hit / (1 - _TAIL_SHARE), 1.0)
    else:
        tail, found = heap
    if found < FOUND_MIN:
        return None
    shared = max(1 - tail / prompt, hit)
    capacity = seen.kv_tokens * (seen.replicas if routed else 1)
    return Traffic(
        prompt_mean=prompt,
        output_mean=told.output_mean or 1.0,
        tail_mean=tail,
        found=found,
        shared=shared,
        working_set=capacity * shared / hit,
        measured=heap is not None,
        prompts=seen.histograms.get("prompt", histogram.EMPTY),
    )


def _heap(uncached: histogram.Histogram, prompt: float, hit: float) -> tuple[float, float] | None:
    """Mean tail and share of the requests that found their prefix; None where the heaps can't be told
    apart.
    """
    best: tuple[float, float, float] | None = None
    edges = [bound for bound, _ in uncached.buckets if not math.isinf(bound)]
    for bound, above in itertools.pairwise(edges):
        if bound > _SMALLER * prompt:
            break
        tail, found = uncached.mean_below(bound), uncached.up_to(bound)
        if tail is None or found < FOUND_MIN:
            continue
        gap = abs(found * (1 - tail / prompt) - hit)
        if uncached.up_to(above) - found < _VALLEY * found and gap < _GAP_MAX:
            return tail, found
        if best is None or gap < best[0]:
            best = (gap, tail, found)
    return best[1:] if best is not None and best[0] < _GAP_MAX * hit else None
