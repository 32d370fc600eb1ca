"""Limits: many streams, large messages, half-sent and hostile bodies. Reaching one is counted, no error."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from typing import Any

import grpc
import pytest

from extproc import config, router, wire
from tests import ext_proc_client
from tests.ext_proc_client import Client, Mode, Stream, kind, steered
from tests.functional.conftest import PATH, Serve, Served, chat, eventually

DUPLEX = Mode.FULL_DUPLEX_STREAMED


async def parked(client: Client, mode: Mode, body: bytes) -> tuple[Stream, str]:
    """A stream whose request was steered and is still open, and where to."""
    stream = client.open(request_body_mode=mode)
    await stream.request_headers(PATH)
    if mode is not DUPLEX:
        await stream.receive()
    await stream.request_body(body)
    address = steered(await stream.receive())
    if mode is DUPLEX:
        assert kind(await stream.receive()) == "request_body"
    assert address is not None
    return stream, address


@pytest.mark.parametrize("mode", [Mode.BUFFERED, Mode.BUFFERED_PARTIAL, DUPLEX], ids=lambda mode: mode.name)
async def test_parked_streams_of_one_prefix_are_counted_exactly_and_spill_over(
    serve: Serve, mode: Mode
) -> None:
    served = await serve(endpoints=8, tuning=router.Settings(policy="ring"))
    body = chat("a hot system prompt " * 40)
    async with ext_proc_client.connect(served.address) as client:
        opened = await asyncio.gather(*(parked(client, mode, body) for _ in range(100)))
        picks = Counter(address for _, address in opened)
        assert served.inflight() == {address: picks[address] for address in served.addresses}
        assert served.state()["open_leases"] == served.server.streams_open == 100
        assert max(picks.values()) <= 2 * 100 / 8 + 1, "none holds more than twice the mean"
        assert served.count("kvring_choices_total", reason="overflow") > 0
    await served.idle()


async def test_three_hundred_streams_ended_in_mixed_ways_leave_nothing(serve: Serve) -> None:
    served = await serve(endpoints=8)
    body = chat("the same prefix " * 60)
    modes = [Mode.BUFFERED, Mode.BUFFERED_PARTIAL, DUPLEX]
    async with ext_proc_client.connect(served.address) as client:
        opened = await asyncio.gather(*(parked(client, modes[n % 3], body) for n in range(300)))
        assert served.state()["open_leases"] == sum(served.inflight().values()) == 300
        assert served.choices() == 300

        async def end(number: int, stream: Stream) -> None:
            match number % 4:
                case 0:
                    await stream.half_close()
                    assert await stream.rest() == []
                case 1:
                    stream.cancel()
                case 2:
                    await stream.send_bytes(b"\xff\xff")
                    assert await stream.rest() == []
                case _:
                    stream.cancel()
                    await asyncio.sleep(0)
                    stream.cancel()

        await asyncio.gather(*(end(number, stream) for number, (stream, _) in enumerate(opened)))
        await served.idle()
    assert served.count("kvring_streams_total") == 300
    assert served.count("kvring_no_opinion_total", reason="malformed_message") == 75


async def test_one_stream_too_many_is_no_opinion_and_a_place_freed_is_taken_again(serve: Serve) -> None:
    served = await serve(streams_max=3)
    async with ext_proc_client.connect(served.address) as client:
        opened = [await parked(client, Mode.BUFFERED, chat("b")) for _ in range(3)]
        refused = client.open(request_body_mode=Mode.BUFFERED)
        await refused.request_headers(PATH)
        assert await refused.rest() == [], "ended without an answer: Envoy goes on by itself"
        assert await refused.code() is grpc.StatusCode.OK
        assert served.count("kvring_no_opinion_total", reason="streams_limit") == 1
        await opened[0][0].half_close()
        await eventually(lambda: served.server.streams_open == 2)
        await parked(client, Mode.BUFFERED, chat("b"))
        assert served.state()["open_leases"] == 3
    await served.idle()


async def test_a_body_of_5_mb_in_one_message_is_taken_by_default(serve: Serve) -> None:
    default = config.loads('{"pools": [{"endpoints": [{"name": "a", "address": "10.0.0.1:80"}]}]}', {})
    served = await serve(message_bytes_max=default.message_bytes_max)
    async with ext_proc_client.connect(served.address) as client:
        stream, _ = await parked(client, Mode.BUFFERED, chat("c" * 5_000_000))
        await stream.half_close()
        assert await stream.rest() == []
        assert await stream.code() is grpc.StatusCode.OK
    await served.idle()


async def test_of_a_large_body_only_the_configured_start_is_read(serve: Serve) -> None:
    served = await serve(prompt_bytes_max=100_000)
    async with ext_proc_client.connect(served.address) as client:
        stream, _ = await parked(client, Mode.BUFFERED, chat("d" * 5_000_000))
        # the rest counts by its length, and is not looked at
        assert 1_240_000 < served.count("kvring_prompt_tokens_total") <= 1_250_100
        held = sum(endpoint["residency_blocks"] for endpoint in served.state()["endpoints"])
        assert 380 < held <= 100_000 / 256 + 2  # and room for the answer
        stream.cancel()
    await served.idle()


@pytest.mark.parametrize("mode", [Mode.BUFFERED, DUPLEX], ids=lambda mode: mode.name)
async def test_a_message_too_large_ends_its_own_stream_only(serve: Serve, mode: Mode) -> None:
    served = await serve(message_bytes_max=100_000, prompt_bytes_max=50_000)
    async with ext_proc_client.connect(served.address) as client:
        other, _ = await parked(client, mode, chat("e" * 1000))
        stream = client.open(request_body_mode=mode)
        await stream.request_headers(PATH)
        if mode is Mode.BUFFERED:
            await stream.receive()
        await stream.request_body(bytes(200_000))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.rest()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await eventually(lambda: served.server.streams_open == 1)
        assert served.state()["open_leases"] == 1
        await other.half_close()
        assert await other.rest() == []
        await (await parked(client, mode, chat("e" * 1000)))[0].half_close()
        await served.idle()


async def test_five_hundred_half_sent_bodies_hold_up_nobody(serve: Serve) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:

        async def half(number: int) -> None:
            mode = (DUPLEX, Mode.BUFFERED)[number % 2]
            stream = client.open(request_body_mode=mode)
            await stream.request_headers(PATH)
            if mode is DUPLEX:
                await stream.request_body(b'{"model": "m", ', end_of_stream=False)
            else:
                await stream.receive()

        await asyncio.gather(*(half(number) for number in range(500)))
        await eventually(lambda: served.server.streams_open == 500)
        stream, address = await parked(client, Mode.BUFFERED, chat("f"))
        assert served.server.streams_open == 501
        assert served.inflight()[address] == served.state()["open_leases"] == 1
        await stream.half_close()
    await served.idle()


# ---- content never makes an error ----


def deep(levels: int) -> bytes:
    return b'{"model": "m", "messages": ' + b"[" * levels + b"]" * levels + b"}"


def request(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "not UTF-8": b'{"model": "\xff\xfe"}',
    "NUL": b"\x00",
    "cut": chat("g" * 100)[:40],
    "null": b"null",
    "list": b"[1,2]",
    "number": b"1" * 10_000,
    "huge exponent": b'{"model": "m", "messages": 1e999999}',
    "deep": deep(100_000),
    "no model": b'{"messages": []}',
    "model a number": b'{"model": 5, "messages": [{"role": "user", "content": "x"}]}',
    "messages a string": request(messages="hi"),
    "messages empty": request(messages=[]),
    "message a number": request(messages=[5]),
    "content a number": request(messages=[{"role": "user", "content": 5}]),
    "content of numbers": request(messages=[{"role": "user", "content": [5, None]}]),
    "new role": request(messages=[{"role": "oracle", "content": "x"}]),
    "no role": request(messages=[{"content": "x"}]),
    "lone surrogate": b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
    "surrogate in the model": b'{"model": "\\udfff", "messages": [{"role": "user", "content": "x"}]}',
    "surrogate in tools": b'{"model": "m", "tools": ["\\ud800"], "messages": [{"role": "u", "content": ""}]}',
    "NaN": b'{"model": "m", "tools": [NaN, Infinity], "messages": [{"role": "user", "content": "x"}]}',
    "big integer": b'{"model": "m", "tools": ['
    + b"9" * 4000
    + b'], "messages": [{"role": "u", "content": ""}]}',
    "key twice": b'{"model": "m", "model": 1, "messages": [{"role": "user", "content": "x"}]}',
    "gzip": gzip.compress(chat("h" * 1000)),
}


@pytest.mark.parametrize("mode", [Mode.BUFFERED, Mode.BUFFERED_PARTIAL, DUPLEX], ids=lambda mode: mode.name)
async def test_whatever_a_body_holds_it_is_steered_and_never_a_fault(serve: Serve, mode: Mode) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        for name, body in HOSTILE.items():
            for path in ("/v1/chat/completions", "/v1/completions", "/nowhere?x=%ff"):
                stream = client.open(request_body_mode=mode)
                await stream.request_headers({":path": path})
                if mode is not DUPLEX:
                    await stream.receive()
                await stream.request_body(body, end_of_stream=mode is not Mode.BUFFERED_PARTIAL)
                if mode is DUPLEX:
                    assert steered(await stream.receive()) in served.addresses, name
                    for _ in range(0, len(body) or 1, wire.ECHO_BYTES_MAX):
                        assert kind(await stream.receive()) == "request_body"
                else:
                    assert steered(await stream.receive()) in served.addresses, name
                await stream.half_close()
                assert await stream.rest() == []
    await served.idle()
    assert served.choices() == 3 * len(HOSTILE)
    assert served.count("kvring_no_opinion_total", reason="fault") == 0
    assert served.count("kvring_unkeyed_total", reason="unknown_path") == len(HOSTILE)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(":path", b"\xff\xfe")],
        [(":path", ""), ("content-encoding", b"\x00")],
        [(":path", "/v1/chat/completions"), *[(f"x-{n}", "v" * 100) for n in range(1000)]],
        [(":path", "/" + "a" * 60_000)],
        [(":path", "/v1/chat/completions")] * 300,
        [("", ""), (" ", " "), ("content-encoding", "br")],
    ],
    ids=["none", "not UTF-8", "NUL", "many", "long", "repeated", "odd names"],
)
async def test_whatever_headers_hold_the_request_is_steered(
    serve: Serve, headers: list[tuple[str, str | bytes]]
) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=Mode.BUFFERED)
        await stream.request_headers(headers)
        assert kind(await stream.receive()) == "request_headers"
        await stream.request_body(chat("i"))
        assert steered(await stream.receive()) in served.addresses
        await stream.half_close()
        assert await stream.rest() == []
    await served.idle()
    assert served.count("kvring_no_opinion_total", reason="fault") == 0


async def test_a_body_in_an_unknown_coding_is_routed_without_a_chain_and_counted(serve: Serve) -> None:
    served: Served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        for coding in ("compress", "AES128GCM", "gzip, br"):
            stream = client.open(request_body_mode=Mode.BUFFERED)
            await stream.request_headers({**PATH, "content-encoding": coding})
            await stream.receive()
            await stream.request_body(gzip.compress(chat("j")))
            assert steered(await stream.receive()) in served.addresses
            stream.cancel()
    assert served.count("kvring_unkeyed_total", reason="content_encoding") == 3
