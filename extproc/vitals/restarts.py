"""Restarts: whether the process behind an address is still the one that was there before.

    another start time, or a counter that fell      it restarted
    well, refused, well again, and it tells neither taken as a restart: nobody listened meanwhile

What was on its GPU and in its host memory is gone then; an external cache is not.

Never: a restart seen twice. Called by: endpoints.fleet.
"""

from __future__ import annotations

from extproc import signals

__all__ = ["Restarts", "fell"]

_SAME_START_S = 1.0  # a start time is told with rounding
_COUNTERS = ("queries", "requests", "prompt_tokens", "computed", "prefill_s", "answers")


class Restarts:
    """One endpoint's process, as its readings tell it."""

    __slots__ = ("_last", "_refused", "_was_well")

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._last: signals.Reading | None = None
        self._refused = False
        self._was_well = False

    def refused(self) -> None:
        """Nobody listened."""
        self._refused = True

    def well(self) -> bool:
        """Whether it restarted, judged when it answers its health check: only where no reading ever told."""
        was_well, self._was_well = self._was_well, True
        if not self._refused or self._tells():
            return False
        self._refused = False
        return was_well

    def read(self, reading: signals.Reading) -> bool:
        """Whether it restarted since the last reading."""
        last, self._last = self._last, reading
        refused, self._refused = self._refused, False
        if last is None:
            return False
        if last.started_s is not None and reading.started_s is not None:
            return abs(reading.started_s - last.started_s) > _SAME_START_S
        return fell(last, reading) or (refused and not self._tells())

    def _tells(self) -> bool:
        return self._last is not None and self._last != signals.Reading()


def fell(last: signals.Reading, reading: signals.Reading) -> bool:
    """Whether some counter is lower than it was."""
    for name in _COUNTERS:
        before, after = getattr(last, name), getattr(reading, name)
        if before is not None and after is not None and after < before:
            return True
    return False
