"""Chooser: whatever picks an endpoint in a simulation: the production router, or a baseline.

A chooser is told what a gateway sidecar could know, no more: the request, the pool, what a scrape of the
engines' metrics shows, and, through the lease, when a request's first token came and when it was over.
A baseline that keeps counts takes its leases from a `ledger.Ledger` of its own; one that only wants to hear
of those two moments subclasses `ledger.Lease`. `decision` makes the record the simulator reads.

Law: a chooser is a function of its calls. No clock, no chance but the one handed in, no `hash()`: a run must
come out the same in every process. Called by: simulation. Implemented by: `policies.Production`, baselines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from extproc import choice, ledger, policy, pool, router

__all__ = ["Chooser", "Factory", "Request", "Signals", "decision"]


@dataclass(frozen=True, slots=True)
class Request(router.Request):
    """A request as its text would show it, for choosers that read more of it than the chain.

    `chain`: blocks of 64 tokens. `session`: the client's session id, "" if it sends none (then nobody may
    use one). `adapter`: LoRA adapter or tenant, seeded into the chain. `system_tokens`: length of the leading
    system messages and tools, 0 for none; `system`: their hash. `user`: hash of the first 100 characters of
    the first user message. Hashes are unsigned 64-bit, equal for equal text.
    """

    session: str = ""
    adapter: str = ""
    system_tokens: int = 0
    system: int = 0
    user: int = 0


@dataclass(frozen=True, slots=True)
class Signals:
    """One scrape of an endpoint's metrics, named as in vLLM.

    `kv_usage`: share of KV blocks held by live requests [0..1]. `running`, `waiting`: requests [count].
    `started_s`: when the process started, on the simulation's clock; another value means a restart.
    """

    kv_usage: float
    running: int
    waiting: int
    started_s: float = 0.0


class Chooser(Protocol):
    """Places requests. `router.Router` is the production one, behind `policies.Production`."""

    def place(self, request: Request, now: float, chance: float) -> choice.Decision | choice.NoEndpoint:
        """The endpoint for `request`, with the lease already taken.

        Args: now [s, virtual, never falls]; chance, uniform in [0, 1).
        """
        ...

    def publish(self, members: pool.Pool, /) -> None:
        """Replace the pool: an endpoint joined, left, or changed its readiness."""
        ...

    def observe(self, endpoint: pool.EndpointId, signals: Signals, now: float) -> None:
        """What a scrape of `endpoint` showed at `now`; once a second for each that is up."""
        ...


Factory = Callable[[pool.Pool, router.Settings], Chooser]
"""Makes a chooser for a pool. A baseline reads of the settings what it has a use for: `kv_tokens`,
`prefill_tokens_per_s`, `block_bytes`, `bytes_per_token`; its first docstring line is shown by `--list`."""


def decision(
    endpoint: pool.Endpoint,
    lease: ledger.Lease,
    request: Request,
    *,
    policy_name: str,
    reason: policy.Reason = policy.Reason.LEAST_LOAD,
    ring_steps: int = 0,
    work_seen: int = 0,
    cached_tokens: float = 0.0,
) -> choice.Decision:
    """The decision of a chooser that explains no more than this."""
    made = choice.Choice(
        endpoint=endpoint,
        alternates=(),
        policy=policy_name,
        reason=reason,
        unkeyed=request.unkeyed,
        keyed_by=choice.KeyedBy.NOTHING,
        key=None,
        anchor_block=None,
        chain_blocks=0 if request.chain is None else len(request.chain),
        ring_steps=ring_steps,
        work_seen=work_seen,
        prompt_tokens=request.tokens,
        cached_tokens=cached_tokens,
        candidates=(),
        costs=(),
    )
    return choice.Decision(made, lease)
