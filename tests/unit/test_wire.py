"""Wire, case by case: odd headers, modes, attributes, subset hints, and each reply."""

from __future__ import annotations

import json

import pytest
from google.protobuf.message import DecodeError

from extproc import protocol, wire
from extproc.pb import kvring_ext_proc_pb2 as pb

ATTRIBUTES = "envoy.filters.http.ext_proc"
SUBSET = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"
DESTINATION = "x-gateway-destination-endpoint"


def request_headers(*lines: tuple[str, bytes], end_of_stream: bool = False) -> pb.ProcessingRequest:
    message = pb.ProcessingRequest()
    message.request_headers.end_of_stream = end_of_stream
    for key, raw_value in lines:
        message.request_headers.headers.headers.add(key=key, raw_value=raw_value)
    return message


def decoded_headers(message: pb.ProcessingRequest) -> protocol.RequestHeaders:
    event = wire.decode(message)
    assert isinstance(event, protocol.RequestHeaders)
    return event


def with_hint(value: object) -> pb.ProcessingRequest:
    message = request_headers()
    message.metadata_context.filter_metadata[SUBSET][SUBSET_KEY] = value
    return message


# ---- headers ----


def test_header_names_become_lower_case_and_repeated_ones_are_joined_in_order() -> None:
    message = request_headers((":path", b"/v1"), ("X-A", b"1"), ("x-b", b"2"), ("x-a", b"3"))
    assert decoded_headers(message).headers == {":path": "/v1", "x-a": "1,3", "x-b": "2"}


def test_an_empty_first_value_keeps_its_place_when_a_header_is_repeated() -> None:
    assert decoded_headers(request_headers(("a", b""), ("a", b"1"))).headers == {"a": ",1"}


def test_the_raw_value_is_preferred_and_the_value_is_used_without_one() -> None:
    message = request_headers(("both", b"raw"))
    message.request_headers.headers.headers[0].value = "text"
    message.request_headers.headers.headers.add(key="old", value="texté")
    assert decoded_headers(message).headers == {"both": "raw", "old": "texté"}


@pytest.mark.parametrize(
    ("raw", "text"), [(b"m\xc3\xa9", "mé"), (b"m\xe9", "mé"), (b"\xff\x00", "\xff\x00"), (b"", "")]
)
def test_header_values_are_utf8_or_else_latin1(raw: bytes, text: str) -> None:
    assert decoded_headers(request_headers(("x", raw))).headers == {"x": text}


def test_headers_past_the_limit_are_not_read() -> None:
    lines = [(f"x-{i}", b"1") for i in range(wire.HEADERS_MAX + 5)]
    assert list(decoded_headers(request_headers(*lines)).headers) == [
        f"x-{i}" for i in range(wire.HEADERS_MAX)
    ]


def test_end_of_stream_is_carried() -> None:
    assert decoded_headers(request_headers(end_of_stream=True)).end_of_stream
    assert not decoded_headers(request_headers()).end_of_stream


# ---- body modes ----


def test_body_modes_are_unknown_without_protocol_config_and_none_mode_with_an_empty_one() -> None:
    message = request_headers()
    assert decoded_headers(message).body_mode is None
    assert decoded_headers(message).response_body_mode is None
    message.protocol_config.SetInParent()
    assert decoded_headers(message).body_mode is protocol.BodyMode.NONE
    assert decoded_headers(message).response_body_mode is protocol.BodyMode.NONE


@pytest.mark.parametrize("mode", protocol.BodyMode)
def test_every_body_mode_has_the_number_of_the_protocol(mode: protocol.BodyMode) -> None:
    message = request_headers()
    message.protocol_config.request_body_mode = pb.BodySendMode.Value(mode.name)
    assert decoded_headers(message).body_mode is mode
    assert decoded_headers(message).response_body_mode is protocol.BodyMode.NONE


def test_a_body_mode_of_a_later_envoy_is_unknown() -> None:
    message = request_headers()
    message.protocol_config.request_body_mode = 6
    message.protocol_config.response_body_mode = -1
    event = decoded_headers(pb.ProcessingRequest.FromString(message.SerializeToString()))
    assert event.body_mode is None
    assert event.response_body_mode is None


