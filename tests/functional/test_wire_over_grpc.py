"""Wire in a real gRPC server: Envoy's method path and message bytes, without the rest of kvring."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.message import DecodeError

from extproc import protocol, wire
from extproc.pb import kvring_ext_proc_pb2 as pb
from tests import ext_proc_client
from tests.ext_proc_client import Mode

Events = list[protocol.Event | DecodeError | None]
DESTINATION = ext_proc_client.DESTINATION


def answer(event: protocol.Event | None) -> protocol.Action:
    match event:
        case protocol.RequestHeaders():
            return protocol.Reply(protocol.Phase.REQUEST_HEADERS, protocol.Steer("10.0.0.1:8000"))
        case protocol.RequestBody():
            return protocol.Echo(protocol.Phase.REQUEST_BODY, event.data, event.end_of_stream)
        case protocol.RequestTrailers():
            return protocol.Reply(protocol.Phase.REQUEST_TRAILERS, protocol.Steer(""))
        case protocol.ResponseHeaders():
            return protocol.Reply(protocol.Phase.RESPONSE_HEADERS)
        case protocol.ResponseBody():
            return protocol.Echo(protocol.Phase.RESPONSE_BODY, event.data, event.end_of_stream)
        case _:
            return protocol.Reply(protocol.Phase.RESPONSE_TRAILERS)


@pytest.fixture
async def served() -> AsyncIterator[tuple[str, Events]]:
    """Address of a server that answers every event by `answer`, and the events it got."""
    events: Events = []

    async def process(
        messages: AsyncIterator[pb.ProcessingRequest], _context: object
    ) -> AsyncIterator[pb.ProcessingResponse]:
        try:
            async for message in messages:
                events.append(wire.decode(message))
                yield wire.encode(answer(events[-1]))
        except DecodeError as error:
            events.append(error)
            raise

    method = grpc.stream_stream_rpc_method_handler(
        process, request_deserializer=wire.parse, response_serializer=wire.serialize
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}", events
    await server.stop(grace=0)


async def test_every_event_and_reply_crosses_grpc_between_two_independent_encoders(
    served: tuple[str, Events],
) -> None:
    address, events = served
    async with ext_proc_client.connect(address) as client:
        stream = client.open(
            request_body_mode=Mode.FULL_DUPLEX_STREAMED,
            response_body_mode=Mode.STREAMED,
            attributes={"xds.cluster_name": "vllm"},
            metadata={
                "envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": ["10.0.0.1:1", "[::1]:2"]}
            },
        )
        await stream.request_headers([(":path", "/v1"), ("X-A", b"1"), ("x-a", b"\xff")])
        steering = await stream.receive()
        await stream.request_body(bytes(range(256)), end_of_stream=False)
        echo = await stream.receive()
        await stream.request_trailers()
        removal = await stream.receive()
        await stream.response_headers(429)
        await stream.response_body(b"", end_of_stream=True)
        await stream.response_trailers({"grpc-status": "0"})
        await stream.half_close()
        rest = await stream.rest()
        assert await stream.code() is grpc.StatusCode.OK
    assert events == [
        protocol.RequestHeaders(
            headers={":path": "/v1", "x-a": "1,ÿ"},
            end_of_stream=False,
            body_mode=protocol.BodyMode.FULL_DUPLEX_STREAMED,
            response_body_mode=protocol.BodyMode.STREAMED,
            attributes={"xds.cluster_name": "vllm"},
            subset=("10.0.0.1:1", "[::1]:2"),
        ),
        protocol.RequestBody(bytes(range(256)), end_of_stream=False),
        protocol.RequestTrailers(),
        protocol.ResponseHeaders(429, end_of_stream=False),
        protocol.ResponseBody(b"", end_of_stream=True),
        protocol.ResponseTrailers(),
    ]
    assert ext_proc_client.steered(steering) == ext_proc_client.header_set(steering) == "10.0.0.1:8000"
    assert ext_proc_client.chunk(echo) == (bytes(range(256)), False)
    assert ext_proc_client.headers_removed(removal) == [DESTINATION]
    assert ext_proc_client.steered(removal) is None
    assert [ext_proc_client.kind(reply) for reply in rest] == [
        "response_headers",
        "response_body",
        "response_trailers",
    ]
    assert ext_proc_client.chunk(rest[1]) == (b"", True)


async def test_a_malformed_message_reaches_the_handler_as_decode_error(served: tuple[str, Events]) -> None:
    address, events = served
    async with ext_proc_client.connect(address) as client:
        stream = client.open()
        await stream.send_bytes(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.receive()
        assert await stream.code() is grpc.StatusCode.UNKNOWN
    assert [type(event) for event in events] == [DecodeError]


async def test_a_message_without_config_attributes_or_metadata_says_so(served: tuple[str, Events]) -> None:
    address, events = served
    async with ext_proc_client.connect(address) as client:
        stream = client.open()
        await stream.request_headers({}, end_of_stream=True)
        assert ext_proc_client.kind(await stream.receive()) == "request_headers"
        stream.cancel()
    assert events == [protocol.RequestHeaders(headers={}, end_of_stream=True)]
