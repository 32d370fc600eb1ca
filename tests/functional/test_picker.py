"""The Endpoint Picker Protocol over gRPC beyond the pick: refusals, who served, token counts, watching."""

from __future__ import annotations

import asyncio
import json
import time

import grpc
import pytest

from extproc import router
from tests import ext_proc_client
from tests.ext_proc_client import Mode, chunk, header_set, kind, steered
from tests.functional.conftest import PATH, Serve, chat, eventually

DUPLEX = Mode.FULL_DUPLEX_STREAMED
BODY = chat("a" * 3000)


async def test_at_the_cap_the_client_is_told_to_come_back_and_no_lease_is_taken(serve: Serve) -> None:
    served = await serve(endpoints=2, tuning=router.Settings(inflight_max=3))
    async with ext_proc_client.connect(served.address) as client:
        held = [client.open(request_body_mode=DUPLEX) for _ in range(6)]
        for stream in held:
            await stream.request_headers(PATH)
            await stream.request_body(BODY)
            assert steered(await stream.receive()) in served.addresses
        assert sorted(served.inflight().values()) == [3, 3]
        for mode in (DUPLEX, Mode.BUFFERED, Mode.NONE):
            stream = client.open(request_body_mode=mode)
            await stream.request_headers(PATH)
            if mode is not Mode.NONE:
                await stream.request_body(BODY)
            *_, refusal = [await stream.receive()] + (
                [await stream.receive()] if mode is Mode.BUFFERED else []
            )
            assert kind(refusal) == "immediate_response"
            assert refusal.immediate_response.status.code == 429
            assert header_set(refusal, "retry-after") == "1"
            assert header_set(refusal, "x-kvring-refused") == "saturated"
            assert json.loads(refusal.immediate_response.body)["error"]["code"] == "saturated"
            await stream.half_close()
            assert await stream.rest() == []
            assert await stream.code() is grpc.StatusCode.OK
        assert sorted(served.inflight().values()) == [3, 3]
        held[0].cancel()
        await eventually(lambda: sum(served.inflight().values()) == 5)
    assert served.count("kvring_refused_total", reason="saturated") == 3
    await served.idle()


async def test_an_empty_pool_is_a_503_where_the_contract_asks_for_it(serve: Serve) -> None:
    served = await serve(endpoints=0, tuning=router.Settings(refuses_empty=True))
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=DUPLEX)
        await stream.request_headers({":path": "/v1/models", ":method": "GET"}, end_of_stream=True)
        refusal = await stream.receive()
        assert refusal.immediate_response.status.code == 503
        await stream.half_close()
        assert await stream.rest() == []
    assert served.count("kvring_refused_total", reason="no_endpoint") == 1
    assert served.count("kvring_no_opinion_total", reason="no_endpoint") == 0


@pytest.mark.parametrize("told", ["metadata", "attribute"])
async def test_who_served_is_read_back_and_corrects_the_books(serve: Serve, told: str) -> None:
    served = await serve(endpoints=2)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=DUPLEX, response_body_mode=DUPLEX)
        await stream.request_headers(PATH)
        await stream.request_body(BODY)
        chosen = str(steered(await stream.receive()))
        assert kind(await stream.receive()) == "request_body"
        other = next(address for address in served.addresses if address != chosen)
        if told == "metadata":
            await stream.response_headers(500, served=other)
        else:
            stream._first = {
                "attributes": {
                    "envoy.filters.http.ext_proc": ext_proc_client._struct({"upstream.address": other})
                }
            }
            await stream.response_headers(500)
        assert kind(await stream.receive()) == "response_headers"
        assert served.inflight() == {chosen: 0, other: 1}
        for data, end in ((b'{"usage":{"prompt_tok', False), (b'ens":7,"completion_tokens":2}}', True)):
            await stream.response_body(data, end_of_stream=end)
            assert chunk(await stream.receive()) == (data, end)
        await stream.half_close()
        assert await stream.rest() == []
    await served.idle()
    answers = [(endpoint.address, well) for endpoint, well in served.answers]
    assert answers == [(other, False)], "the fault is of who answered"
    assert served.count("kvring_served_total", by="other") == 1
    assert served.count("kvring_answer_tokens_total", kind="prompt") == 7
    assert served.count("kvring_answer_tokens_total", kind="output") == 2


