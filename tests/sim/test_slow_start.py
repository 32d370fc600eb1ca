"""A ninth endpoint joins eight busy ones: it is neither flooded nor ignored, and has its share in time (B12).

The production router, a virtual clock, endpoints that prefill in order at a fixed rate.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest

from extproc import choice, pool, prompt, router

RATE = 8000.0  # tokens/s of one endpoint
PROMPT_TOKENS = 2000
SLOW_START_S = 20.0
NEW = pool.EndpointId("e8")


def members(count: int) -> list[pool.Endpoint]:
    return [pool.Endpoint(pool.EndpointId(f"e{n}"), f"10.0.0.{n}:80") for n in range(count)]


class Run:
    """Cold prompts arrive at random, a part of what all endpoints could prefill."""

    def __init__(self, policy: str, busy: float, slow_start_s: float = SLOW_START_S) -> None:
        self.router = router.Router(
            pool.make("p", members(8)),
            router.Settings(policy=policy, prefill_tokens_per_s=RATE, slow_start_s=slow_start_s),
        )
        self.now = 0.0
        self._rng = random.Random(7)
        self._per_s = busy * 8 * RATE / PROMPT_TOKENS
        self._over: list[tuple[float, int, choice.Decision]] = []
        self._free_s: dict[str, float] = {}
        self._number = 0

    def join(self) -> None:
        self.router.publish(pool.make("p", members(9), 2))
        self.router.ramp.begin(NEW, self.now)

    def until(self, end_s: float) -> Counter[str]:
        """Who was chosen meanwhile."""
        chosen: Counter[str] = Counter()
        while self.now < end_s:
            self.now += self._rng.expovariate(self._per_s)
            while self._over and self._over[0][0] <= self.now:
                heapq.heappop(self._over)[2].lease.release()
            self._number += 1
            text = f"prompt {self._number} ".encode() * 800
            asked = prompt.Prompt("/completions", "m", (b"m",), text[: PROMPT_TOKENS * 4])
            made = self.router.choose(asked, self.now, self._rng.random())
            assert isinstance(made, choice.Decision)
            name = made.choice.endpoint.id
            chosen[name] += 1
            prefilled_s = max(self.now, self._free_s.get(name, 0.0)) + PROMPT_TOKENS / RATE
            self._free_s[name] = prefilled_s
            heapq.heappush(self._over, (prefilled_s + 1.0, self._number, made))  # and a second of answering
        return chosen


@pytest.mark.parametrize(
    ("policy", "first", "most"),
    [("cost", 0.8, 1.2), ("least_load", 0.8, 1.2), ("ring", 1.0, 1.6)],  # a ring's share is its keys' chance
)
@pytest.mark.parametrize("busy", [0.5, 0.9])
def test_a_newcomer_is_neither_flooded_nor_ignored_and_has_its_share_in_time(
    policy: str, first: float, most: float, busy: float
) -> None:
    run = Run(policy, busy)
    run.until(30.0)
    run.join()
    quarters = [run.until(30.0 + SLOW_START_S * part / 4) for part in (1, 2, 3, 4)]
    after = run.until(30.0 + 2 * SLOW_START_S)
    shares = [9 * seen[NEW] / seen.total() for seen in (*quarters, after)]  # 1 is fair
    assert 0.05 < shares[0] < first
    assert max(shares[:3]) < most
    assert 0.7 < shares[4] < 1.35


def test_without_a_slow_start_a_newcomer_of_the_cost_policy_is_flooded_at_once() -> None:
    """So the test above can fail."""
    run = Run("cost", 0.9, slow_start_s=0.0)
    run.until(30.0)
    run.join()
    first = run.until(30.0 + 1.0)
    assert 9 * first[NEW] / first.total() > 1.2
