"""Cost policy: the endpoint where this prompt costs least, in tokens of prefill.

    cost = pending + 2 * new + 512 * inflight + 4 * max(0, kv_usage - 0.9) * (prompt + pending + 512)

pending: tokens waiting for prefill there; new: this prompt's tokens not cached there; kv_usage: share of the
KV cache that this prompt and the open requests would hold, above 1 where it does not fit. Ties, and with them
prompts that nobody holds on an idle pool, go in ring order. The bound on work is only a safety cap here.

Why 2 * new: a miss also evicts what others need. Why the kv term: an endpoint short of KV space soon queues,
and one where the prompt does not fit queues at once; but waiting there can still be cheaper than computing
a long prompt again, so that it is a cost and no filter. The weights and what they trade: docs/routing.md.
"""

from __future__ import annotations

import itertools
import math

from extproc import ledger
from extproc.policy import question, ring

__all__ = ["STEPS_COUNTED", "pick"]

STEPS_COUNTED = 4
"""How far down the ring order a warm endpoint is looked for, to tell how many were passed over."""

_NEW_WEIGHT = 2.0
_KV_WEIGHT = 4.0


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


def _below_cap(asked: question.Question, costs: list[float]) -> list[float]:
    """The costs, infinite where the cap forbids; all of them if it forbids everybody."""
    room_below = ring.limit(asked)
    if max(asked.work) < room_below:
        return costs
    allowed = [
        cost if ledger.has_room(work, room_below) else math.inf
        for cost, work in zip(costs, asked.work, strict=True)
    ]
    return costs if min(allowed) == math.inf else allowed


def _costs(asked: question.Question) -> list[float]:
    """What the prompt costs at each candidate [tokens, >= 0]."""
    prompt = asked.prompt_tokens
    uncached = _NEW_WEIGHT * prompt
    costs = [
        work + uncached - _NEW_WEIGHT * cached for work, cached in zip(asked.work, asked.cached, strict=True)
    ]
    if max(asked.kv_usage) > question.KV_USAGE_FREE:
        for index, usage in enumerate(asked.kv_usage):
            if usage > question.KV_USAGE_FREE:
                held = prompt + asked.pending[index] + ledger.REQUEST_TOKENS
                costs[index] += _KV_WEIGHT * (usage - question.KV_USAGE_FREE) * held
    return costs
