"""Hooks: headers by which the gateways' conformance tests name the endpoint to choose and ask who served.

Off unless configured: a client could choose endpoints with them.
Called by: exchange. Source: conformance tests of the Gateway API Inference Extension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from extproc import choice

__all__ = ["CHOICE", "SERVED", "choose"]

CHOICE = "test-epp-endpoint-selection"
SERVED = "x-conformance-test-served-endpoint"

_Answer = choice.Decision | choice.NoEndpoint


def choose(headers: Mapping[str, str], among: Callable[[tuple[str, ...]], _Answer]) -> _Answer | None:
    """The first endpoint named that can be had; None if none is named.

    Args: among: chooses within a subset of addresses.
    """
    wanted = headers.get(CHOICE)
    if not wanted:
        return None
    for entry in wanted.split(","):
        answer = among((entry.strip(),))
        if isinstance(answer, choice.Decision):
            return answer
    return choice.NoEndpoint(0, 0, why=choice.Why.SUBSET, refuse=True)
