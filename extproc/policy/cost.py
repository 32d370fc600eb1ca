"""Cost policy: the endpoint where this prompt costs least, in tokens of prefill.

    cost = pending + 2 * new + 192 * inflight + kv_tokens / 16
           + 4 * max(0, kv_usage - 0.9) * (prompt + pending + 512)

pending: tokens waiting for prefill there; new: this prompt's tokens not cached there; inflight: open
requests; kv_tokens: what these hold of the KV cache, shared prefixes once; kv_usage: share of the cache that
they and this prompt would hold, above 1 where it does not fit. Ties, and with them prompts that nobody holds
on an idle pool, go in ring order.

A safety cap on open requests, max(6, 2 * mean), keeps one endpoint from decoding for all. It counts requests
and not work: an endpoint that computes one long document must not turn away the readers of those it holds.

Why 2 * new: a miss also evicts what others need. Why two terms for open requests: a step of decoding takes a
time for each, and reads the KV of each; where prompts are short the second is nothing, and staying warm is
worth more. Why the last term: an endpoint short of KV space soon queues, and one where the prompt does not
fit queues at once; but waiting there can still be cheaper than computing a long prompt again, so that it is a
cost and no filter. Measured: docs/decisions/0012-cap-on-open-requests.md. What they trade: docs/routing.md.
"""

from __future__ import annotations

import itertools
import math

from extproc import ledger
from extproc.policy import question

__all__ = ["STEPS_COUNTED", "cap", "pick"]

STEPS_COUNTED = 4
"""How far down the ring order a warm endpoint is looked for, to tell how many were passed over."""

_NEW_WEIGHT = 2.0
_INFLIGHT_TOKENS = 192.0
_KV_HELD_WEIGHT = 1 / 16
_KV_SHORT_WEIGHT = 4.0


def pick(asked: question.Question) -> question.Pick:
    """The least cost among the candidates below the cap; of equal costs the first in ring order."""
    costs = _costs(asked)
    allowed = _below_cap(asked, costs)
    least = min(allowed)
    reason = question.Reason.OVERFLOW if least > min(costs) else None
    walk = asked.ring_order()
    if allowed.count(least) == 1:  # the ring decides nothing: look only whether it is among the first
        walk = itertools.islice(walk, STEPS_COUNTED)
    for steps, index in enumerate(walk):
        if allowed[index] == least:
            reason = reason or (question.Reason.WARM if steps else question.Reason.HOME)
            return question.Pick(index, reason, steps, tuple(costs))
    index = allowed.index(least)
    return question.Pick(index, reason or question.Reason.WARM, STEPS_COUNTED, tuple(costs))


def cap(asked: question.Question) -> float:
    """The bound on open requests for this decision; the one to place counts in the mean."""
    limits = asked.limits
    return ledger.bound(sum(asked.inflight) + 1, len(asked.inflight), limits.factor, limits.floor_requests)


def _below_cap(asked: question.Question, costs: list[float]) -> list[float]:
    """The costs, infinite where the cap forbids; all of them if it forbids everybody."""
    room_below = cap(asked)
    if max(asked.inflight) < room_below:
        return costs
    allowed = [
        cost if ledger.has_room(requests, room_below) else math.inf
        for cost, requests in zip(costs, asked.inflight, strict=True)
    ]
    return costs if min(allowed) == math.inf else allowed


def _costs(asked: question.Question) -> list[float]:
    """What the prompt costs at each candidate [tokens, >= 0]."""
    prompt = asked.prompt_tokens
    uncached = _NEW_WEIGHT * prompt
    costs = [
        uncached + pending + _INFLIGHT_TOKENS * requests + _KV_HELD_WEIGHT * held - _NEW_WEIGHT * cached
        for pending, requests, held, cached in zip(
            asked.pending, asked.inflight, asked.kv_tokens, asked.cached, strict=True
        )
    ]
    if max(asked.kv_usage) > question.KV_USAGE_FREE:
        for index, usage in enumerate(asked.kv_usage):
            if usage > question.KV_USAGE_FREE:
                held = prompt + asked.pending[index] + ledger.REQUEST_TOKENS
                costs[index] += _KV_SHORT_WEIGHT * (usage - question.KV_USAGE_FREE) * held
    return costs
