"""Health: whether an endpoint answers, by asking it.

Envoy's override_host goes to an endpoint whatever its health, so kvring must not name a dead one.

    refused or reset connection              not ready at once: nobody listens
    other failure (timeout, status not 2xx)  not ready after `failures` in a row: a busy engine is slow
    good answer                              ready after `successes` in a row

Each probe opens a connection of its own: that shows who listens. Our own lack of descriptors says nothing
about an endpoint.

Never: two probes of one endpoint at a time; a probe that delays another's. Called by: endpoints.fleet.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from extproc import beat, config, fetch

__all__ = ["Judge", "Verdict", "probe", "watch"]


class Verdict(enum.Enum):
    """What a row of probes says."""

    READY = "ready"
    REFUSED = "refused"
    FAILED = "failed"
    OPEN = "open"  # not enough of them; what was said before stands


class Judge:
    """Verdicts on one endpoint, probe by probe."""

    __slots__ = ("_settings", "_streak")

    def __init__(self, settings: config.Health) -> None:
        """No probe yet."""
        self._settings = settings
        self._streak = 0  # > 0 good, < 0 bad probes in a row

    def judge(self, problem: str) -> Verdict:
        """The verdict after a probe with this `problem`, "" if it was good."""
        good = not problem
        self._streak = max(self._streak, 0) + 1 if good else min(self._streak, 0) - 1
        if problem == "refused":
            return Verdict.REFUSED
        if self._streak <= -self._settings.failures:
            return Verdict.FAILED
        return Verdict.READY if self._streak >= self._settings.successes else Verdict.OPEN


async def watch(
    address: str, settings: config.Health, told: Callable[[str], None], chance: Callable[[], float]
) -> None:
    """Probe `address` for ever; `told` gets the problem of each probe, "" if it was good."""
    async for _ in beat.beats(lambda: settings.interval_s, chance):
        told(await probe(address, settings))


async def probe(address: str, settings: config.Health) -> str:
    """The empty string if the answer was good, else what was wrong."""
    try:
        answer = await fetch.fetch(address, settings.path, settings.timeout_s)
    except fetch.FetchError as error:
        return error.problem
    return "" if 200 <= answer.status < 300 else f"status {answer.status}"
