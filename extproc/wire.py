"""Wire: Envoy's ext_proc messages as exchange events, and exchange actions as Envoy's messages.

bytes -> parse -> message -> decode -> event;  action -> encode -> message -> serialize -> bytes

`parse` and `serialize` are the (de)serializers of the gRPC method; the message between them stays visible
because the server reads `observability_mode` from it before it answers.

Invariant: whatever is well-formed protobuf decodes, oddities become None, "" or 0, never an exception;
`parse` raises DecodeError and nothing else. What is read of one message is bounded. No clock, no I/O.
Called by: server. Source: Envoy's external_processor.proto v3 (by way of proto/), Gateway API Inference
Extension proposal 004 for the names in metadata.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, assert_never

from extproc import protocol
from extproc.pb import kvring_ext_proc_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf import struct_pb2

__all__ = [
    "ATTRIBUTES_MAX",
    "HEADERS_MAX",
    "METHOD",
    "SERVICE",
    "SUBSET_ADDRESSES_MAX",
    "decode",
    "encode",
    "parse",
    "serialize",
]

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD = "Process"

HEADERS_MAX = 256  # header lines read of one message [count]; Envoy's own default is 100
ATTRIBUTES_MAX = 64  # attributes read of one message [count]
SUBSET_ADDRESSES_MAX = 1024  # addresses read of a subset hint [count]; dropping more only narrows it

_ATTRIBUTES_NAMESPACE = "envoy.filters.http.ext_proc"
_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_SUBSET_KEY = "x-gateway-destination-endpoint-subset"
_STEER_NAMESPACE = "envoy.lb"
_STEER_KEY = "x-gateway-destination-endpoint"  # the header's name and the metadata's key

_WHY_KEY = "x-kvring-decision"  # beside it, where asked for; Envoy can put it into the answer's headers

_INTEGER_EXACT_MAX = 2.0**53  # above it a double no longer tells neighbouring integers apart
_BODY_MODES = {mode.value: mode for mode in protocol.BodyMode}

parse = pb.ProcessingRequest.FromString
serialize = pb.ProcessingResponse.SerializeToString


def decode(message: bytes | pb.ProcessingRequest) -> protocol.Event | None:
    """The event a message brings, or None if it brings none that this schema knows.

    Of headers and attributes only the first `HEADERS_MAX` and `ATTRIBUTES_MAX` are read.

    Raises: google.protobuf.message.DecodeError on malformed bytes; on a parsed message nothing.
    """
    if isinstance(message, bytes):
        message = parse(message)
    match message.WhichOneof("request"):
        case "request_body":
            body = message.request_body
            return protocol.RequestBody(body.body, body.end_of_stream)
        case "response_body":
            body = message.response_body
            return protocol.ResponseBody(body.body, body.end_of_stream)
        case "request_headers":
            return _request_headers(message)
        case "response_headers":
            headers = message.response_headers
            return protocol.ResponseHeaders(_status(headers.headers), headers.end_of_stream)
        case "request_trailers":
            return protocol.RequestTrailers()
        case "response_trailers":
            return protocol.ResponseTrailers()
        case _:
            return None


def encode(action: protocol.Action, *, header: bool = True) -> pb.ProcessingResponse:
    """The message that carries out `action`. Shared between calls: serialize it, never change it.

    A steering reply sets the address as dynamic metadata and as request header, both equal, or removes
    the header if the address is "".

    Args: header: whether the header is touched at all; False where only metadata steers, or where
        Envoy's `mutation_rules` would drop or punish the mutation.
    Raises: ValueError for an Echo whose phase is not a body (our own fault).
    """
    match action:
        case protocol.Reply(phase=phase, steer=steer):
            if steer is None:
                return _CONTINUE[phase]
            if not steer.why:
                return _steered(phase, steer.address, header)
            return _explained(_steered(phase, steer.address, header), steer.why)
        case protocol.Echo():
            return _echo(action)
        case _:
            assert_never(action)


# ---- in ----


def _request_headers(message: pb.ProcessingRequest) -> protocol.RequestHeaders:
    body_mode = response_body_mode = None
    if message.HasField("protocol_config"):
        config = message.protocol_config
        body_mode = _BODY_MODES.get(config.request_body_mode)
        response_body_mode = _BODY_MODES.get(config.response_body_mode)
    return protocol.RequestHeaders(
        headers=_headers(message.request_headers.headers),
        end_of_stream=message.request_headers.end_of_stream,
        body_mode=body_mode,
        response_body_mode=response_body_mode,
        attributes=_attributes(message),
        subset=_subset(message),
    )


def _headers(header_map: pb.HeaderMap) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in itertools.islice(header_map.headers, HEADERS_MAX):
        name = line.key.lower()
        value = _header_value(line)
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def _header_value(line: pb.HeaderValue) -> str:
    """The value as text that can always be encoded again, so that no reader of a header can trip over it.

    UTF-8, or Latin-1 where it is not UTF-8; surrogate escapes were rejected, they break the next encode().
    """
    raw = line.raw_value
    try:
        return raw.decode() or line.value
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _status(header_map: pb.HeaderMap) -> int:
    for line in itertools.islice(header_map.headers, HEADERS_MAX):
        if line.key == ":status":
            text = _header_value(line)
            return int(text) if len(text) == 3 and text.isascii() and text.isdigit() else 0
    return 0


def _attributes(message: pb.ProcessingRequest) -> dict[str, str]:
    # .get, never [...]: indexing a protobuf map inserts what it does not find
    struct = message.attributes.get(_ATTRIBUTES_NAMESPACE)
    if struct is None:
        return {}
    attributes: dict[str, str] = {}
    for name, value in itertools.islice(struct.fields.items(), ATTRIBUTES_MAX):
        text = _scalar(value)
        if text is not None:
            attributes[name] = text
    return attributes


def _scalar(value: struct_pb2.Value) -> str | None:
    """The text of a string, number or boolean; None for null, lists and structs."""
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            number = value.number_value
            if number.is_integer() and abs(number) <= _INTEGER_EXACT_MAX:
                return str(int(number))
            return repr(number)
        case "bool_value":
            return "true" if value.bool_value else "false"
        case _:
            return None


def _subset(message: pb.ProcessingRequest) -> tuple[str, ...] | None:
    """Addresses of the gateway's hint, in its order; None without a hint.

    A list of strings by the protocol; a comma string where a gateway copies a header (both occur). A hint
    of another kind holds no address: a restriction that cannot be read must not widen to the whole pool.
    """
    struct = message.metadata_context.filter_metadata.get(_SUBSET_NAMESPACE)
    hint = None if struct is None else struct.fields.get(_SUBSET_KEY)
    if hint is None:
        return None
    items = hint.list_value.values if hint.HasField("list_value") else (hint,)
    texts = (item.string_value for item in items)  # "" for any other kind
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(itertools.islice(filter(None, parts), SUBSET_ADDRESSES_MAX))


# ---- out ----


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
        steer = message.dynamic_metadata.fields[_STEER_NAMESPACE].struct_value
        steer.fields[_STEER_KEY].string_value = address
    if not header:
        return message
    mutation = _header_mutation(message, phase)
    if not address:
        mutation.remove_headers.append(_STEER_KEY)
        return message
    option = mutation.set_headers.add()
    option.header.key = _STEER_KEY
    option.header.raw_value = address.encode()
    option.append_action = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    return message


def _explained(steered: pb.ProcessingResponse, why: str) -> pb.ProcessingResponse:
    message = pb.ProcessingResponse()
    message.CopyFrom(steered)
    steer = message.dynamic_metadata.fields[_STEER_NAMESPACE].struct_value
    steer.fields[_WHY_KEY].string_value = why
    return message


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
