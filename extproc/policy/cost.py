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

from extproc import ledger
from extproc.policy import question, ring

__all__ = ["NEW_WEIGHT", "cost", "pick"]

NEW_WEIGHT = 2.0
KV_WEIGHT = 4.0
KV_USAGE_FREE = 0.9


def pick(asked: question.Question) -> question.Pick:
    """The least cost among the candidates below the cap; of equal costs the first in ring order."""
    room_below = ring.limit(asked)
    costs = tuple(cost(candidate, asked.prompt_tokens) for candidate in asked.candidates)
    least_of_all = min(costs)
    roomy = [
        index
        for index, candidate in enumerate(asked.candidates)
        if ledger.has_room(candidate.work, room_below)
    ] or range(len(costs))
    least = min(costs[index] for index in roomy)
    tied = {index for index in roomy if costs[index] == least}
    for steps, index in enumerate(asked.ring_order()):
        if index in tied:
            return question.Pick(index, _reason(steps, least > least_of_all), steps, costs)
    return question.Pick(min(tied), question.Reason.WARM, 0, costs)


def cost(candidate: question.Candidate, prompt_tokens: float) -> float:
    """What a prompt of `prompt_tokens` costs at `candidate` [tokens, >= 0]."""
    new = max(prompt_tokens - candidate.cached_tokens, 0.0)
    tokens = candidate.work + NEW_WEIGHT * new
    if candidate.kv_usage is not None and candidate.kv_usage > KV_USAGE_FREE:
        held = prompt_tokens + candidate.pending_tokens + ledger.REQUEST_TOKENS
        tokens += KV_WEIGHT * (candidate.kv_usage - KV_USAGE_FREE) * held
    return tokens


def _reason(steps: int, capped: bool) -> question.Reason:  # noqa: FBT001  (two facts, read in one place)
    if capped:
        return question.Reason.OVERFLOW
    return question.Reason.WARM if steps else question.Reason.HOME
