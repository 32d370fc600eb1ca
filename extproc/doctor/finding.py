"""Finding: one thing that is so, with its evidence, what to do about it, and what that is expected to bring.

Kinds are a closed set, each with a section of docs/doctor.md. Made by: rules. Read by: telling, cli.doctor.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Finding", "Kind", "Verdict"]


class Verdict(enum.Enum):
    """How pressing it is; the value orders. ACT: users or money suffer now. WELL: nothing is to be done."""

    ACT = 0
    CONSIDER = 1
    NOTE = 2
    WELL = 3

    @property
    def word(self) -> str:
        """In one word."""
        return self.name.lower()


class Kind(enum.StrEnum):
    """What may be found."""

    REFUSED = "refused"
    FAULTS = "faults"
    CACHING_OFF = "prefix-caching-off"
    RESTARTS = "restarts"
    IMBALANCE = "imbalance"
    SCATTERED = "scattered-prefixes"
    CACHE_TOO_SMALL = "working-set-beyond-gpu-cache"
    HOST_TOO_SMALL = "working-set-beyond-host-memory"
    KV_PRESSURE = "kv-cache-full"
    QUEUEING = "queueing"
    TAIL = "long-tail"
    NOTHING_SHARED = "nothing-shared"
    NOTHING_TO_WIN = "nothing-to-win"
    ASLEEP = "asleep"
    UNLIKE = "unlike-replicas"
    QUIET = "too-little-traffic"
    HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class Finding:
    """`title`: what is so, in a line; `evidence`: figures; `advice`: what to do, first things first;
    `brings`: what that is expected to bring; `saved_usd_month`: of it in money, None if unknown.
    """

    kind: Kind
    verdict: Verdict
    title: str
    evidence: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    brings: str = ""
    saved_usd_month: float | None = None
