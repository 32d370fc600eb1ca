"""Question and pick: what a policy may see, and what it answers.

Never: anything that a policy could change. Called by: router (asks), every policy.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from extproc import ledger, pool

__all__ = ["Candidate", "Limits", "Pick", "Policy", "Question", "Reason", "RingOrder"]


class Reason(enum.StrEnum):
    """Why an endpoint was chosen. A closed set: it labels metrics."""

    HOME = "home"  # first in ring order
    WARM = "warm"  # another that holds more of the prompt or has less to do
    OVERFLOW = "overflow"  # the one preferred was over the bound
    LEAST_LOAD = "least_load"
    TURN = "turn"  # round robin or chance


# msgspec structs here and below: made once per endpoint and request, four times quicker than dataclasses.
class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One endpoint as a policy sees it; tokens are of this request's prompt."""

    endpoint: pool.Endpoint
    inflight: int
    pending_tokens: int
    cached_tokens: float = 0.0
    kv_usage: float | None = None  # with this prompt; > 1: it does not fit; None where nothing is known
    share: float = 1.0  # of a full endpoint's load that it should take (see `ramp`)
    gpu_tokens: float = 0.0  # of the cached ones, on the GPU

    @property
    def work(self) -> int:
        """Load in one number [tokens], as large as it is for this endpoint."""
        work = self.pending_tokens + ledger.REQUEST_TOKENS * self.inflight
        return work if self.share >= 1.0 else int(work / self.share)


class Limits(msgspec.Struct, frozen=True):
    """The bound on work: `max(floor_tokens, factor * mean)`; factor [ratio, > 1], floor [tokens, >= 0]."""

    factor: float = 2.0
    floor_tokens: float = 8192.0


class RingOrder(Protocol):
    """Ring order of this request's key, as positions in `Question.candidates`; home first."""

    def __call__(self) -> Iterator[int]:
        """A fresh walk."""
        ...


class Question(msgspec.Struct, frozen=True):
    """One decision to make: which of `candidates` (at least one) takes a prompt of `prompt_tokens`?

    `turn` counts decisions of the policy asked [0, 1, ...]; `chance` is uniform in [0, 1).
    """

    candidates: Sequence[Candidate]
    prompt_tokens: float
    ring_order: RingOrder
    limits: Limits
    turn: int
    chance: float


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
