"""Question and pick: what a policy may see, and what it answers.

Columns and not an object for each endpoint: with hundreds, making these cost more than choosing.

Never: anything that a policy could change. Called by: router (asks), every policy.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

__all__ = ["KV_USAGE_FREE", "Limits", "Look", "Pick", "Policy", "Question", "Reason", "RingOrder"]


KV_USAGE_FREE = 0.9
"""Share of an endpoint's KV cache up to which nothing queues for want of it."""


class Reason(enum.StrEnum):
    """Why an endpoint was chosen. A closed set: it labels metrics."""

    HOME = "home"  # first in ring order
    WARM = "warm"  # another that holds more of the prompt or has less to do
    OVERFLOW = "overflow"  # the one preferred was over the bound
    LEAST_LOAD = "least_load"
    TURN = "turn"  # round robin or chance


# msgspec structs here and below: made for each request, four times quicker than dataclasses.
class Limits(msgspec.Struct, frozen=True):
    """How much more than the others an endpoint may take, `max(floor, factor * mean)`, and it takes no more.

    `ring` bounds work, above `floor_tokens` [>= 0]; `cost` open requests, above `floor_requests` [>= 0].
    `factor` [ratio, > 1].
    """

    factor: float = 2.0
    floor_tokens: float = 8192.0
    floor_requests: float = 8.0


class RingOrder(Protocol):
    """Ring order of this request's key, as positions of candidates; home first."""

    def __call__(self) -> Iterator[int]:
        """A fresh walk."""
        ...


class Look(Protocol):
    """What can be asked of the candidate at a position: too dear to be told of all, wanted of few."""

    def displaced_s(self, index: int, /) -> float:
        """When that was last used which it would drop next for the prompt [s, monotonic]; -inf where it has
        room.
        """
        ...

    def kv_taken(self, index: int, /) -> float:
        """What `kv_usage` is there, exact below `KV_USAGE_FREE` as well [>= 0]."""
        ...

    def has_new_crowd(self, index: int, /) -> bool:
        """Whether most of its open requests have come lately, more than in steady traffic."""
        ...


class Question(msgspec.Struct, frozen=True):
    """One decision to make: which candidate (there is at least one) takes a prompt of `prompt_tokens`?

    What is known of the candidates stands in columns, one value for each: `inflight`, open requests;
    `pending`, tokens waiting for prefill; `work`, both in one number [tokens]; all three as large as they are
    for this endpoint (see `ramp`); `kv_tokens`, of KV held by open requests; `cached`, of this prompt's
    tokens those held there [0..`prompt_tokens`]; `kv_usage`, share of the KV cache taken with this prompt,
    above 1 where it does not fit, and not exact below `KV_USAGE_FREE`.

    `turn` counts decisions of the policy asked [0, 1, ...]; `chance` is uniform in [0, 1).

    `shared_tokens`: how long the prefix is that many prompts have [>= 0]; `common_tokens`: that nearly all
    have. Each endpoint will need the latter soon, so that it is no reason to stay with those that have it.

    `heard`: whether all requests are known. If not, others place some, and of these there are only counts.
    """

    inflight: Sequence[float]
    pending: Sequence[float]
    work: Sequence[float]
    kv_tokens: Sequence[float]
    cached: Sequence[float]
    kv_usage: Sequence[float]
    prompt_tokens: float
    ring_order: RingOrder
    limits: Limits
    turn: int
    chance: float
    look: Look
    common_tokens: float = 0.0
    shared_tokens: float = 0.0
    heard: bool = True


class Pick(msgspec.Struct, frozen=True):
    """The answer: position in `candidates`, why, endpoints passed over in ring order, costs if computed."""

    index: int
    reason: Reason
    ring_steps: int = 0
    costs: tuple[float, ...] = ()


class Policy(Protocol):
    """A way to choose."""

    def __call__(self, asked: Question, /) -> Pick:
        """The pick for `asked`."""
        ...
