"""Job: what an engine is asked, and what it answers with: tokens, or why it takes no more.

Invariant: a request's tokens come in order, positions 0 to output_tokens - 1, the last one marked.
Called by: engine, pacer, exposition, simulations.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Rejection", "Request", "Token"]


class Rejection(enum.Enum):
    """Why a request was not taken; the values are vLLM's metric labels where it has one."""

    QUEUED_REQUESTS = "max_num_queued_reqs"
    QUEUED_TOKENS = "max_num_queued_tokens"
    TOO_LONG = "too_long"  # would not fit an empty cache


@dataclass(frozen=True, slots=True)
class Request:
    """What an engine needs to know of a request.

    `request_id`: unique among live ones. `prompt_tokens`, `output_tokens` [>= 1]: the output's length is
    known beforehand, the model always reaches its limit. `hashes`: chained hashes of the full blocks of
    prompt and output, see `kv_cache.chain`; fewer means the rest is not cached. `reads_cache`: False for
    requests that need every prompt token computed. `choices`: answers asked for (n), for the metrics only.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    hashes: Sequence[int]
    reads_cache: bool = True
    choices: int = 1


class Token(NamedTuple):
    """One output token. A tuple, not a dataclass: thousands a second are made.

    `at` [s]: when the step that sampled it ended. `position`: from 0. `cached_tokens`: of the prompt.
    """

    request_id: str
    at: float
    position: int
    last: bool
    cached_tokens: int