# ---- attributes ----


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("vllm", "vllm"),
        ("", ""),
        (True, "true"),
        (False, "false"),
        (0.0, "0"),
        (-3.0, "-3"),
        (0.5, "0.5"),
        (2.0**53, "9007199254740992"),
        (2.0**60, "1.152921504606847e+18"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_attributes_become_text(value: object, text: str) -> None:
    message = request_headers()
    message.attributes[ATTRIBUTES]["request.size"] = value
    assert decoded_headers(message).attributes == {"request.size": text}


def test_attributes_that_are_null_unset_lists_or_structs_are_left_out() -> None:
    message = request_headers()
    struct = message.attributes[ATTRIBUTES]
    struct["null"] = None
    struct["list"] = ["a"]
    struct["struct"] = {"a": "b"}
    struct.fields["unset"].SetInParent()
    struct["kept"] = "x"
    assert decoded_headers(message).attributes == {"kept": "x"}


def test_attributes_of_another_filter_are_not_read_and_reading_leaves_the_message_unchanged() -> None:
    message = request_headers()
    message.attributes["other.filter"]["a"] = "b"
    before = message.SerializeToString(deterministic=True)
    assert decoded_headers(message).attributes == {}
    assert message.SerializeToString(deterministic=True) == before


def test_attributes_past_the_limit_are_not_read() -> None:
    message = request_headers()
    message.attributes[ATTRIBUTES].update({f"a{i}": "x" for i in range(wire.ATTRIBUTES_MAX + 5)})
    assert len(decoded_headers(message).attributes) == wire.ATTRIBUTES_MAX


# ---- subset hint ----


@pytest.mark.parametrize(
    ("hint", "subset"),
    [
        (["10.0.0.1:8000", "[fd00::1]:8000"], ("10.0.0.1:8000", "[fd00::1]:8000")),
        ("10.0.0.1:8000, 10.0.0.2:8000", ("10.0.0.1:8000", "10.0.0.2:8000")),
        ([" 10.0.0.1:8000\t", "", "a:1,b:2", 7, None], ("10.0.0.1:8000", "a:1", "b:2")),
        ("10.0.0.1:8000", ("10.0.0.1:8000",)),
        ([], ()),
        ("", ()),
        (" , ", ()),
        (None, ()),
        (3, ()),
        ({"a": "b"}, ()),
    ],
)
def test_a_subset_hint_is_a_list_or_a_comma_string(hint: object, subset: tuple[str, ...]) -> None:
    assert decoded_headers(with_hint(hint)).subset == subset


def test_without_the_hint_there_is_no_subset() -> None:
    message = request_headers()
    assert decoded_headers(message).subset is None
    message.metadata_context.filter_metadata["envoy.lb"][SUBSET_KEY] = "10.0.0.1:8000"
    assert decoded_headers(message).subset is None
    message.metadata_context.filter_metadata[SUBSET]["other"] = "10.0.0.1:8000"
    assert decoded_headers(message).subset is None


def test_a_subset_hint_is_bounded() -> None:
    hint = ",".join(["10.0.0.1:1"] * (wire.SUBSET_ADDRESSES_MAX + 5))
    assert len(decoded_headers(with_hint(hint)).subset or ()) == wire.SUBSET_ADDRESSES_MAX


# ---- the other events ----


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"200", 200),
        (b"503", 503),
        (b"", 0),
        (b"20", 0),
        (b"2000", 0),
        (b"-20", 0),
        (b"abc", 0),
        ("²²²".encode(), 0),
        ("٢٠٠".encode(), 0),
    ],
)
def test_the_status_is_a_number_or_zero(raw: bytes, status: int) -> None:
    message = pb.ProcessingRequest()
    message.response_headers.headers.headers.add(key="server", raw_value=b"404")
    message.response_headers.headers.headers.add(key=":status", raw_value=raw)
    message.response_headers.end_of_stream = True
    assert wire.decode(message) == protocol.ResponseHeaders(status, end_of_stream=True)


def test_a_response_without_status_has_status_zero() -> None:
    message = pb.ProcessingRequest()
    message.response_headers.SetInParent()
    assert wire.decode(message) == protocol.ResponseHeaders(0, end_of_stream=False)


