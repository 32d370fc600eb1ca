"""Beat: when a question that is asked again and again is asked: jittered, and never two at a time.

The first beat comes at once; the second after a part of the interval left to chance, so that questions to
many endpoints spread over it; the others an interval apart, 10 % more or less. A question that takes longer
than the interval delays the next one.

Beats are put off to the next multiple of `TICK_S`, so that those of many endpoints come together: most of
what a scrape costs is waking a process whose code has left the processor's caches. 256 endpoints a second
fall into bunches of five, at about two thirds of the cost (`tests/bench/test_scrape.py`). A longer tick costs
even less, but a choice can wait for a whole bunch.

Called by: scrape, endpoints.health.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable

__all__ = ["TICK_S", "beats", "due_s"]

TICK_S = 0.02
_JITTER = 0.1


async def beats(interval_s: Callable[[], float], chance: Callable[[], float]) -> AsyncIterator[float]:
    """The loop's time [s] at every beat, for ever.

    Args: interval_s: asked before each beat [s, > 0]; chance: uniform in [0, 1).
    """
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    yield started_s
    wait_s = interval_s() * chance()
    while True:
        await asyncio.sleep(max(0.0, due_s(started_s, wait_s) - loop.time()))
        started_s = loop.time()
        yield started_s
        wait_s = interval_s() * (1 + _JITTER * (2 * chance() - 1))


def due_s(started_s: float, wait_s: float) -> float:
    """The first tick that is at least `wait_s` after `started_s` [s of the loop's clock]."""
    return math.ceil((started_s + wait_s) / TICK_S) * TICK_S
