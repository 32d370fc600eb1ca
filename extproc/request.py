"""Request: what a choice needs to know of one HTTP request; and a preview of what that choice would be.

Called by: router (makes it of a prompt, reads), survey (reads), the simulator (makes it of a trace),
explanation (previews).
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc import chain as _chain
from extproc import choice as _choice
from extproc import footprint as _footprint
from extproc import policy as _policy
from extproc import pool as _pool
from extproc import prompt as _prompt
from extproc import tuning

__all__ = ["Preview", "Request", "chain_of", "read"]


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

    def footprint(self, block_tokens: float) -> _footprint.Footprint:
        """The KV it holds while it is open; `block_tokens`: in a block of the chain."""
        if not self.prefills:
            return _footprint.NOTHING
        hashes = () if self.chain is None else self.chain.hashes
        return _footprint.of(hashes, block_tokens, self.tokens)


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
        """Up to which a candidate takes more: open requests by `cost`, work [tokens] by others."""
        return (_policy.cap if self.choice.policy == "cost" else _policy.limit)(self.asked)


def read(
    prompt: _prompt.Prompt | _prompt.Unkeyed, settings: tuning.Settings, key: str | None, model: str | None
) -> Request:
    """The request of `prompt`; `key` is its explicit key from a header; `model`: if `prompt` tells none."""
    if isinstance(prompt, _prompt.Unkeyed):
        return Request(unkeyed=prompt, explicit=key, model=model)
    unread = prompt.unread_bytes / settings.bytes_per_token
    return Request(
        chain=chain_of(prompt, settings) if prompt.unkeyed is None else None,
        tokens=len(prompt.text) / settings.bytes_per_token + unread,
        unread_tokens=unread,
        prefills=prompt.prefills,
        unkeyed=prompt.unkeyed,
        explicit=key or prompt.cache_key,
        explicit_by=_choice.KeyedBy.HEADER if key else _choice.KeyedBy.CACHE_KEY,
        previous=prompt.previous_response,
        model=prompt.model,
    )


def chain_of(prompt: _prompt.Prompt, settings: tuning.Settings) -> _chain.Chain:
    """The chain of `prompt` under a pool's block size."""
    return _chain.build(_chain.seed_of(prompt.seeds), prompt.text, settings.block_bytes, settings.blocks_max)
