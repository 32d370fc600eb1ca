"""Ring policy: the home of the key, unless it has no room; then the next in ring order that has.

Room is work below the bound, and KV cache for this prompt beside those of open requests: where it does not
fit it would queue until one of them ends. If it fits nowhere, the bound alone decides.

Needs no residency, so it is what several routers without a shared view agree on.
Source: consistent hashing with bounded loads, arXiv:1608.01350, with work in place of requests.
"""

from __future__ import annotations

from extproc import ledger
from extproc.policy import question

__all__ = ["limit", "pick"]


def pick(asked: question.Question) -> question.Pick:
    """The first in ring order with room. Somebody is always below the bound: the least loaded is."""
    room_below = limit(asked)
    otherwise: question.Pick | None = None
    for steps, index in enumerate(asked.ring_order()):
        if not ledger.has_room(asked.work[index], room_below):
            continue
        found = question.Pick(index, question.Reason.OVERFLOW if steps else question.Reason.HOME, steps)
        if asked.kv_usage[index] <= 1.0:
            return found
        otherwise = otherwise or found
    return otherwise or question.Pick(next(asked.ring_order()), question.Reason.HOME)


def limit(asked: question.Question) -> float:
    """The bound on work for this decision [tokens]; the request's own least work counts in the mean."""
    uncached = asked.prompt_tokens - max(asked.cached)
    total = sum(asked.work) + uncached + ledger.REQUEST_TOKENS
    return ledger.bound(total, len(asked.work), asked.limits.factor, asked.limits.floor_tokens)
