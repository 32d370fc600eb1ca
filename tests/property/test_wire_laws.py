"""Laws of the wire: kvring's schema and Envoy's full one say the same about the same bytes."""

from __future__ import annotations

import datetime as dt

from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import protocol, wire
from extproc.pb import kvring_ext_proc_pb2 as pb
from tests.full_schema import core, ext_proc, google, http_filter

ATTRIBUTES = "envoy.filters.http.ext_proc"
SUBSET = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"
DESTINATION = "x-gateway-destination-endpoint"

names = st.text(max_size=12)
small_bytes = st.binary(max_size=40)


def mostly(value: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | value


# ---- full messages, with what kvring reads and what it does not know ----

scalars = st.one_of(
    st.builds(google.Value, string_value=st.text(max_size=20)),
    st.builds(google.Value, number_value=st.floats(allow_nan=False) | st.integers(-9, 9).map(float)),
    st.builds(google.Value, bool_value=st.booleans()),
    st.builds(google.Value, null_value=st.just(google.NullValue.NULL_VALUE)),
    st.just(google.Value()),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(google.Value, list_value=st.builds(google.ListValue, values=st.lists(inner, max_size=3))),
        st.builds(
            google.Value,
            struct_value=st.builds(google.Struct, fields=st.dictionaries(names, inner, max_size=2)),
        ),
    ),
    max_leaves=4,
)
structs = st.builds(google.Struct, fields=st.dictionaries(names, values, max_size=3))

header_values = st.builds(
    core.HeaderValue,
    key=st.sampled_from([":path", ":status", "X-Tenant", "x-tenant", "accept"]) | names,
    value=st.text(max_size=10),
    raw_value=st.just(b"") | small_bytes | st.integers(0, 1000).map(lambda n: str(n).encode()),
)
header_maps = st.builds(core.HeaderMap, headers=st.lists(header_values, max_size=5))
http_headers = st.builds(ext_proc.HttpHeaders, headers=mostly(header_maps), end_of_stream=st.booleans())
http_bodies = st.builds(
    ext_proc.HttpBody,
    body=small_bytes,
    end_of_stream=st.booleans(),
    end_of_stream_without_message=st.booleans(),
    grpc_message_compressed=st.booleans(),
)
http_trailers = st.builds(ext_proc.HttpTrailers, trailers=mostly(header_maps))
modes = st.integers(0, 9).map(http_filter.ProcessingModeBodySendMode)
protocol_configs = st.builds(
    ext_proc.ProtocolConfiguration,
    request_body_mode=modes,
    response_body_mode=modes,
    send_body_without_waiting_for_header_response=st.booleans(),
)
hints = st.builds(
    google.Struct, fields=st.dictionaries(st.sampled_from([SUBSET_KEY, "other"]), values, max_size=2)
)
metadata = st.builds(
    core.Metadata,
    filter_metadata=st.dictionaries(names, structs, max_size=2)
    | st.dictionaries(st.sampled_from([SUBSET, "envoy.lb"]), hints, max_size=2),
    typed_filter_metadata=st.dictionaries(
        names, st.builds(google.Any, type_url=names, value=small_bytes), max_size=2
    ),
)
events = st.one_of(
    st.fixed_dictionaries({"request_headers": http_headers}),
    st.fixed_dictionaries({"response_headers": http_headers}),
    st.fixed_dictionaries({"request_body": http_bodies}),
    st.fixed_dictionaries({"response_body": http_bodies}),
    st.fixed_dictionaries({"request_trailers": http_trailers}),
    st.fixed_dictionaries({"response_trailers": http_trailers}),
    st.just({}),
)


@st.composite
def full_requests(draw: st.DrawFn) -> ext_proc.ProcessingRequest:
    return ext_proc.ProcessingRequest(
        **draw(events),
        metadata_context=draw(mostly(metadata)),
        attributes=draw(st.dictionaries(st.sampled_from([ATTRIBUTES, "other"]), structs, max_size=2)),
        observability_mode=draw(st.booleans()),
        protocol_config=draw(mostly(protocol_configs)),
    )


