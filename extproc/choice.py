"""Choice: the record of one decision and its explanation.

Metrics, log line, debug output and `kvring explain` are readers of it; nobody else computes why.
Never: prompt text, or anything as long as a prompt: a choice lives as long as its request.
Called by: router (makes); exchange, server, metrics, cli.explain (read).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from extproc import ledger, pool, prompt
from extproc import policy as _policy

__all__ = ["Choice", "Decision", "KeyedBy", "NoEndpoint"]


class KeyedBy(enum.StrEnum):
    """Where the ring key came from. A closed set: it labels metrics."""

    ANCHOR = "anchor"
    HEADER = "header"  # the configured request header
    CACHE_KEY = "prompt_cache_key"
    PREVIOUS = "previous_response"  # follows a stored answer to its endpoint
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which endpoint, and why.

    `alternates`: where to retry, in order. `unkeyed`: why there was no chain, None if there was one.
    `key`: ring key [unsigned 64-bit]; `anchor_block`: where in the chain it was taken, `chain_blocks` for
    the tail. `ring_steps`: endpoints passed over in ring order. `work_seen`: at the chosen one before this
    request [tokens]. `cached_tokens`: of `prompt_tokens`, what the chosen one is thought to hold. `costs`:
    by candidate, () if the policy computes none.
    """

    endpoint: pool.Endpoint
    alternates: tuple[pool.Endpoint, ...]
    policy: str
    reason: _policy.Reason
    unkeyed: prompt.Unkeyed | None
    keyed_by: KeyedBy
    key: int | None
    anchor_block: int | None
    chain_blocks: int
    ring_steps: int
    work_seen: int
    prompt_tokens: float
    cached_tokens: float
    candidates: tuple[pool.EndpointId, ...]
    costs: tuple[float, ...]

    @property
    def addresses(self) -> str:
        """What Envoy is told: the endpoint, then the alternates, "ip:port,ip:port"."""
        return ",".join(endpoint.address for endpoint in (self.endpoint, *self.alternates))


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice, and the lease that must be released when the request is over."""

    choice: Choice
    lease: ledger.Lease


@dataclass(frozen=True, slots=True)
class NoEndpoint:
    """Nobody to choose: the pool is empty, nobody is ready, or the gateway's subset names nobody ready."""

    in_pool: int
    ready: int
