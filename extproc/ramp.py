"""Ramp: how much a new or restarted endpoint takes at first.

    share(age) = max(0.1, age / slow_start_s), at most 1

Its work counts as work / share: at a tenth of the window its own load seems ten times what it is, so it takes
a tenth of what the others hold at that moment, and reaches its full part as its cache fills. Idle it has no
load to magnify, so it is never ignored.

Bounded by the members of the pool. Called by: router.
"""

from __future__ import annotations

from collections.abc import Collection

from extproc import pool

__all__ = ["SHARE_LEAST", "Ramp"]

SHARE_LEAST = 0.1


class Ramp:
    """When each endpoint began."""

    __slots__ = ("_began", "_slow_start_s")

    def __init__(self, slow_start_s: float) -> None:
        """`slow_start_s`: how long an endpoint takes to reach its full share [s]; 0: none."""
        self._slow_start_s = slow_start_s
        self._began: dict[pool.EndpointId, float] = {}

    def __bool__(self) -> bool:
        """Whether some endpoint is not at its full share yet."""
        return bool(self._began)

    def begin(self, endpoint: pool.EndpointId, now: float) -> None:
        """`endpoint` starts at `now` [s, monotonic] with an empty cache."""
        if self._slow_start_s > 0:
            self._began[endpoint] = now

    def share(self, endpoint: pool.EndpointId, now: float) -> float:
        """Its part of a full endpoint's load at `now` [SHARE_LEAST..1]."""
        began = self._began.get(endpoint)
        if began is None:
            return 1.0
        age_s = now - began
        if age_s >= self._slow_start_s:
            del self._began[endpoint]
            return 1.0
        return max(SHARE_LEAST, age_s / self._slow_start_s)

    def retain(self, members: Collection[pool.EndpointId]) -> None:
        """Forget endpoints that are not in `members`."""
        for endpoint in self._began.keys() - set(members):
            del self._began[endpoint]
