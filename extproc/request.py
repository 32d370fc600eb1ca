"""Request: what a choice needs to know of a request; and a preview of what that choice would be.

Values only. Called by: router, explanation, the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc import chain as _chain
from extproc import choice as _choice
from extproc import policy as _policy
from extproc import pool as _pool
from extproc import prompt as _prompt

__all__ = ["Preview", "Request"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a choice needs to know; `Router.read` makes it of a prompt, the simulator of a trace.

    `chain` None: routed by load, for the reason `unkeyed`. `tokens`: of the prompt, of which `unread_tokens`
    lie behind what the chain covers. `prefills`: whether the engine will compute them. `explicit`: the
    request's own key, `explicit_by` where it stood. `previous`: the stored answer that it continues.
    `model`: who may serve it; None if that is not known.
    """

    chain: _chain.Chain | None = None
    tokens: float = 0.0
    unread_tokens: float = 0.0
    prefills: bool = True
    unkeyed: _prompt.Unkeyed | None = None
    explicit: str | None = None
    explicit_by: _choice.KeyedBy = _choice.KeyedBy.HEADER
    previous: str | None = None
    model: str | None = None

    def limits(self, blocks_max: int) -> tuple[_choice.Limit, ...]:
        """What bounded the reading of it; `blocks_max`: hashed at most."""
        found = [_choice.Limit.PROMPT_BYTES] if self.unread_tokens else []
        if self.chain is not None and len(self.chain) >= blocks_max:
            found.append(_choice.Limit.BLOCKS)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be chosen, and of what: `candidates` as the policy saw them; `order`: the ring's, () without
    a key; `bound`: on their work [tokens].
    """

    choice: _choice.Choice
    candidates: tuple[_policy.Candidate, ...]
    order: tuple[_pool.EndpointId, ...]
    bound: float
