"""Choice: the record of one decision and its explanation.

Metrics, log line, debug output and `kvring explain` are readers of it; nobody else computes why.
Never: prompt text, or anything as long as a prompt: a choice lives as long as its request.
Called by: router (makes); exchange, server, metrics, cli.explain (read).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from extproc import chain as _chain
from extproc import ledger, prompt
from extproc import policy as _policy
from extproc import pool as _pool
from extproc import signals as _signals

__all__ = ["Choice", "Decision", "Hashed", "KeyedBy", "Limit", "NoEndpoint", "Noted", "Why"]


class KeyedBy(enum.StrEnum):
    """Where the ring key came from. A closed set: it labels metrics."""

    ANCHOR = "anchor"
    HEADER = "header"  # the configured request header
    CACHE_KEY = "prompt_cache_key"
    PREVIOUS = "previous_response"  # follows a stored answer to its endpoint
    NOTHING = "nothing"


class Limit(enum.StrEnum):
    """What bounded the reading of a request. A closed set: it labels metrics."""

    PROMPT_BYTES = "prompt_bytes"  # the body is longer than is read
    BLOCKS = "blocks"  # the prompt is longer than is hashed
    HELD_BYTES = "held_bytes"  # in duplex, more body than is held back
    DECISION_TIMEOUT = "decision_timeout"  # in duplex, the body took longer than is waited
    STREAMS = "streams"  # more streams than are served: no opinion


# msgspec structs: one each a request, four times quicker to make than dataclasses.
class Choice(msgspec.Struct, frozen=True):
    """Which endpoint, and why.

    `alternates`: where to retry, in order. `unkeyed`: why there was no chain, None if there was one.
    `key`: ring key [unsigned 64-bit]; `anchor_block`: where in the chain it was taken, `chain_blocks` for
    the tail. `ring_steps`: endpoints passed over in ring order. `work_seen`: at the chosen one before this
    request [tokens]. `cached_tokens`: of `prompt_tokens`, what the chosen one is thought to hold. `costs`:
    by candidate, () if the policy computes none. `pool`: its name. `signals`: whether what the chosen one's
    engine says of itself was known. `mean_cached_tokens`: as `cached_tokens`, of the mean candidate;
    `prefill_tokens_per_s`: reckoned with then. `limits`: reached while the request was read.
    """

    endpoint: _pool.Endpoint
    alternates: tuple[_pool.Endpoint, ...]
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
    candidates: tuple[_pool.EndpointId, ...]
    costs: tuple[float, ...]
    pool: str = ""
    signals: _signals.SignalAge = _signals.SignalAge.ABSENT
    mean_cached_tokens: float = 0.0
    prefill_tokens_per_s: float = 1.0
    limits: tuple[Limit, ...] = ()

    @property
    def saved_tokens(self) -> float:
        """Prefill saved over a blind choice [tokens]; below 0: cache was given up for less load."""
        return self.cached_tokens - self.mean_cached_tokens

    @property
    def in_short(self) -> str:
        """The decision in one line, for a header; no key, no name of a client's."""
        cached = f"{self.cached_tokens:.0f}/{self.prompt_tokens:.0f}"
        told = {
            "pool": self.pool,
            "endpoint": self.endpoint.id,
            "reason": self.reason.value,
            "policy": self.policy,
            "cached": cached,
            "work": self.work_seen,
            "passed": self.ring_steps,
        }
        if self.unkeyed is not None:
            told["unkeyed"] = self.unkeyed.value
        return "; ".join(f"{name}={value}" for name, value in told.items())

    @property
    def addresses(self) -> str:
        """What Envoy is told: the endpoint, then the alternates, "ip:port,ip:port"."""
        return ",".join(endpoint.address for endpoint in (self.endpoint, *self.alternates))


class Hashed(msgspec.Struct, frozen=True):
    """The hash by which Envoy itself chooses among the endpoints of `pool`, and why that one.

    `hash` [unsigned 64-bit]: None where there is no key; Envoy then draws an endpoint by chance. The others
    as of `Choice`.
    """

    pool: str
    hash: int | None
    unkeyed: prompt.Unkeyed | None
    keyed_by: KeyedBy
    key: int | None
    anchor_block: int | None
    chain_blocks: int
    prompt_tokens: float
    limits: tuple[Limit, ...] = ()

    @property
    def text(self) -> str:
        """What Envoy is told: the hash in hexadecimal, "" for none."""
        return "" if self.hash is None else f"{self.hash:016x}"

    @property
    def in_short(self) -> str:
        """The decision in one line, for a header; no key, no name of a client's."""
        told = {"pool": self.pool, "steering": "hash", "keyed_by": self.keyed_by.value}
        if self.unkeyed is not None:
            told["unkeyed"] = self.unkeyed.value
        return "; ".join(f"{name}={value}" for name, value in told.items())


class Noted(msgspec.Struct, frozen=True):
    """What residency was told of a request at `noted_s`, to be taken back: it held `held` blocks before."""

    chain: _chain.Chain
    held: int
    noted_s: float


class Decision(msgspec.Struct, frozen=True):
    """A choice, and the lease that must be released when the request is over."""

    choice: Choice
    lease: ledger.Lease
    noted: Noted | None = None


class Why(enum.StrEnum):
    """Why nobody was chosen. A closed set: it labels metrics, and names the answer of a refused request."""

    NO_POOL = "no_pool"
    NO_ENDPOINT = "no_endpoint"
    SUBSET = "subset"
    SATURATED = "saturated"
    OBSERVED = "observed"


_BUSY, _UNAVAILABLE = 429, 503


@dataclass(frozen=True, slots=True)
class NoEndpoint:
    """Nobody to choose: the pool is empty, nobody is ready, the gateway's subset names nobody ready, or all
    hold as many requests as they may.

    `pool` is its name, "" if the request belongs to none. `refuse`: the request must not go on unsteered.
    """

    in_pool: int
    ready: int
    pool: str = field(default="", compare=False)
    why: Why = field(default=Why.NO_ENDPOINT, compare=False)
    refuse: bool = field(default=False, compare=False)

    @property
    def status(self) -> int:
        """HTTP status of the answer, where the request is refused."""
        return _BUSY if self.why is Why.SATURATED else _UNAVAILABLE
