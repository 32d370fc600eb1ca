"""Outgoing: exchange actions as Envoy's messages.

In full duplex a chunk of more than `ECHO_BYTES_MAX` goes back in pieces: some gateways take no longer ones.

Invariant: the pieces of an echo are its bytes, and only the last one ends the stream. No clock, no I/O.
Called by: server. Source: Envoy's external_processor.proto v3 (by way of proto/), Gateway API Inference
Extension proposal 004 for header and metadata.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import assert_never

from extproc import protocol
from extproc.pb import kvring_ext_proc_pb2 as pb
from extproc.wire import names

__all__ = ["ECHO_BYTES_MAX", "encode", "messages", "serialize"]

ECHO_BYTES_MAX = 60 * 1024
"""Longest chunk handed back [bytes]: some gateways take no more than 64 KiB a message."""

_RETRY_AFTER_S = 1  # load that was shed comes back at once otherwise
_BUSY = 429
_TYPES = {_BUSY: "rate_limit_error", 503: "service_unavailable"}
_WORDS = {
    "no_endpoint": "no model server is ready",
    "subset": "no model server that the gateway allows is ready",
    "saturated": "all model servers are busy; try again later",
}

serialize = pb.ProcessingResponse.SerializeToString


def messages(action: protocol.Action, *, header: bool = True) -> Iterator[pb.ProcessingResponse]:
    """The messages that carry out `action`: one, or several for a long echo. Arguments as of `encode`."""
    if not isinstance(action, protocol.Echo) or len(action.data) <= ECHO_BYTES_MAX:
        yield encode(action, header=header)
        return
    for start in range(0, len(action.data), ECHO_BYTES_MAX):
        end = start + ECHO_BYTES_MAX
        last = end >= len(action.data)
        yield _echo(protocol.Echo(action.phase, action.data[start:end], last and action.end_of_stream))


def encode(action: protocol.Action, *, header: bool = True) -> pb.ProcessingResponse:
    """The message that carries out `action`. Shared between calls: serialize it, never change it.

    A steering reply sets the address as dynamic metadata and as request header, both equal, or removes
    the header if the address is "".

    Args: header: whether the header is touched at all; False where only metadata steers, or where
        Envoy's `mutation_rules` would drop or punish the mutation.
    Raises: ValueError for an Echo whose phase is not a body (our own fault).
    """
    match action:
        case protocol.Reply(phase=phase, steer=steer, headers=headers):
            if headers:
                return _with_headers(phase, headers)
            if steer is None:
                return _CONTINUE[phase]
            told = _steered(phase, steer.address, header)
            if steer.hash is not None or steer.why:
                return _told_more(told, phase, steer)
            return told
        case protocol.Refuse(status=status, reason=reason):
            return _refusal(status, reason)
        case protocol.Echo():
            return _echo(action)
        case _:
            assert_never(action)


def _continue(phase: protocol.Phase) -> pb.ProcessingResponse:
    message = pb.ProcessingResponse()
    getattr(message, phase.value).SetInParent()  # phases are named like the fields of the oneof
    return message


_CONTINUE = {phase: _continue(phase) for phase in protocol.Phase}


# 8 us to build, 0.1 us to find again. The addresses are the pool's, so the keys are few.
@functools.lru_cache(maxsize=1024)
def _steered(phase: protocol.Phase, address: str, header: bool) -> pb.ProcessingResponse:  # noqa: FBT001
    message = _continue(phase)
    if address:
        steer = message.dynamic_metadata.fields[names.STEER_NAMESPACE].struct_value
        steer.fields[names.STEER].string_value = address
    if not header:
        return message
    mutation = _header_mutation(message, phase)
    if not address:
        mutation.remove_headers.append(names.STEER)
        return message
    _set(mutation, names.STEER, address)
    return message


def _told_more(
    steered: pb.ProcessingResponse, phase: protocol.Phase, steer: protocol.Steer
) -> pb.ProcessingResponse:
    """`steered` with what is not the same for many requests. The hash's header is touched in any case: no
    route of Envoy's can hash by anything else that kvring sets.
    """
    message = pb.ProcessingResponse()
    message.CopyFrom(steered)
    found = {names.HASH: steer.hash or "", names.WHY: steer.why}
    for name, value in found.items():
        if value:
            metadata = message.dynamic_metadata.fields[names.STEER_NAMESPACE].struct_value
            metadata.fields[name].string_value = value
    if steer.hash:
        _set(_header_mutation(message, phase), names.HASH, steer.hash)
    elif steer.hash is not None:
        _header_mutation(message, phase).remove_headers.append(names.HASH)
    return message


def _with_headers(phase: protocol.Phase, headers: tuple[tuple[str, str], ...]) -> pb.ProcessingResponse:
    message = _continue(phase)
    for name, value in headers:
        _set(_header_mutation(message, phase), name, value)
    return message


def _refusal(status: int, reason: str) -> pb.ProcessingResponse:
    message = pb.ProcessingResponse()
    answer = message.immediate_response
    answer.status.code = status  # type: ignore[assignment]  # the enum is open, other numbers pass
    _set(answer.headers, "content-type", "application/json")
    _set(answer.headers, names.REFUSED, reason)
    if status == _BUSY:
        _set(answer.headers, "retry-after", str(_RETRY_AFTER_S))
    said = _WORDS.get(reason, reason)
    error = {"message": said, "type": _TYPES.get(status, "server_error"), "code": reason}
    answer.body = json.dumps({"error": error}).encode()  # as OpenAI's clients read it
    answer.details = f"kvring_{reason}"
    return message


def _set(mutation: pb.HeaderMutation, name: str, value: str) -> None:
    option = mutation.set_headers.add()
    option.header.key = name
    option.header.raw_value = value.encode()
    option.append_action = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def _header_mutation(message: pb.ProcessingResponse, phase: protocol.Phase) -> pb.HeaderMutation:
    match phase:
        case protocol.Phase.REQUEST_HEADERS:
            return message.request_headers.response.header_mutation
        case protocol.Phase.REQUEST_BODY:
            return message.request_body.response.header_mutation
        case protocol.Phase.REQUEST_TRAILERS:
            return message.request_trailers.header_mutation
        case protocol.Phase.RESPONSE_HEADERS:
            return message.response_headers.response.header_mutation
        case protocol.Phase.RESPONSE_BODY:
            return message.response_body.response.header_mutation
        case protocol.Phase.RESPONSE_TRAILERS:
            return message.response_trailers.header_mutation
        case _:
            assert_never(phase)


def _echo(echo: protocol.Echo) -> pb.ProcessingResponse:
    message = pb.ProcessingResponse()
    if echo.phase is protocol.Phase.REQUEST_BODY:
        reply = message.request_body
    elif echo.phase is protocol.Phase.RESPONSE_BODY:
        reply = message.response_body
    else:
        raise ValueError(f"only bodies are echoed, not {echo.phase.value}")
    chunk = reply.response.body_mutation.streamed_response
    chunk.body = echo.data  # assigning marks the chunk present, an empty one too: it must come back as well
    chunk.end_of_stream = echo.end_of_stream
    return message
