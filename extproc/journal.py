"""Journal: the latest choices, for whoever looks: what, why, when. Bounded; the oldest leave first.

Holds what a choice is made of, which is no text of a prompt and no header: of keys only their hashes.

Never: grows; delays a choice by more than an append. Called by: server (notes), admin (shows).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extproc import choice, ring

__all__ = ["Entry", "Journal", "told"]

_COSTS_SHOWN = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """The `number`-th choice [1, 2, ...], made `at_s` [s, monotonic], within `spent_s` [s]."""

    number: int
    at_s: float
    spent_s: float
    made: choice.Choice | choice.Hashed


class Journal:
    """The last `entries_max` choices."""

    __slots__ = ("_entries", "_latest")

    def __init__(self, entries_max: int = 512) -> None:
        """`entries_max`: kept [> 0]."""
        self._entries: deque[Entry] = deque(maxlen=entries_max)
        self._latest = 0

    @property
    def latest(self) -> int:
        """Number of the newest entry; 0 before the first."""
        return self._latest

    def note(self, made: choice.Choice | choice.Hashed, at_s: float, spent_s: float) -> None:
        """Keep a choice."""
        self._latest += 1
        self._entries.append(Entry(self._latest, at_s, spent_s, made))

    def after(self, number: int, most: int) -> Sequence[Entry]:
        """At most `most` [> 0] entries later than `number`, the newest first."""
        found: list[Entry] = []
        for entry in reversed(self._entries):
            if entry.number <= number or len(found) == most:
                break
            found.append(entry)
        return found

    def spent_s(self, share: float) -> float | None:
        """The time below which `share` [0..1] of the kept choices took [s]; None if there is none."""
        times = sorted(entry.spent_s for entry in self._entries)
        return times[min(int(share * len(times)), len(times) - 1)] if times else None


def told(made: choice.Choice | choice.Hashed) -> dict[str, Any]:
    """A choice in words and numbers, as the page, the log and a trace tell it."""
    if isinstance(made, choice.Hashed):
        return {**_key(made), "reason": "hash" if made.text else "no_hash", "hash": made.text or None}
    costs = dict(zip(made.candidates, (round(cost) for cost in made.costs), strict=False))
    return {
        **_key(made),
        "endpoint": made.endpoint.id,
        "reason": made.reason.value,
        "policy": made.policy,
        "ring_at": None if made.key is None else round(ring.place(made.key), 5),
        "ring_steps": made.ring_steps,
        "candidates": len(made.candidates),
        "cached_tokens": round(made.cached_tokens),
        "work_seen": made.work_seen,
        "signals": made.signals.value,
        "costs": costs if len(costs) <= _COSTS_SHOWN else {},
    }


def _key(made: choice.Choice | choice.Hashed) -> dict[str, Any]:
    """What was read, and the key found."""
    return {
        "pool": made.pool,
        "keyed_by": made.keyed_by.value,
        "unkeyed": None if made.unkeyed is None else made.unkeyed.value,
        "key": None if made.key is None else f"{made.key:016x}",
        "anchor_block": made.anchor_block,
        "chain_blocks": made.chain_blocks,
        "prompt_tokens": round(made.prompt_tokens),
        "limits": [limit.value for limit in made.limits],
    }
