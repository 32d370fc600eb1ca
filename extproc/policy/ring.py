"""Ring policy: the home of the key, unless it has no room; then the next in ring order that has.

Room is work below the bound, and KV cache for this prompt beside those of open requests: where it does not
fit it would queue until one of them ends. If it fits nowhere, the bound alone decides.

Needs no residency, so it is what several routers without a shared view agree on.
Source: consistent hashing with bounded loads, arXiv:1608.01350, with work in place of requests.
"""

from __future__ import annotations

from extproc import ledger
from extproc.policy import question

__all__ = ["fits", "limit", "pick"]


def pick(asked: question.Question) -> question.Pick:
    """The first in ring order with room. Somebody is always below the bound: the least loaded is."""
    room_below = limit(asked)
    otherwise: question.Pick | None = None
    for steps, index in enumerate(asked.ring_order()):
        candidate = asked.candidates[index]
        if not ledger.has_room(candidate.work, room_below):
            continue
        found = question.Pick(index, question.Reason.OVERFLOW if steps else question.Reason.HOME, steps)
        if fits(candidate):
            return found
        otherwise = otherwise or found
    return otherwise or question.Pick(next(asked.ring_order()), question.Reason.HOME)


def fits(candidate: question.Candidate) -> bool:
    """Whether the KV cache takes this prompt beside what is open there, as far as is known."""
    return candidate.kv_usage is None or candidate.kv_usage <= 1.0


def limit(asked: question.Question) -> float:
    """The bound on work for this decision [tokens]; the request's own least work counts in the mean."""
    uncached = min(asked.prompt_tokens - candidate.cached_tokens for candidate in asked.candidates)
    total = sum(candidate.work for candidate in asked.candidates) + uncached + ledger.REQUEST_TOKENS
    return ledger.bound(total, len(asked.candidates), asked.limits.factor, asked.limits.floor_tokens)
