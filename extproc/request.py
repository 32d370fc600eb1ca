"""Request: what a choice needs to know of one HTTP request.

Called by: router (makes it of a prompt, reads), survey (reads), the simulator (makes it of a trace).
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc import chain as _chain
from extproc import choice as _choice
from extproc import prompt as _prompt

__all__ = ["Request"]


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
