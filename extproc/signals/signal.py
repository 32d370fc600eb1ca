"""Signal: what the router takes from a reading, with its age and with what has happened since.

    kv_usage = told + tokens sent since / capacity,  foreign = requests in the engine that are not ours

The engine's count includes what other routers and clients sent; of its requests, those beyond our own open
ones at that moment are foreign and count as load. Ours are known better from the ledger.

Never: used when older than `signals_age_max_s`; the router then goes by its ledger alone. Called by: vitals
(makes), router (reads).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Signal", "SignalAge"]


class SignalAge(enum.StrEnum):
    """Whether a choice knew what the engine says of itself. A closed set: it labels metrics."""

    FRESH = "fresh"
    STALE = "stale"  # too old to be used
    ABSENT = "absent"  # never told


@dataclass(frozen=True, slots=True)
class Signal:
    """`at_s`: when it was asked for [s, monotonic]; `kv_usage`: told then [0..1], None if it was not;
    `kv_tokens`: capacity [tokens, > 0]; `foreign`: requests in the engine that are not ours [>= 0];
    `sent_tokens`: uncached prompt tokens that we had sent there by then, since the start;
    `foreign_kv_tokens`: of the KV cache, what requests hold that are not ours [>= 0].
    """

    at_s: float
    kv_usage: float | None
    kv_tokens: int
    foreign: int
    sent_tokens: float
    foreign_kv_tokens: float = 0.0

    def age_s(self, now: float) -> float:
        """How old it is [s, >= 0]."""
        return max(0.0, now - self.at_s)

    def kv_usage_now(self, sent_tokens: float) -> float | None:
        """The usage [0..1] with what was sent since; `sent_tokens` as now."""
        if self.kv_usage is None:
            return None
        return min(1.0, self.kv_usage + max(0.0, sent_tokens - self.sent_tokens) / self.kv_tokens)