async def test_observability_mode_is_never_answered(serve: Serve) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=Mode.STREAMED, observability_mode=True)
        await stream.request_headers(PATH)
        await stream.request_body(BODY)
        await stream.response_headers(200)
        await stream.response_body(b"x")
        await stream.half_close()
        assert await stream.rest() == []
        assert await stream.code() is grpc.StatusCode.OK
    await served.idle()
    assert served.choices() == 0
    assert served.count("kvring_no_opinion_total", reason="observed") == 1


async def test_a_slow_upload_is_let_go_once_its_key_is_known_and_not_at_its_end(serve: Serve) -> None:
    """X06; the deadline is far away, so it is the key that lets it go."""
    served = await serve(decision_timeout_s=60)
    body = chat("".join(f"word {number} " for number in range(20_000)))
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=DUPLEX)
        began_s = time.monotonic()
        await stream.request_headers(PATH)
        await stream.request_body(body[:20_000], end_of_stream=False)
        assert steered(await stream.receive()) in served.addresses
        assert time.monotonic() - began_s < 30
        assert chunk(await stream.receive()) == (body[:20_000], False)
        await stream.request_body(body[20_000:], end_of_stream=True)
        echoed = b""
        while len(echoed) < len(body) - 20_000:
            echoed += (chunk(await stream.receive()) or (b"", False))[0]
        assert echoed == body[20_000:]
        await stream.half_close()
        assert await stream.rest() == []
    await served.idle()
    assert served.count("kvring_keys_total", source="anchor") == 1


async def test_the_gateways_conformance_hooks_work_where_they_are_allowed(serve: Serve) -> None:
    for hooks in (True, False):
        served = await serve(hooks=hooks)
        async with ext_proc_client.connect(served.address) as client:
            picks = set()
            for _ in range(12):
                stream = client.open(request_body_mode=DUPLEX, response_body_mode=DUPLEX)
                await stream.request_headers({**PATH, "test-epp-endpoint-selection": "10.0.0.3:8000"})
                await stream.request_body(BODY)
                picks.add(steered(await stream.receive()))
                await stream.receive()
                await stream.response_headers(200, served="10.0.0.2:8000")
                told = header_set(await stream.receive(), "x-conformance-test-served-endpoint")
                assert told == ("10.0.0.2:8000" if hooks else None)
                stream.cancel()
            assert (picks == {"10.0.0.3:8000"}) == hooks
        await served.idle()


async def test_many_streams_at_once_are_all_answered_and_all_counted(serve: Serve) -> None:
    """S08, the server's part: beyond every default of 1,024."""
    served = await serve(endpoints=8)
    async with ext_proc_client.connect(served.address) as client:
        streams = [client.open(request_body_mode=Mode.BUFFERED_PARTIAL) for _ in range(1200)]

        async def one(stream: ext_proc_client.Stream, number: int) -> str | None:
            await stream.request_headers({**PATH, "x-request-id": "the same"})
            async with asyncio.timeout(60):
                await stream.call.read()
                await stream.request_body(chat(f"user {number} " * 20))
                data = await stream.call.read()
            return ext_proc_client.ext_proc.ProcessingResponse.parse(data) and str(number)

        answered = await asyncio.gather(*(one(stream, number) for number, stream in enumerate(streams)))
        assert len(set(answered)) == 1200
        assert served.server.streams_open == sum(served.inflight().values()) == 1200
    await served.idle()
    assert served.choices() == 1200
