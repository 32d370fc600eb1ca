"""Board: the newest signal of each endpoint of a pool, and whether it is fresh enough to be used.

Bounded by the members of the pool. Called by: endpoints.fleet (puts), router (asks), admin, metrics (show).
"""

from __future__ import annotations

from collections.abc import Collection

from extproc import pool
from extproc.signals.signal import Signal, SignalAge

__all__ = ["Board"]


class Board:
    """What the engines say of themselves."""

    __slots__ = ("_age_max_s", "_signals")

    def __init__(self, age_max_s: float) -> None:
        """`age_max_s`: an older signal is not used [s, > 0]."""
        self._age_max_s = age_max_s
        self._signals: dict[pool.EndpointId, Signal] = {}

    def __bool__(self) -> bool:
        """Whether some engine told anything, ever so long ago."""
        return bool(self._signals)

    def put(self, endpoint: pool.EndpointId, signal: Signal) -> None:
        """`signal` is the newest of `endpoint`."""
        self._signals[endpoint] = signal

    def drop(self, endpoint: pool.EndpointId) -> None:
        """What `endpoint` said holds no more: its process is another."""
        self._signals.pop(endpoint, None)

    def retain(self, members: Collection[pool.EndpointId]) -> None:
        """Forget endpoints that are not in `members`."""
        for endpoint in self._signals.keys() - set(members):
            del self._signals[endpoint]

    def newest(self, endpoint: pool.EndpointId) -> Signal | None:
        """The newest signal, however old; None if there was none."""
        return self._signals.get(endpoint)

    def age(self, endpoint: pool.EndpointId, now: float) -> SignalAge:
        """Whether there is one to be used at `now` [s, monotonic]."""
        signal = self._signals.get(endpoint)
        if signal is None:
            return SignalAge.ABSENT
        return SignalAge.FRESH if now - signal.at_s <= self._age_max_s else SignalAge.STALE

    def load(self, endpoint: pool.EndpointId, sent_tokens: float, now: float) -> tuple[float | None, int]:
        """KV usage [0..1] with what was sent since, and requests of others; None, 0 unless told and fresh."""
        signal = self._signals.get(endpoint)
        if signal is None or now - signal.at_s > self._age_max_s:
            return None, 0
        return signal.kv_usage_now(sent_tokens), signal.foreign

    def foreign_kv_tokens(self, endpoint: pool.EndpointId, now: float) -> float:
        """KV that requests of others hold; 0 unless told and fresh."""
        signal = self._signals.get(endpoint)
        if signal is None or now - signal.at_s > self._age_max_s:
            return 0.0
        return signal.foreign_kv_tokens
