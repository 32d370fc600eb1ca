"""Ring policy: the home of the key, unless its work is over the bound; then the next in ring order below it.

Needs no residency, so it is what several routers without a shared view agree on.
Source: consistent hashing with bounded loads, arXiv:1608.01350, with work in place of requests.
"""

from __future__ import annotations

from extproc import ledger
from extproc.policy import question

__all__ = ["limit", "pick"]


def pick(asked: question.Question) -> question.Pick:
    """The first in ring order with room. Somebody always has room: the least loaded is below the mean."""
    room_below = limit(asked)
    home: int | None = None
    for steps, index in enumerate(asked.ring_order()):
        home = index if home is None else home
        if has_room(asked.candidates[index], room_below):
            reason = question.Reason.OVERFLOW if steps else question.Reason.HOME
            return question.Pick(index, reason, steps)
    return question.Pick(home or 0, question.Reason.HOME)


def has_room(candidate: question.Candidate, room_below: float) -> bool:
    """Whether the bound and the KV cache leave room for this prompt; without the latter it would queue."""
    fits = candidate.kv_usage is None or candidate.kv_usage <= 1.0
    return fits and ledger.has_room(candidate.work, room_below)


def limit(asked: question.Question) -> float:
    """The bound on work for this decision [tokens]; the request's own least work counts in the mean."""
    uncached = min(asked.prompt_tokens - candidate.cached_tokens for candidate in asked.candidates)
    total = sum(candidate.work for candidate in asked.candidates) + uncached + ledger.REQUEST_TOKENS
    return ledger.bound(total, len(asked.candidates), asked.limits.factor, asked.limits.floor_tokens)
