"""Hooks: what the gateways' own conformance tests ask of a picker, and nobody else may."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.conformance import play
from extproc.conformance.check import Check, FailedError, Severity, SkippedError
from extproc.conformance.stream import Opening
from extproc.conformance.target import Target

__all__ = ["CHECKS"]

_CHOICE = "test-epp-endpoint-selection"
_SERVED = "x-conformance-test-served-endpoint"
_SUITE = "gateway conformance tests of the Gateway API Inference Extension"
_TRIES = 8


def _known(target: Target, *, on: bool) -> Sequence[str]:
    if on and not target.settings.hooks:
        raise SkippedError("for a picker with its hooks on: --hooks")
    if not on and target.settings.hooks:
        raise SkippedError("--hooks says that they are on")
    if len(target.pool) < 2:
        raise SkippedError(f"{len(target.pool)} endpoint(s) known; name two or more with --endpoints")
    return target.pool[:4]


async def _selection(target: Target) -> None:
    known = _known(target, on=True)
    for number in range(_TRIES):
        address = known[number % len(known)]
        for request in (
            play.chat(target, f"hook {number}", more={_CHOICE: address}),
            play.Request(None, "/v1/models", {_CHOICE: address}),
        ):
            pick = await play.choice(target, request)
            if pick.addresses[0] != address:
                raise FailedError(f"asked for {address}, picked {pick.value}")
    both = f"{known[0]}, {known[1]}"
    pick = await play.choice(target, play.chat(target, "hook list", more={_CHOICE: both}))
    if not set(pick.addresses) <= set(known[:2]):
        raise FailedError(f"asked for {both}, picked {pick.value}")
    host = known[0].rpartition(":")[0]
    pick = await play.choice(target, play.chat(target, "hook ip", more={_CHOICE: host}))
    if pick.addresses[0].rpartition(":")[0] != host:
        raise FailedError(f"asked for {host}, picked {pick.value}")


async def _served(target: Target) -> None:
    known = _known(target, on=True)
    for address in known[:2]:
        async with play.opened(target, Opening(response=play.DUPLEX)) as on:
            await play.duplex(on, play.chat(target, "served"))
            await on.response_headers({":status": "200"}, served=address)
            await on.until(lambda: bool(on.of("response_headers")))
        told = next((reply.header(_SERVED) for reply in on.of("response_headers")), None)
        if told != address:
            raise FailedError(f"the gateway said {address}, {_SERVED} is {told}; {on.trouble}")


async def _off(target: Target) -> None:
    known = _known(target, on=False)
    obeyed = 0
    for number in range(_TRIES):
        address = known[
            number // (_TRIES // 2)
        ]  # several times the same: a round robin must not look obedient
        on = await play.steered(target, play.chat(target, "hooks off", more={_CHOICE: address}))
        if on.picked is None:
            raise SkippedError("it did not pick: see duplex-pick")
        obeyed += on.picked.addresses[0] == address
    if obeyed == _TRIES:
        raise FailedError(f"{_CHOICE} was obeyed {obeyed} times of {_TRIES}")


CHECKS = (
    Check(
        "hooks-selection",
        Severity.MUST,
        f"Request header `{_CHOICE}` names the endpoint.",
        "The gateway conformance tests fail with this picker.",
        _SUITE,
        _selection,
    ),
    Check(
        "hooks-served",
        Severity.MUST,
        f"Response header `{_SERVED}` tells who served.",
        "The gateway conformance tests fail with this picker.",
        _SUITE,
        _served,
    ),
    Check(
        "hooks-off",
        Severity.SHOULD,
        f"In production `{_CHOICE}` means nothing.",
        "Clients choose their own endpoint and overload it.",
        "security",
        _off,
    ),
)
