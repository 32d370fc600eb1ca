"""Clock: virtual time, and what is to happen at which moment.

Of events at one moment the one scheduled first comes first. So a run is a function of its inputs alone.

Invariant: time never goes back. Called by: simulation.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["Clock"]


class Clock:
    """Events by time. `now`: of the event that runs [s]."""

    __slots__ = ("_events", "_number", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._number = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, moment_s: float, event: Callable[[], None]) -> None:
        """Run `event` at `moment_s`, or now if that is past."""
        self._number += 1
        heapq.heappush(self._events, (max(moment_s, self.now), self._number, event))

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Run `event` in `seconds` [>= 0]."""
        self.at(self.now + seconds, event)

    def step(self) -> bool:
        """Run the next event; False if there is none."""
        if not self._events:
            return False
        self.now, _, event = heapq.heappop(self._events)
        event()
        return True
