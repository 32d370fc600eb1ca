"""Request: what a choice needs to know of a prompt; of a trace, in the simulator.

Called by: router (makes), simulator.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc import chain as _chain
from extproc import choice as _choice
from extproc import prompt as _prompt
from extproc import tuning

__all__ = ["Request", "chain_of", "read"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

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


def read(
    prompt: _prompt.Prompt | _prompt.Unkeyed,
    settings: tuning.Settings,
    key: str | None = None,
    model: str | None = None,
) -> Request:
    """The request of `prompt`.

    Args: key: its explicit key from a header; model: that must be served, where `prompt` does not tell it.
    """
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
    seed = _chain.seed_of(prompt.seeds)
    return _chain.build(seed, prompt.text, settings.block_bytes, settings.blocks_max)
