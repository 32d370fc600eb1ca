"""A small ext_proc client: plays Envoy's side of a stream against a real server, message by message.

Messages are built and read with Envoy's full schema by envoy-data-plane, which shares no code with
extproc/wire.py; bytes go over grpc.aio. Every wait is bounded by `WAIT_S`.

    async with ext_proc_client.connect(address) as client:
        stream = client.open(request_body_mode=Mode.BUFFERED)
        await stream.request_headers({":path": "/v1/chat/completions"})
        await stream.request_body(b"{}")
        replies = [await stream.receive(), await stream.receive()]
        await stream.half_close()
        assert await stream.rest() == []
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

import grpc

from tests.full_schema import core, ext_proc, google, http_filter

__all__ = [
    "DESTINATION",
    "METHOD",
    "Client",
    "Mode",
    "Stream",
    "chunk",
    "connect",
    "header_set",
    "headers_removed",
    "kind",
    "steered",
]

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
DESTINATION = "x-gateway-destination-endpoint"
WAIT_S = 60.0

Mode = http_filter.ProcessingModeBodySendMode
Headers = Mapping[str, str | bytes] | Sequence[tuple[str, str | bytes]]


class Stream:
    """One stream, that is one HTTP request. The first message sent carries config, attributes, metadata."""

    def __init__(self, call: grpc.aio.StreamStreamCall, first: dict[str, object]) -> None:
        self.call = call
        self._first = first

    # ---- to the server ----

    async def request_headers(self, headers: Headers, *, end_of_stream: bool = False) -> None:
        await self.send(request_headers=_http_headers(headers, end_of_stream=end_of_stream))

    async def request_body(self, data: bytes, *, end_of_stream: bool = True) -> None:
        await self.send(request_body=ext_proc.HttpBody(body=data, end_of_stream=end_of_stream))

    async def request_trailers(self, trailers: Headers = ()) -> None:
        await self.send(request_trailers=ext_proc.HttpTrailers(trailers=_header_map(trailers)))

    async def response_headers(
        self, status: int = 200, *, end_of_stream: bool = False, served: str | None = None
    ) -> None:
        """`served`: who answers, as a gateway's metadata tells it."""
        more: dict[str, object] = {}
        if served is not None:
            told = {"envoy.lb": _struct({f"{DESTINATION}-served": served})}
            more["metadata_context"] = core.Metadata(filter_metadata=told)
        headers = {":status": str(status)}
        await self.send(response_headers=_http_headers(headers, end_of_stream=end_of_stream), **more)

    async def response_body(self, data: bytes, *, end_of_stream: bool = True) -> None:
        await self.send(response_body=ext_proc.HttpBody(body=data, end_of_stream=end_of_stream))

    async def response_trailers(self, trailers: Headers = ()) -> None:
        await self.send(response_trailers=ext_proc.HttpTrailers(trailers=_header_map(trailers)))

    async def send(self, **event: object) -> None:
        """One ProcessingRequest with these fields."""
        first, self._first = self._first, {}
        await self.send_bytes(bytes(ext_proc.ProcessingRequest(**first, **event)))

    async def send_bytes(self, data: bytes) -> None:
        """These bytes as one gRPC message, well-formed or not."""
        async with asyncio.timeout(WAIT_S):
            await self.call.write(data)

    async def half_close(self) -> None:
        """Nothing more will be sent: how Envoy ends a stream in good order."""
        async with asyncio.timeout(WAIT_S):
            await self.call.done_writing()

    def cancel(self) -> None:
        """Reset the stream: how Envoy ends it when the client went away."""
        self.call.cancel()

    # ---- from the server ----

    async def receive(self, wait_s: float = WAIT_S) -> ext_proc.ProcessingResponse | None:
        """The next reply; None when the server has ended the stream with OK.

        Raises: TimeoutError; grpc.aio.AioRpcError if the stream ended with an error.
        """
        async with asyncio.timeout(wait_s):
            data = await self.call.read()
        return None if data is grpc.aio.EOF else ext_proc.ProcessingResponse.parse(data)

    async def rest(self) -> list[ext_proc.ProcessingResponse]:
        """Every reply until the server ends the stream."""
        replies = []
        while (reply := await self.receive()) is not None:
            replies.append(reply)
        return replies

    async def silent(self, wait_s: float) -> bool:
        """Whether no reply arrives in time. Abandons the pending read, so only `cancel` may follow."""
        try:
            await self.receive(wait_s)
        except TimeoutError:
            return True
        return False

    async def code(self) -> grpc.StatusCode:
        """The status the stream ended with."""
        async with asyncio.timeout(WAIT_S):
            return await self.call.code()


