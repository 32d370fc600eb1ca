"""Cost policy: the endpoint where this prompt costs least, in tokens of prefill.

    cost = pending + 2 * new + inflight * (64 + new / 4) + kv_tokens / 16
           + 4 * max(0, kv_usage - 0.9) * (prompt + pending + 512) + 16384 * max(0, kv_usage - 1)

pending: tokens waiting for prefill there; new: this prompt's tokens not cached there; inflight: open
requests; kv_tokens: what these hold of the KV cache, shared prefixes once; kv_usage: share of the cache that
they and this prompt would hold, above 1 where it does not fit. What nearly all prompts begin with is new
nowhere: every endpoint computes it once, sooner or later, and those that did first are not to serve all.

Costs that differ by less than a block are equal. Of these the one is taken that has room in its cache for
what the prompt adds, or would drop for it what was used longest ago; of equals again the first in ring order.
So a prompt that nobody holds goes home while caches have room, and evicts least where they are full.

A safety cap on open requests, max(8, 2 * mean), keeps one endpoint from decoding for all. It counts requests
and not work: an endpoint that computes one long document must not turn away the readers of those it holds.
To leave the endpoint with the least cost can be dearer than to be one more there: where all others cost
over 2,048 tokens more it takes half as many again. What many share is not counted, and its cache must have
room: one more copy of a hot prefix is what the cap is for. A crowd that has just come will be gone before a
copy is of use: there the whole price counts.

Why 2 * new: a miss also evicts what others need. Why three terms for open requests: what is computed beside
them delays each; a step of decoding takes a time for each, and reads the KV of each. Where prompts are short
the last is nothing, and staying warm is worth more. Why the last line: an endpoint short of KV space soon
queues, and one where the prompt does not fit queues at once, however short it is; but waiting there can still
be cheaper than computing a long prompt again, so that it is a cost and no filter. How long a wait it is can
be told where all requests are known. Measured:
docs/decisions/0012-cap-on-open-requests.md, 0014-tails-by-cause.md, 0015-what-all-prompts-share.md,
0016-crowds-that-have-just-come.md.
What they trade: docs/routing.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from extproc import ledger
from extproc.policy import question

__all__ = ["STEPS_COUNTED", "cap", "pick"]

STEPS_COUNTED = 4
"""How far down the ring order a warm endpoint is looked for, to tell how many were passed over."""

_EQUALS_SEEN = 8
"""Of how many equals, the first in ring order, it is looked up what they would drop: each costs a step."""

_EQUAL_TOKENS = 64.0
_NEW_WEIGHT = 2.0
_INFLIGHT_TOKENS = 64.0
_DELAYED_WEIGHT = 1 / 4
_KV_HELD_WEIGHT = 1 / 16
_KV_SHORT_WEIGHT = 4.0
_KV_WAIT_TOKENS = 16384.0

_STAY_TOKENS = 2048.0
_STAY_FACTOR = 1.5
_STAY_KV_SHARE = 0.5


def pick(asked: question.Question) -> question.Pick:
    """The least cost among the candidates below the cap; of equals who drops least, then in ring order."""
    costs = _costs(asked)
    allowed = _below_cap(asked, costs)
    least = min(allowed)
    equal = [index for index, cost in enumerate(allowed) if cost <= least + _EQUAL_TOKENS]
    index = equal[0] if len(equal) == 1 else _first(asked, equal, allowed)
    steps = STEPS_COUNTED
    for passed, other in enumerate(itertools.islice(asked.ring_order(), STEPS_COUNTED)):
        if other == index:
            steps = passed
            break
    reason = question.Reason.WARM if steps else question.Reason.HOME
    if least > (cheapest := min(costs)) and costs[index] > cheapest:
        reason = question.Reason.OVERFLOW
    return question.Pick(index, reason, steps, tuple(costs))


def _first(asked: question.Question, equal: Sequence[int], allowed: Sequence[float]) -> int:
    """Of the `equal`, the first in ring order of those that drop what was used longest ago."""
    near = [index for index in itertools.islice(asked.ring_order(), _EQUALS_SEEN) if index in equal]
    if not near:  # none of them is among the first of the walk
        return min(equal, key=allowed.__getitem__)
    return min(near, key=asked.look.displaced_s)


def cap(asked: question.Question) -> float:
    """The bound on open requests for this decision; the one to place counts in the mean."""
    limits = asked.limits
    return ledger.bound(sum(asked.inflight) + 1, len(asked.inflight), limits.factor, limits.floor_requests)


def _below_cap(asked: question.Question, costs: list[float]) -> list[float]:
    """The costs, infinite where the cap forbids, higher where it stretches; all if it forbids everybody."""
    room_below = cap(asked)
    if max(asked.inflight) < room_below:
        return costs
    allowed = [
        cost if ledger.has_room(requests, room_below) else math.inf
        for cost, requests in zip(costs, asked.inflight, strict=True)
    ]
    if min(allowed) == math.inf:
        return costs
    elsewhere, elsewhere_of_own = min(allowed), _price_of_leaving(asked, allowed)
    for index, cost in enumerate(costs):
        least = cost + _STAY_TOKENS
        if (
            least < elsewhere
            and ledger.has_room(asked.inflight[index], _STAY_FACTOR * room_below)
            and (
                (asked.heard and asked.look.has_new_crowd(index))
                or (least < elsewhere_of_own and asked.look.kv_taken(index) <= _STAY_KV_SHARE)
            )
        ):
            allowed[index] = least
    return allowed


def _price_of_leaving(asked: question.Question, allowed: Sequence[float]) -> float:
    """The least cost among `allowed` of what this prompt has for itself. What it shares is left out: to have
    that computed at one more endpoint is what the cap is for.
    """
    shared = min(asked.shared_tokens, asked.prompt_tokens)
    return min(
        cost - _weight_of_new(requests) * max(0.0, shared - max(held, asked.common_tokens))
        for cost, requests, held in zip(allowed, asked.inflight, asked.cached, strict=True)
    )


def _weight_of_new(inflight: float) -> float:
    return _NEW_WEIGHT + _DELAYED_WEIGHT * inflight


def _costs(asked: question.Question) -> list[float]:
    """What the prompt costs at each candidate [tokens, >= 0]."""
    prompt = asked.prompt_tokens
    cached = asked.cached
    if asked.common_tokens:
        common = min(asked.common_tokens, prompt)
        cached = [max(tokens, common) for tokens in cached]
    # in one expression and with no call: with 256 candidates this is most of what choosing takes
    costs = [
        pending
        + (_NEW_WEIGHT + _DELAYED_WEIGHT * requests) * (prompt - held)
        + _INFLIGHT_TOKENS * requests
        + _KV_HELD_WEIGHT * kv_tokens
        for pending, requests, kv_tokens, held in zip(
            asked.pending, asked.inflight, asked.kv_tokens, cached, strict=True
        )
    ]
    if max(asked.kv_usage) > question.KV_USAGE_FREE:
        for index, usage in enumerate(asked.kv_usage):
            if usage > question.KV_USAGE_FREE:
                held = prompt + asked.pending[index] + ledger.REQUEST_TOKENS
                costs[index] += _KV_SHORT_WEIGHT * (usage - question.KV_USAGE_FREE) * held
                if usage > 1 and asked.heard:
                    costs[index] += _KV_WAIT_TOKENS * (usage - 1)
    return costs