@st.composite
def full_responses(draw: st.DrawFn) -> ext_proc.ProcessingResponse:
    """Responses richer than kvring writes: each holds fields its schema leaves out."""
    mutation = ext_proc.HeaderMutation(
        set_headers=[
            core.HeaderValueOption(
                header=draw(header_values),
                append_action=draw(st.integers(0, 3).map(core.HeaderValueOptionHeaderAppendAction)),
                keep_empty_value=draw(st.booleans()),
            )
        ],
        remove_headers=draw(st.lists(names, max_size=2)),
    )
    body = draw(
        st.one_of(
            st.builds(ext_proc.BodyMutation, body=small_bytes),
            st.builds(ext_proc.BodyMutation, clear_body=st.booleans()),
            st.builds(
                ext_proc.BodyMutation,
                streamed_response=st.builds(
                    ext_proc.StreamedBodyResponse, body=small_bytes, end_of_stream=st.booleans()
                ),
            ),
        )
    )
    common = ext_proc.CommonResponse(
        status=draw(st.integers(0, 1).map(ext_proc.CommonResponseResponseStatus)),
        header_mutation=mutation,
        body_mutation=body,
        trailers=draw(mostly(header_maps)),
        clear_route_cache=draw(st.booleans()),
    )
    kind = draw(st.sampled_from([phase.value for phase in protocol.Phase]))
    reply = {
        "headers": ext_proc.HeadersResponse(response=common),
        "body": ext_proc.BodyResponse(response=common),
        "trailers": ext_proc.TrailersResponse(header_mutation=mutation),
    }[kind.rpartition("_")[2]]
    return ext_proc.ProcessingResponse(
        **{kind: reply},
        dynamic_metadata=draw(mostly(structs)),
        mode_override=http_filter.ProcessingMode(
            request_body_mode=http_filter.ProcessingModeBodySendMode.BUFFERED
        ),
        override_message_timeout=dt.timedelta(milliseconds=draw(st.integers(1, 5000))),
        request_drain=draw(st.booleans()),
    )


# ---- what the full schema says, in kvring's words ----


def text_of(line: core.HeaderValue) -> str:
    if not line.raw_value:
        return line.value
    try:
        return line.raw_value.decode()
    except UnicodeDecodeError:
        return line.raw_value.decode("latin-1")


def joined(header_map: core.HeaderMap | None) -> dict[str, str]:
    lines: dict[str, list[str]] = {}
    for line in header_map.headers if header_map else []:
        lines.setdefault(line.key.lower(), []).append(text_of(line))
    return {name: ",".join(texts) for name, texts in lines.items()}


def mode_of(number: int) -> protocol.BodyMode | None:
    return protocol.BodyMode(number) if 0 <= number <= 5 else None


def expected_attributes(message: ext_proc.ProcessingRequest) -> set[str]:
    struct = message.attributes.get(ATTRIBUTES)
    if struct is None:
        return set()
    scalar = ("string_value", "number_value", "bool_value")
    return {
        name
        for name, value in struct.fields.items()
        if any(getattr(value, kind) is not None for kind in scalar)
    }


