"""Beat: when a question that is asked again and again is asked: jittered, and never two at a time.

The first beat comes at once; the second after a part of the interval left to chance, so that questions to
many endpoints spread over it; the others an interval apart, 10 % more or less. A question that takes longer
than the interval delays the next one.

Called by: scrape, endpoints.health.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

__all__ = ["beats"]

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
        await asyncio.sleep(max(0.0, started_s + wait_s - loop.time()))
        started_s = loop.time()
        yield started_s
        wait_s = interval_s() * (1 + _JITTER * (2 * chance() - 1))