class Client:
    """A connection to one server; any number of streams on it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._process = channel.stream_stream(METHOD)
        self._calls: list[grpc.aio.StreamStreamCall] = []

    def open(
        self,
        *,
        request_body_mode: int | None = None,
        response_body_mode: int = 0,
        attributes: Mapping[str, str] | None = None,
        metadata: Mapping[str, Mapping[str, str | Sequence[str]]] | None = None,
        observability_mode: bool = False,
        call_metadata: Sequence[tuple[str, str]] = (),
    ) -> Stream:
        """A new stream. Without a body mode the first message has no protocol_config, as before Envoy 1.33.

        Args: attributes: name -> text, as Envoy's `request_attributes`; metadata: namespace -> key -> text
            or list of texts, as forwarded by `metadata_options`; call_metadata: of the gRPC call itself.
        """
        first: dict[str, object] = {"observability_mode": observability_mode}
        if request_body_mode is not None:
            first["protocol_config"] = ext_proc.ProtocolConfiguration(
                request_body_mode=Mode(request_body_mode), response_body_mode=Mode(response_body_mode)
            )
        if attributes is not None:
            first["attributes"] = {"envoy.filters.http.ext_proc": _struct(attributes)}
        if metadata is not None:
            spaces = {name: _struct(values) for name, values in metadata.items()}
            first["metadata_context"] = core.Metadata(filter_metadata=spaces)
        call = self._process(metadata=tuple(call_metadata))
        self._calls.append(call)
        return Stream(call, first)

    def close(self) -> None:
        for call in self._calls:
            call.cancel()


@contextlib.asynccontextmanager
async def connect(address: str) -> AsyncIterator[Client]:
    """A client of the server at "host:port", plaintext. Streams still open at the end are cancelled."""
    async with grpc.aio.insecure_channel(address) as channel:
        client = Client(channel)
        try:
            yield client
        finally:
            client.close()


# ---- reading replies ----


def kind(reply: ext_proc.ProcessingResponse | None) -> str:
    """Which oneof field the reply fills ("request_headers", ...); "end" for the end of the stream."""
    if reply is None:
        return "end"
    names = ("request_headers", "response_headers", "request_body", "response_body")
    more = ("request_trailers", "response_trailers", "immediate_response")
    (name,) = [name for name in (*names, *more) if getattr(reply, name) is not None]
    return name


def steered(reply: ext_proc.ProcessingResponse) -> str | None:
    """The address in the dynamic metadata Envoy's override_host reads; None without."""
    if reply.dynamic_metadata is None or "envoy.lb" not in reply.dynamic_metadata.fields:
        return None
    return reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION].string_value


def header_set(reply: ext_proc.ProcessingResponse, name: str = DESTINATION) -> str | None:
    """The value the reply gives a header of the message it answers; None if it leaves the header alone."""
    mutation = _mutation(reply)
    values = [
        option.header.raw_value.decode()
        for option in (mutation.set_headers if mutation else [])
        if option.header.key == name
    ]
    return values[-1] if values else None


def headers_removed(reply: ext_proc.ProcessingResponse) -> list[str]:
    """Names of headers the reply takes away."""
    mutation = _mutation(reply)
    return list(mutation.remove_headers) if mutation else []


def chunk(reply: ext_proc.ProcessingResponse) -> tuple[bytes, bool] | None:
    """Bytes and end_of_stream of a body chunk handed back in full duplex; None if the reply is no such."""
    body = getattr(reply, kind(reply))
    if not isinstance(body, ext_proc.BodyResponse) or not body.response or not body.response.body_mutation:
        return None
    streamed = body.response.body_mutation.streamed_response
    return None if streamed is None else (streamed.body, streamed.end_of_stream)


def _mutation(reply: ext_proc.ProcessingResponse) -> ext_proc.HeaderMutation | None:
    answer = getattr(reply, kind(reply))
    if isinstance(answer, ext_proc.HeadersResponse | ext_proc.BodyResponse):
        return answer.response.header_mutation if answer.response else None
    return answer.header_mutation if isinstance(answer, ext_proc.TrailersResponse) else answer.headers


# ---- building messages ----


def _header_map(headers: Headers) -> core.HeaderMap:
    lines = headers.items() if isinstance(headers, Mapping) else headers
    return core.HeaderMap(
        headers=[
            core.HeaderValue(key=name, raw_value=value.encode() if isinstance(value, str) else value)
            for name, value in lines
        ]
    )


def _http_headers(headers: Headers, *, end_of_stream: bool) -> ext_proc.HttpHeaders:
    return ext_proc.HttpHeaders(headers=_header_map(headers), end_of_stream=end_of_stream)


def _struct(values: Mapping[str, str | Sequence[str]]) -> google.Struct:
    return google.Struct(fields={name: _value(value) for name, value in values.items()})


def _value(value: str | Sequence[str]) -> google.Value:
    if isinstance(value, str):
        return google.Value(string_value=value)
    return google.Value(list_value=google.ListValue(values=[_value(item) for item in value]))