@given(full_requests())
def test_a_request_of_the_full_schema_is_decoded_to_what_the_full_schema_says(
    message: ext_proc.ProcessingRequest,
) -> None:
    event = wire.decode(bytes(message))
    match event:
        case protocol.RequestHeaders():
            assert event.headers == joined(message.request_headers.headers)
            assert event.end_of_stream == message.request_headers.end_of_stream
            config = message.protocol_config
            assert event.body_mode == (None if config is None else mode_of(config.request_body_mode))
            assert event.response_body_mode == (
                None if config is None else mode_of(config.response_body_mode)
            )
            assert event.attributes.keys() == expected_attributes(message)
            hint = message.metadata_context and message.metadata_context.filter_metadata.get(SUBSET)
            assert (event.subset is None) == (not hint or SUBSET_KEY not in hint.fields)
        case protocol.ResponseHeaders():
            assert event.end_of_stream == message.response_headers.end_of_stream
            assert 0 <= event.status <= 999
        case protocol.RequestBody():
            assert (event.data, event.end_of_stream) == (
                message.request_body.body,
                message.request_body.end_of_stream,
            )
        case protocol.ResponseBody():
            assert (event.data, event.end_of_stream) == (
                message.response_body.body,
                message.response_body.end_of_stream,
            )
        case protocol.RequestTrailers():
            assert message.request_trailers is not None
        case protocol.ResponseTrailers():
            assert message.response_trailers is not None
        case None:
            assert all(getattr(message, phase.value) is None for phase in protocol.Phase)
    assert wire.parse(bytes(message)).observability_mode == message.observability_mode


@given(full_requests())
def test_a_request_passes_through_the_own_schema_without_losing_unknown_fields(
    message: ext_proc.ProcessingRequest,
) -> None:
    through = pb.ProcessingRequest.FromString(bytes(message)).SerializeToString()
    assert ext_proc.ProcessingRequest.parse(through) == message


@given(full_responses())
def test_a_response_passes_through_the_own_schema_without_losing_unknown_fields(
    message: ext_proc.ProcessingResponse,
) -> None:
    ours = pb.ProcessingResponse.FromString(bytes(message))
    assert ext_proc.ProcessingResponse.parse(ours.SerializeToString()) == message
    kind = ours.WhichOneof("response")
    assert getattr(message, kind) is not None
    if kind.endswith(("_headers", "_body")):
        mine, theirs = getattr(ours, kind).response, getattr(message, kind).response
        assert mine.status == theirs.status
        assert mine.clear_route_cache == theirs.clear_route_cache
        streamed = theirs.body_mutation.streamed_response
        assert mine.body_mutation.HasField("streamed_response") == (streamed is not None)
    else:
        mine, theirs = getattr(ours, kind), getattr(message, kind)
    assert list(mine.header_mutation.remove_headers) == theirs.header_mutation.remove_headers
    option = mine.header_mutation.set_headers[0]
    assert option.append_action == theirs.header_mutation.set_headers[0].append_action
    assert option.header.raw_value == theirs.header_mutation.set_headers[0].header.raw_value


addresses = st.lists(st.from_regex(r"[0-9a-f.:\[\]]{1,12}", fullmatch=True), min_size=1, max_size=3).map(
    ",".join
)
phases = st.sampled_from(protocol.Phase)
body_phases = st.sampled_from([protocol.Phase.REQUEST_BODY, protocol.Phase.RESPONSE_BODY])


@given(phase=phases, address=addresses | st.just(""), header=st.booleans())
def test_a_steering_reply_reads_in_the_full_schema_as_equal_metadata_and_header(
    phase: protocol.Phase, address: str, *, header: bool
) -> None:
    encoded = wire.encode(protocol.Reply(phase, protocol.Steer(address)), header=header)
    full = ext_proc.ProcessingResponse.parse(wire.serialize(encoded))
    assert [each.value for each in protocol.Phase if getattr(full, each.value) is not None] == [phase.value]
    assert full.mode_override is None  # X09: a change from SKIP to duplex loses the first chunk
    assert full.override_message_timeout is None
    if address:
        namespace = full.dynamic_metadata.fields["envoy.lb"].struct_value
        assert {k: v.string_value for k, v in namespace.fields.items()} == {DESTINATION: address}
    else:
        assert full.dynamic_metadata is None
    reply = getattr(full, phase.value)
    holder = reply if "trailers" in phase.value else reply.response
    mutation = holder.header_mutation if holder else None
    if not header:
        assert mutation is None
    elif address:
        (option,) = mutation.set_headers
        assert (option.header.key, option.header.raw_value) == (DESTINATION, address.encode())
        assert option.header.value == ""  # Envoy rejects a header with both
        assert option.append_action == core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
        assert mutation.remove_headers == []
    else:
        assert mutation.remove_headers == [DESTINATION]
        assert mutation.set_headers == []