def test_bodies_and_trailers_become_their_events() -> None:
    request_body = pb.ProcessingRequest(request_body=pb.HttpBody(body=b"a\x00\xff", end_of_stream=True))
    response_body = pb.ProcessingRequest(response_body=pb.HttpBody(body=b"", end_of_stream=False))
    assert wire.decode(request_body) == protocol.RequestBody(b"a\x00\xff", end_of_stream=True)
    assert wire.decode(response_body) == protocol.ResponseBody(b"", end_of_stream=False)
    request_trailers = pb.ProcessingRequest(request_trailers=pb.HttpTrailers())
    response_trailers = pb.ProcessingRequest(response_trailers=pb.HttpTrailers())
    assert wire.decode(request_trailers) == protocol.RequestTrailers()
    assert wire.decode(response_trailers) == protocol.ResponseTrailers()


def test_bytes_and_their_message_decode_alike() -> None:
    message = request_headers((":path", b"/v1/models"), end_of_stream=True)
    assert wire.decode(message.SerializeToString()) == wire.decode(message)


@pytest.mark.parametrize("data", [b"", b"\x50\x01", b"\xfa\x3f\x03abc"])
def test_a_message_without_an_event_known_here_decodes_to_none(data: bytes) -> None:
    assert wire.decode(data) is None


@pytest.mark.parametrize("data", [b"\xff", b"\x12\x05a", b"\x12\x02\x0a\x7f", b"garbage"])
def test_malformed_bytes_raise_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        wire.decode(data)


def test_observability_mode_can_be_read_from_the_parsed_message() -> None:
    assert wire.parse(b"\x50\x01").observability_mode
    assert not wire.parse(b"").observability_mode


# ---- replies ----


@pytest.mark.parametrize("phase", protocol.Phase)
def test_a_plain_reply_answers_its_phase_and_says_nothing(phase: protocol.Phase) -> None:
    message = wire.encode(protocol.Reply(phase))
    assert message.WhichOneof("response") == phase.value
    assert getattr(message, phase.value).ByteSize() == 0
    assert not message.HasField("dynamic_metadata")
    assert wire.serialize(message)  # an empty message on the wire would answer nothing


def test_steering_sets_metadata_and_header_to_the_same_address() -> None:
    reply = protocol.Reply(protocol.Phase.REQUEST_BODY, protocol.Steer("10.0.0.1:8000,10.0.0.2:8000"))
    message = wire.encode(reply)
    assert message.dynamic_metadata["envoy.lb"][DESTINATION] == "10.0.0.1:8000,10.0.0.2:8000"
    (option,) = message.request_body.response.header_mutation.set_headers
    assert option.header == pb.HeaderValue(key=DESTINATION, raw_value=b"10.0.0.1:8000,10.0.0.2:8000")
    assert option.append_action == pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def test_steering_nowhere_removes_the_header_and_sets_no_metadata() -> None:
    message = wire.encode(protocol.Reply(protocol.Phase.REQUEST_HEADERS, protocol.Steer("")))
    assert list(message.request_headers.response.header_mutation.remove_headers) == [DESTINATION]
    assert not message.request_headers.response.header_mutation.set_headers
    assert not message.HasField("dynamic_metadata")


def test_without_header_steering_only_the_metadata_is_sent() -> None:
    reply = protocol.Reply(protocol.Phase.REQUEST_HEADERS, protocol.Steer("10.0.0.1:8000"))
    message = wire.encode(reply, header=False)
    assert message.WhichOneof("response") == "request_headers"
    assert message.request_headers.ByteSize() == 0
    assert message.dynamic_metadata["envoy.lb"][DESTINATION] == "10.0.0.1:8000"
    nowhere = protocol.Reply(protocol.Phase.REQUEST_HEADERS, protocol.Steer(""))
    assert wire.encode(nowhere, header=False) == wire.encode(protocol.Reply(protocol.Phase.REQUEST_HEADERS))


def test_with_and_without_header_are_not_mixed_up_when_the_same_address_comes_again() -> None:
    reply = protocol.Reply(protocol.Phase.REQUEST_TRAILERS, protocol.Steer("10.0.0.9:8000"))
    for header in (True, False, True):
        message = wire.encode(reply, header=header)
        assert message.request_trailers.HasField("header_mutation") is header


