"""Pick: that an endpoint is named, in both places, in a form that gateways read."""

from __future__ import annotations

import ipaddress

from extproc.conformance import play
from extproc.conformance.check import Check, FailedError, Severity, SkippedError
from extproc.conformance.reply import Reply
from extproc.conformance.stream import Opening
from extproc.conformance.target import Target
from extproc.pb import kvring_ext_proc_pb2 as pb
from extproc.wire import names

__all__ = ["CHECKS"]

_PROPOSAL = "proposal 004, destination endpoint"
_CLIENTS = "192.0.2.66:6666"  # by RFC 5737 nobody's; what a client would like to be sent to
_BUFFERED = Opening(request=play.BUFFERED)


async def _ways(target: Target, own: str = "") -> list[Reply]:
    """The answers that steer: of a duplex, a body-less and a buffered request, as far as there is one.

    Args: own: what the client itself sends in the endpoint's header.
    """
    request = play.chat(target, "three ways", more={names.STEER: own})
    models = play.Request(None, "/v1/models", request.more)
    streams = [
        await play.steered(target, request),
        await play.steered(target, models),
        await play.steered(target, request, _BUFFERED),
    ]
    replies = [next((reply for reply in on.heard if reply.pick), None) for on in streams]
    found = [reply for reply in replies if reply is not None]
    if not found:
        raise SkippedError("it never picked: see duplex-pick")
    return found


async def _bodyless(target: Target) -> None:
    for opening in (Opening(), _BUFFERED):
        play.picked(await play.steered(target, play.MODELS, opening))


async def _header(target: Target) -> None:
    for reply in await _ways(target):
        if reply.header(names.STEER) is None:
            raise FailedError(f"the {reply.kind} answer sets metadata, but no header {names.STEER}")


async def _metadata(target: Target) -> None:
    for reply in await _ways(target):
        if reply.pick is not None and reply.pick.metadata is None:
            spaces = ", ".join(reply.namespaces) or "none"
            raise FailedError(f"no {names.STEER} under {names.STEER_NAMESPACE}; namespaces set: {spaces}")


async def _equal(target: Target) -> None:
    for reply in await _ways(target):
        pick = reply.pick
        if pick is None or pick.header is None or pick.metadata is None:
            continue  # that is another check
        if pick.header != pick.metadata:
            raise FailedError(f"header {pick.header!r}, metadata {pick.metadata!r}")


async def _syntax(target: Target) -> None:
    for reply in await _ways(target):
        for entry in reply.pick.addresses if reply.pick else ():
            wrong = _what_is_wrong(entry)
            if wrong:
                raise FailedError(f"{entry!r}: {wrong}")


def _what_is_wrong(entry: str) -> str:
    """What makes `entry` no "ip:port"; "" if it is one."""
    host, colon, port = entry.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536):
        return "no port"
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        return "an IPv6 address needs brackets"
    try:
        (ipaddress.IPv6Address if bracketed else ipaddress.IPv4Address)(host.strip("[]"))
    except ValueError:
        return "no IP address: gateways resolve no names, and take no spaces"
    return ""


async def _single(target: Target) -> None:
    for reply in await _ways(target):
        if reply.pick is not None and len(reply.pick.addresses) > 1:
            raise FailedError(f"a list: {reply.pick.value}")


async def _in_pool(target: Target) -> None:
    if not target.pool_told:
        raise SkippedError("name the pool with --endpoints")
    for number in range(16):
        pick = await play.choice(target, play.chat(target, f"in the pool {number}"))
        outside = set(pick.addresses).difference(target.pool)
        if outside:
            raise FailedError(f"not in the pool: {', '.join(sorted(outside))}")


async def _not_the_clients(target: Target) -> None:
    replies = await _ways(target, _CLIENTS)
    for reply in replies:
        if reply.pick is not None and _CLIENTS in reply.pick.value:
            raise FailedError(f"a client's own {names.STEER} was picked: {reply.pick.value}")


async def _overwrites(target: Target) -> None:
    wanted = {pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD, pb.HeaderValueOption.OVERWRITE_IF_EXISTS}
    for reply in await _ways(target):
        for option in reply.options():
            if option.header.key.lower() == names.STEER and option.append_action not in wanted:
                name = pb.HeaderValueOption.HeaderAppendAction.Name(option.append_action)
                raise FailedError(f"append_action is {name}")


async def _raw_value(target: Target) -> None:
    for reply in await _ways(target):
        for option in reply.options():
            if option.header.key.lower() == names.STEER and option.header.value:
                both = " and `raw_value`" if option.header.raw_value else ""
                raise FailedError(f"the text is in `value`{both}")


CHECKS = (
    Check(
        "pick-bodyless",
        Severity.MUST,
        "A request without a body gets its endpoint in the header answer, in every body mode.",
        "`GET /v1/models` and the like fail with 503, or go wherever the gateway likes.",
        _PROPOSAL,
        _bodyless,
    ),
    Check(
        "pick-header",
        Severity.MUST,
        f"The endpoint is set as request header `{names.STEER}`.",
        "Gateways that read only the header (Envoy AI Gateway, Envoy Gateway, agentgateway) route nothing.",
        _PROPOSAL,
        _header,
    ),
    Check(
        "pick-metadata",
        Severity.MUST,
        f"The endpoint is set as dynamic metadata `{names.STEER_NAMESPACE}` / `{names.STEER}`.",
        "Gateways that read only metadata (Istio) ignore the picker and balance round robin.",
        _PROPOSAL,
        _metadata,
    ),
    Check(
        "pick-equal",
        Severity.MUST,
        "Header and metadata name the same.",
        "Which replica gets a request depends on the gateway; cache and load figures are about another one.",
        _PROPOSAL,
        _equal,
    ),
    Check(
        "pick-syntax",
        Severity.MUST,
        "It is `ip:port[,ip:port...]`, IPv6 in brackets.",
        "The gateway cannot parse the endpoint: 503, or its own balancing.",
        f"{_PROPOSAL}; llm-d-router#2606",
        _syntax,
    ),
    Check(
        "pick-in-pool",
        Severity.MUST,
        "Every endpoint named is one of the pool.",
        "Requests go to hosts that are none of the pool's, or the gateway answers 503.",
        _PROPOSAL,
        _in_pool,
    ),
    Check(
        "pick-not-from-client",
        Severity.MUST,
        f"A client's own `{names.STEER}` is never the pick.",
        "Any client reaches any address that the gateway can reach (SSRF).",
        "agentgateway#3144, llm-d-router#242",
        _not_the_clients,
    ),
    Check(
        "pick-single",
        Severity.SHOULD,
        "It is one endpoint; a list only where configured.",
        "Envoy AI Gateway answers 503 to a list, agentgateway an error.",
        "gateways that read one address",
        _single,
    ),
    Check(
        "pick-overwrites",
        Severity.SHOULD,
        "The header is set with `append_action` OVERWRITE.",
        "A client that sends the header too makes two of it, and which one counts is the gateway's choice.",
        "Envoy, HeaderValueOption",
        _overwrites,
    ),
    Check(
        "pick-raw-value",
        Severity.SHOULD,
        "The header's text is in `raw_value`, and only there.",
        "Envoy refuses a header with both, and versions differ about `value` alone.",
        "Envoy, HeaderValue",
        _raw_value,
    ),
)
