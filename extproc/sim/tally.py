"""Tally: what one engine has done since it started, the numbers behind its /metrics.

Counters only rise; histograms hold counts per bucket, the last one open-ended. Times are engine seconds: a
replica that runs five times as fast reports what the modelled engine would.

Invariant: hits <= queries; by-source tokens sum to prompt tokens. Written by: engine. Read by: exposition.
Source: names and buckets of vLLM 0.32's metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Histogram", "Tally"]

_TTFT_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_SMALL = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)


class Histogram:
    """Observations by upper bound. `counts` has one entry more than `bounds`: beyond the last."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        """Adds `value`, `times` times. A value on a bound belongs below it."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Tally:
    """Counters and histograms of one engine; the names are vLLM's without prefix and unit of time."""

    def __init__(self, tokens_max: int) -> None:
        """Args: tokens_max, the longest context; the token histograms end near it."""
        self.steps = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.host_queries = 0
        self.host_hits = 0
        self.prompt_tokens = 0
        self.computed_tokens = 0
        self.device_tokens = 0
        self.host_tokens = 0
        self.generation_tokens = 0
        self.finished = 0
        self.aborted = 0
        self.rejected: dict[str, int] = {}
        tokens = _decades(tokens_max)
        self.request_prompt_tokens = Histogram(tokens)
        self.request_generation_tokens = Histogram(tokens)
        self.request_max_generation_tokens = Histogram(tokens)
        self.request_max_tokens = Histogram(tokens)
        self.request_computed_tokens = Histogram(tokens)
        self.request_n = Histogram(_SMALL)
        self.request_preemptions = Histogram(_PREEMPTIONS)
        self.step_tokens = Histogram(_STEP_TOKENS)
        self.ttft_s = Histogram(_TTFT_S)
        self.inter_token_s = Histogram(_TOKEN_S)
        self.per_output_token_s = Histogram(_TOKEN_S)
        self.e2e_s = Histogram(_REQUEST_S)
        self.queue_s = Histogram(_REQUEST_S)
        self.inference_s = Histogram(_REQUEST_S)
        self.prefill_s = Histogram(_REQUEST_S)
        self.decode_s = Histogram(_REQUEST_S)

    def finish(self, *, prompt_tokens: int, output_tokens: int, cached_tokens: int, choices: int) -> None:
        """Counts a request that reached its end; an aborted one is not counted, as in vLLM."""
        self.finished += 1
        self.request_prompt_tokens.observe(prompt_tokens)
        self.request_generation_tokens.observe(output_tokens)
        self.request_max_generation_tokens.observe(output_tokens)
        self.request_max_tokens.observe(output_tokens)
        self.request_computed_tokens.observe(prompt_tokens - cached_tokens)
        self.request_n.observe(choices)
        self.request_preemptions.observe(0)

    def finish_times(self, arrived_at: float, admitted_at: float, first_at: float, last_at: float) -> None:
        """Splits a finished request's time at admission and at its first token [s]."""
        self.queue_s.observe(admitted_at - arrived_at)
        self.prefill_s.observe(first_at - admitted_at)
        self.decode_s.observe(last_at - first_at)
        self.inference_s.observe(last_at - admitted_at)
        self.e2e_s.observe(last_at - arrived_at)


def _decades(most: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... up to `most`: vLLM's buckets for token counts."""
    bounds: list[float] = []
    scale = 1
    while True:
        for digit in (1, 2, 5):
            if digit * scale > most:
                return bounds or [1]
            bounds.append(digit * scale)
        scale *= 10
