"""Incoming: Envoy's messages as exchange events.

Invariant: whatever is well-formed protobuf decodes, oddities become None, "" or 0, never an exception;
`parse` raises DecodeError and nothing else. What is read of one message is bounded. No clock, no I/O.
Called by: server. Source: Envoy's external_processor.proto v3 (by way of proto/), Gateway API Inference
Extension proposal 004 for the names in metadata.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from extproc import protocol
from extproc.pb import kvring_ext_proc_pb2 as pb
from extproc.wire import names

if TYPE_CHECKING:
    from google.protobuf import struct_pb2

__all__ = ["ATTRIBUTES_MAX", "HEADERS_MAX", "SUBSET_ADDRESSES_MAX", "decode", "parse"]

HEADERS_MAX = 256  # header lines read of one message [count]; Envoy's own default is 100
ATTRIBUTES_MAX = 64  # attributes read of one message [count]
SUBSET_ADDRESSES_MAX = 1024  # addresses read of a subset hint [count]; dropping more only narrows it

_ATTRIBUTES_NAMESPACE = "envoy.filters.http.ext_proc"
_UPSTREAM_ADDRESS = "upstream.address"

_INTEGER_EXACT_MAX = 2.0**53  # above it a double no longer tells neighbouring integers apart
_BODY_MODES = {mode.value: mode for mode in protocol.BodyMode}

parse = pb.ProcessingRequest.FromString


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
            return protocol.ResponseHeaders(_status(headers.headers), headers.end_of_stream, _served(message))
        case "request_trailers":
            return protocol.RequestTrailers()
        case "response_trailers":
            return protocol.ResponseTrailers()
        case _:
            return None


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
        observed=message.observability_mode,
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
    hint = _metadata(message, names.SUBSET_NAMESPACE, names.SUBSET)
    if hint is None:
        return None
    items = hint.list_value.values if hint.HasField("list_value") else (hint,)
    texts = (item.string_value for item in items)  # "" for any other kind
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(itertools.islice(filter(None, parts), SUBSET_ADDRESSES_MAX))


def _served(message: pb.ProcessingRequest) -> str:
    """Who serves: by the metadata that `selected_host_key` fills, else by the attribute, else ""."""
    told = _metadata(message, names.STEER_NAMESPACE, names.SERVED)
    if told is not None and told.string_value:
        return told.string_value
    return _attributes(message).get(_UPSTREAM_ADDRESS, "")


def _metadata(message: pb.ProcessingRequest, namespace: str, key: str) -> struct_pb2.Value | None:
    struct = message.metadata_context.filter_metadata.get(namespace)
    return None if struct is None else struct.fields.get(key)
