"""Subset: that a gateway's hint of allowed endpoints is obeyed, and that nobody outside is named instead."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.conformance import play
from extproc.conformance.check import Check, FailedError, Severity, SkippedError
from extproc.conformance.reply import Pick
from extproc.conformance.stream import Opening
from extproc.conformance.target import Target

__all__ = ["CHECKS"]

_PROPOSAL = "proposal 004, subset hint"
_NOBODY = "192.0.2.99:9"  # by RFC 5737 no pool's
_NOBODY_6 = "[2001:db8::99]:9"  # RFC 3849
_TRIED_MAX = 4  # endpoints that are asked for, one after another
_REFUSED = 503


def _known(target: Target, at_least: int = 2) -> Sequence[str]:
    if len(target.pool) < at_least:
        raise SkippedError(f"{len(target.pool)} endpoint(s) known; name two or more with --endpoints")
    return target.pool[:_TRIED_MAX]


def _twice(addresses: Sequence[str]) -> list[str]:
    """Each two times in a row: a picker that goes round in step must not look obedient."""
    return [address for address in addresses for _ in range(2)]


async def _asked(
    target: Target, subset: Sequence[str] | str, mode: int = play.DUPLEX, *, bodyless: bool = False
) -> Pick:
    request = play.MODELS if bodyless else play.chat(target, f"subset {subset}")
    return await play.choice(target, request, Opening(request=mode, subset=subset))  # type: ignore[arg-type]


def _inside(pick: Pick, allowed: Sequence[str]) -> None:
    outside = set(pick.addresses).difference(allowed)
    if outside:
        raise FailedError(f"allowed {', '.join(allowed)}; picked {pick.value}")


async def _list(target: Target) -> str:
    known = _known(target)
    for address in known:
        _inside(await _asked(target, (address,)), [address])
        _inside(await _asked(target, (_NOBODY, address)), [address])
    _inside(await _asked(target, known[:2]), known[:2])
    return f"{len(known)} endpoints asked for"


async def _string(target: Target) -> None:
    known = _known(target)
    for address in _twice(known):
        _inside(await _asked(target, address), [address])
    _inside(await _asked(target, f"{known[0]}, {_NOBODY}"), known[:1])
    _inside(await _asked(target, ",".join(known[:2])), known[:2])


async def _bodyless(target: Target) -> None:
    for address in _twice(_known(target)):
        _inside(await _asked(target, (address,), bodyless=True), [address])


async def _buffered(target: Target) -> None:
    for address in _twice(_known(target)):
        _inside(await _asked(target, (address,), play.BUFFERED), [address])


async def _port(target: Target) -> None:
    known = _known(target, 1)
    host, _, _ = known[0].rpartition(":")
    await _refused(target, (f"{host}:9",), f"{known[0]} is in the pool, {host}:9 is not")
    ranks = [address for address in known if address.startswith(f"{host}:")]
    if len(ranks) > 1:
        for address in _twice(ranks):
            _inside(await _asked(target, (address,)), [address])


async def _ipv6(target: Target) -> None:
    six = [address for address in target.pool if address.startswith("[")]
    if six:
        for address in _twice(six[:_TRIED_MAX]):
            _inside(await _asked(target, (address,)), [address])
        return
    known = _known(target)
    for address in known:  # at least it must not trip over one
        _inside(await _asked(target, (_NOBODY_6, address)), [address])


async def _empty(target: Target) -> None:
    await _refused(target, (), "an empty list")


async def _unknown(target: Target) -> None:
    await _refused(target, (_NOBODY,), f"only {_NOBODY} is allowed")
    await _refused(target, (_NOBODY_6, _NOBODY), f"only {_NOBODY_6} and {_NOBODY} are allowed")


async def _refused(target: Target, subset: Sequence[str], why: str) -> None:
    for request in (play.chat(target, "refused"), play.MODELS):
        on = await play.steered(target, request, Opening(subset=subset))
        if on.refusal == _REFUSED:
            continue
        if on.picked is not None:
            raise FailedError(f"{why}; picked {on.picked.value}")
        if on.refusal is None and on.end is None and on.heard:
            raise FailedError(f"{why}; it let the request go on without an endpoint")
        raise FailedError(f"{why}; no 503: {on.trouble}")


async def _alone(target: Target) -> None:
    async with play.opened(target, Opening(subset=())) as on:
        await play.to_pick(on, play.chat(target, "alone"))
        if on.refusal is None:
            raise SkippedError("it did not refuse: see subset-empty")
        await on.finish()
    kinds = [reply.kind for reply in on.heard]
    if kinds != ["immediate_response"]:
        raise FailedError(f"answers around the refusal: {', '.join(kinds)}")
    if on.end is not None and on.end.code != "OK":
        raise FailedError(f"after the refusal {on.end}")


async def _reason(target: Target) -> None:
    on = await play.steered(target, play.chat(target, "reason"), Opening(subset=()))
    refusals = on.of("immediate_response")
    if not refusals:
        raise SkippedError("it did not refuse: see subset-empty")
    answer = refusals[0].message.immediate_response
    if not (answer.body or answer.details or answer.headers.set_headers):
        raise FailedError("no body, no details, no header")


CHECKS = (
    Check(
        "subset-list",
        Severity.MUST,
        "With a list of allowed endpoints the pick is one of them.",
        "Requests reach replicas that the gateway ruled out: other namespaces, versions, zones.",
        _PROPOSAL,
        _list,
    ),
    Check(
        "subset-bodyless",
        Severity.MUST,
        "So it is for requests without a body.",
        "`GET` requests leave the subset.",
        f"{_PROPOSAL}; llm-d-router#2606",
        _bodyless,
    ),
    Check(
        "subset-port",
        Severity.MUST,
        "Ports count: another port of an allowed address is not allowed.",
        "Data-parallel ranks that share an address are mixed up.",
        _PROPOSAL,
        _port,
    ),
    Check(
        "subset-ipv6",
        Severity.MUST,
        "IPv6 in brackets is understood, or at least passed over.",
        "On IPv6 clusters every request with a subset is a 503.",
        f"{_PROPOSAL}; llm-d-router#2606",
        _ipv6,
    ),
    Check(
        "subset-empty",
        Severity.MUST,
        "A hint without addresses is a 503, as an immediate answer.",
        "Requests that no endpoint may serve are served, or fail with an unclear 500.",
        _PROPOSAL,
        _empty,
    ),
    Check(
        "subset-unknown",
        Severity.MUST,
        "Only unknown addresses allowed is a 503, as an immediate answer.",
        "Requests leave the subset when its endpoints are gone, or fail with an unclear 500.",
        _PROPOSAL,
        _unknown,
    ),
    Check(
        "subset-string",
        Severity.SHOULD,
        "The hint may be one string, separated by commas.",
        "A hint made from a header (Envoy's header_to_metadata) is taken for none.",
        "Envoy, header_to_metadata",
        _string,
    ),
    Check(
        "subset-buffered",
        Severity.SHOULD,
        "The hint is obeyed in BUFFERED, too.",
        "Requests leave the subset at gateways that buffer.",
        _PROPOSAL,
        _buffered,
    ),
    Check(
        "subset-refusal-alone",
        Severity.MUST,
        "A refusal is the only answer, and the stream ends well.",
        "The client sees a 500 of the gateway and not the picker's 503.",
        "Envoy, ImmediateResponse",
        _alone,
    ),
    Check(
        "subset-refusal-reason",
        Severity.SHOULD,
        "A refusal says why, in a body, in details or in a header.",
        "Nobody can tell an empty subset from an overloaded pool.",
        "llm-d, `x-llm-d-request-dropped-reason`",
        _reason,
    ),
)
