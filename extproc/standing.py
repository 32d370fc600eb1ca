"""Standing: why an endpoint of a pool may not be chosen.

    ready = nothing is against it

Hard reasons (it is down, asleep, leaving, not known yet) always count. Soft ones (it refuses work, its queue
is full) are guesses from its answers: together they keep out at most half of those that have nothing hard
against them, the ones ejected first, so that a fault all share never empties the pool. Soft ones end by
themselves.

Bounded by the members of the pool. Called by: endpoints.fleet (sets), views (shows).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping

from extproc import pool

__all__ = ["Against", "Standings"]


class Against(enum.StrEnum):
    """What is against an endpoint. A closed set: it labels metrics."""

    NEW = "new"  # not asked yet
    SOURCE = "source"  # draining, terminating or not ready, says who knows the members
    REFUSED = "refused"  # nobody listens
    PROBE = "probe"  # its health check fails
    ASLEEP = "asleep"
    ENVOY = "envoy"  # an Envoy holds it for unhealthy
    FAILING = "failing"  # answers 5xx
    FULL = "full"  # rejects: its queue is full


_SOFT = (Against.FAILING, Against.FULL)
_EJECTIONS_MAX = 4  # how often the time doubles, plus one


class Standings:
    """What is against each endpoint of one pool."""

    __slots__ = ("_ejected", "_hard", "_times", "_until")

    def __init__(self) -> None:
        """Nothing is known."""
        self._until = 0.0  # when `ready` may come out otherwise [s]
        self._hard: dict[pool.EndpointId, set[Against]] = {}
        self._ejected: dict[pool.EndpointId, dict[Against, tuple[float, float]]] = {}  # from, until [s]
        self._times: dict[pool.EndpointId, int] = {}

    def set(self, endpoint: pool.EndpointId, against: Against, *, holds: bool) -> None:
        """Whether the hard reason `against` holds for `endpoint`."""
        reasons = self._hard.setdefault(endpoint, set())
        if holds is not (against in reasons):
            (reasons.add if holds else reasons.discard)(against)
            self._until = 0.0

    def may_differ(self, now: float) -> bool:
        """Whether `ready` at `now` [s, monotonic] may differ from what it was when it was last asked."""
        return now >= self._until

    def eject(self, endpoint: pool.EndpointId, against: Against, seconds: float, now: float) -> None:
        """Keep `endpoint` out for the soft reason `against` until `now` + `seconds`."""
        self._ejected.setdefault(endpoint, {})[against] = (now, now + seconds)
        self._until = 0.0

    def eject_longer(self, endpoint: pool.EndpointId, against: Against, seconds: float, now: float) -> float:
        """As `eject`, twice as long each further time, up to eight times `seconds`; returns how long [s]."""
        times = self._times[endpoint] = min(self._times.get(endpoint, 0) + 1, _EJECTIONS_MAX)
        lasts_s = seconds * 2.0 ** (times - 1)
        self.eject(endpoint, against, lasts_s, now)
        return lasts_s

    def calm(self, endpoint: pool.EndpointId) -> None:
        """It answers well again: the next ejection is a short one."""
        self._times.pop(endpoint, None)

    def soft(self, endpoint: pool.EndpointId, now: float) -> tuple[Against, ...]:
        """The soft reasons that hold at `now`."""
        found = self._ejected.get(endpoint, {})
        return tuple(against for against in _SOFT if against in found and now < found[against][1])

    def against(self, endpoint: pool.EndpointId, now: float) -> tuple[Against, ...]:
        """All that is against `endpoint` at `now` [s, monotonic], in a fixed order."""
        hard = self._hard.get(endpoint, set())
        return tuple(sorted(hard, key=list(Against).index)) + self.soft(endpoint, now)

    def ready(self, members: Iterable[pool.EndpointId], now: float) -> Mapping[pool.EndpointId, bool]:
        """Who of `members` may be chosen at `now` [s, monotonic]."""
        ends = [until for reasons in self._ejected.values() for _, until in reasons.values() if until > now]
        self._until = min(ends, default=math.inf)
        able = {member: not self._hard.get(member) for member in members}
        ejected = [member for member, is_able in able.items() if is_able and self.soft(member, now)]
        ejected.sort(key=lambda member: (min(since for since, _ in self._ejected[member].values()), member))
        for member in ejected[: sum(able.values()) // 2]:
            able[member] = False
        return able

    def retain(self, members: Iterable[pool.EndpointId]) -> None:
        """Forget endpoints that are not in `members`."""
        kept = set(members)
        for known in (self._hard, self._ejected, self._times):
            for endpoint in known.keys() - kept:
                del known[endpoint]
        self._until = 0.0
