"""Request: what a choice needs to know of one HTTP request; and a preview of what that choice would be.

Called by: router (makes it of a prompt, reads), survey (reads), the simulator (makes it of a trace),
explanation (previews).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from extproc import anchor as _anchor
from extproc import chain as _chain
from extproc import choice as _choice
from extproc import policy as _policy
from extproc import pool as _pool
from extproc import prompt as _prompt

__all__ = ["Key", "Preview", "Request"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a choice needs to know; see `Router.read`.

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


class Key(msgspec.Struct, frozen=True):
    """Where a request belongs: ring key [unsigned 64-bit], None if nowhere, and where it came from.

    `first`: an endpoint to try before the ring's. `hot`: the shared prefixes before the anchor.
    """

    by: _choice.KeyedBy = _choice.KeyedBy.NOTHING
    value: int | None = None
    anchor_block: int | None = None
    first: _pool.EndpointId | None = None
    hot: tuple[_anchor.Hot, ...] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be chosen, and of what: `names` of the candidates, their columns in `asked`; `order`: the
    ring's, () without a key.
    """

    choice: _choice.Choice
    names: tuple[_pool.EndpointId, ...]
    asked: _policy.Question
    order: tuple[_pool.EndpointId, ...]

    @property
    def bound(self) -> float:
        """On the candidates' work [tokens]."""
        return _policy.limit(self.asked)