@given(phases)
def test_a_plain_reply_reads_in_the_full_schema_as_continue_and_nothing_else(phase: protocol.Phase) -> None:
    full = ext_proc.ProcessingResponse.parse(wire.serialize(wire.encode(protocol.Reply(phase))))
    empty = {
        "headers": ext_proc.HeadersResponse(),
        "body": ext_proc.BodyResponse(),
        "trailers": ext_proc.TrailersResponse(),
    }[phase.value.rpartition("_")[2]]
    assert full == ext_proc.ProcessingResponse(**{phase.value: empty})


@given(phase=body_phases, data=st.binary(max_size=200), end_of_stream=st.booleans())
def test_an_echo_reads_in_the_full_schema_as_the_same_bytes(
    phase: protocol.Phase, data: bytes, *, end_of_stream: bool
) -> None:
    echo = protocol.Echo(phase, data, end_of_stream)
    full = ext_proc.ProcessingResponse.parse(wire.serialize(wire.encode(echo)))
    chunk = ext_proc.StreamedBodyResponse(body=data, end_of_stream=end_of_stream)
    common = ext_proc.CommonResponse(body_mutation=ext_proc.BodyMutation(streamed_response=chunk))
    assert full == ext_proc.ProcessingResponse(**{phase.value: ext_proc.BodyResponse(response=common)})


@given(phase=body_phases, data=st.binary(max_size=200), end_of_stream=st.booleans())
def test_echoing_a_decoded_chunk_gives_back_the_chunk(
    phase: protocol.Phase, data: bytes, *, end_of_stream: bool
) -> None:
    chunk = ext_proc.HttpBody(body=data, end_of_stream=end_of_stream)
    event = wire.decode(bytes(ext_proc.ProcessingRequest(**{phase.value: chunk})))
    echo = wire.encode(protocol.Echo(phase, event.data, event.end_of_stream))
    streamed = getattr(echo, phase.value).response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (data, end_of_stream)


@settings(max_examples=300)
@given(st.binary(max_size=80))
def test_any_bytes_decode_or_are_malformed_and_nothing_else(data: bytes) -> None:
    try:
        message = wire.parse(data)
    except DecodeError:
        return
    wire.decode(message)


@given(full_requests(), st.data())
def test_damaged_messages_decode_or_are_malformed_and_nothing_else(
    message: ext_proc.ProcessingRequest, data: st.DataObject
) -> None:
    damaged = bytearray(bytes(message))
    for _ in range(data.draw(st.integers(0, 3)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for candidate in (bytes(damaged), bytes(damaged[:cut])):
        try:
            parsed = wire.parse(candidate)
        except DecodeError:
            continue
        event = wire.decode(parsed)
        if isinstance(event, protocol.RequestHeaders):
            "".join([*event.headers.values(), *event.attributes.values()]).encode()


@given(st.lists(st.binary(max_size=6), max_size=4))
def test_header_values_of_any_bytes_become_text_that_can_be_encoded(raw_values: list[bytes]) -> None:
    lines = [core.HeaderValue(key=f"x-{i}", raw_value=raw) for i, raw in enumerate(raw_values)]
    headers = ext_proc.HttpHeaders(headers=core.HeaderMap(headers=lines))
    event = wire.decode(bytes(ext_proc.ProcessingRequest(request_headers=headers)))
    for index, raw in enumerate(raw_values):
        assert event.headers[f"x-{index}"].encode() == raw or not _is_utf8(raw)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