@pytest.mark.parametrize("end_of_stream", [True, False])
@pytest.mark.parametrize("data", [b"", b"a\x00\xff"])
@pytest.mark.parametrize("phase", [protocol.Phase.REQUEST_BODY, protocol.Phase.RESPONSE_BODY])
def test_an_echo_is_a_streamed_response_of_the_same_chunk(
    phase: protocol.Phase, data: bytes, *, end_of_stream: bool
) -> None:
    message = wire.encode(protocol.Echo(phase, data, end_of_stream))
    assert message.WhichOneof("response") == phase.value
    mutation = getattr(message, phase.value).response.body_mutation
    assert mutation.HasField("streamed_response")
    assert (mutation.streamed_response.body, mutation.streamed_response.end_of_stream) == (
        data,
        end_of_stream,
    )


@pytest.mark.parametrize("phase", [protocol.Phase.REQUEST_HEADERS, protocol.Phase.RESPONSE_TRAILERS])
def test_only_bodies_are_echoed(phase: protocol.Phase) -> None:
    with pytest.raises(ValueError, match=phase.value):
        wire.encode(protocol.Echo(phase, b"", end_of_stream=False))


# ---- endpoint picker protocol ----


def test_who_served_is_told_by_metadata_or_else_by_the_attribute() -> None:
    message = pb.ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    assert wire.decode(message) == protocol.ResponseHeaders(200, end_of_stream=False)
    message.attributes[ATTRIBUTES]["upstream.address"] = "10.0.0.1:80"
    assert wire.decode(message) == protocol.ResponseHeaders(200, end_of_stream=False, served="10.0.0.1:80")
    message.metadata_context.filter_metadata["envoy.lb"][f"{DESTINATION}-served"] = "[::1]:80"
    assert wire.decode(message) == protocol.ResponseHeaders(200, end_of_stream=False, served="[::1]:80")
    message.metadata_context.filter_metadata["envoy.lb"][f"{DESTINATION}-served"] = 5
    assert wire.decode(message) == protocol.ResponseHeaders(200, end_of_stream=False, served="10.0.0.1:80")


def test_an_exchange_that_is_only_shown_says_so() -> None:
    message = request_headers()
    assert decoded_headers(message).observed is False
    message.observability_mode = True
    assert decoded_headers(message).observed is True


@pytest.mark.parametrize(("status", "reason"), [(503, "no_endpoint"), (503, "subset"), (429, "saturated")])
def test_a_refusal_is_an_immediate_answer_that_says_why(status: int, reason: str) -> None:
    answer = wire.encode(protocol.Refuse(status, reason)).immediate_response
    assert answer.status.code == status
    set_headers = {
        option.header.key: option.header.raw_value.decode() for option in answer.headers.set_headers
    }
    assert set_headers["content-type"] == "application/json"
    assert set_headers["x-kvring-refused"] == reason
    assert ("retry-after" in set_headers) == (status == 429)
    error = json.loads(answer.body)["error"]
    assert error["code"] == reason
    assert error["message"] != reason, "in words too"
    assert answer.details == f"kvring_{reason}"


@pytest.mark.parametrize("length", [0, 1, wire.ECHO_BYTES_MAX, wire.ECHO_BYTES_MAX + 1, 5 * 2**20 + 7])
@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("phase", [protocol.Phase.REQUEST_BODY, protocol.Phase.RESPONSE_BODY])
def test_a_long_echo_goes_back_in_pieces_of_which_the_last_may_end_the_stream(
    phase: protocol.Phase, length: int, *, end: bool
) -> None:
    data = bytes(range(256)) * (length // 256) + bytes(length % 256)
    pieces = [
        getattr(message, phase.value).response.body_mutation.streamed_response
        for message in wire.messages(protocol.Echo(phase, data, end))
    ]
    assert b"".join(piece.body for piece in pieces) == data
    assert all(len(piece.body) <= wire.ECHO_BYTES_MAX for piece in pieces)
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [end]
    assert all(piece.body for piece in pieces) or length == 0
    (message,) = wire.messages(protocol.Reply(phase))
    assert message == wire.encode(protocol.Reply(phase))


def test_headers_of_a_reply_are_set_and_overwrite() -> None:
    reply = wire.encode(protocol.Reply(protocol.Phase.RESPONSE_HEADERS, headers=(("x-a", "1"), ("x-b", "2"))))
    options = reply.response_headers.response.header_mutation.set_headers
    assert [(option.header.key, option.header.raw_value) for option in options] == [
        ("x-a", b"1"),
        ("x-b", b"2"),
    ]
    assert {option.append_action for option in options} == {pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD}
