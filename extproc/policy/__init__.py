"""Policies: how one endpoint is chosen from the candidates. One small module each, all pure functions.

A policy reads a `Question` (a snapshot: nothing in it changes) and answers with a `Pick`. Ring order comes
lazily, since most policies need only its start.
Called by: router.
"""

from extproc.policy import cost, least_load, random, ring, round_robin
from extproc.policy.cost import cap
from extproc.policy.question import KV_USAGE_FREE, Limits, Look, Pick, Policy, Question, Reason, RingOrder
from extproc.policy.ring import limit

__all__ = [
    "KV_USAGE_FREE",
    "POLICIES",
    "Limits",
    "Look",
    "Pick",
    "Policy",
    "Question",
    "Reason",
    "RingOrder",
    "cap",
    "limit",
]

POLICIES: dict[str, Policy] = {
    "cost": cost.pick,
    "ring": ring.pick,
    "least_load": least_load.pick,
    "round_robin": round_robin.pick,
    "random": random.pick,
}
"""By the name used in the configuration."""
