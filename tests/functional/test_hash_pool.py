"""A running `kvring serve` whose pool is steered by hash: no endpoints, and nothing breaks."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from extproc import cli
from tests import ext_proc_client
from tests.ext_proc_client import Mode, header_set, headers_removed, kind, steered
from tests.functional.conftest import PATH, FakeEndpoint, Launch, Sidecar, chat, eventually

BIG: dict[str, Any] = {"name": "big", "steering": "hash", "endpoint_count": 4}
HASH = "x-kvring-hash"
TEXT = "a start that many requests have " * 40


async def ask(running: Sidecar, text: str, mode: Mode = Mode.BUFFERED, *, ends: bool = True) -> Any:
    """The reply that may steer, to a client that sends a hash of its own.

    ends: whether kvring ends the stream by itself then, as it has nothing more to learn.
    """
    async with ext_proc_client.connect(running.grpc) as client:
        stream = client.open(request_body_mode=mode)
        await stream.request_headers(PATH | {HASH: "00000000000000aa"})
        if mode is Mode.BUFFERED:
            first = await stream.receive()
            assert first is not None
            assert HASH in headers_removed(first)  # until it is known
        await stream.request_body(chat(text))
        reply = await stream.receive()
        assert reply is not None
        if ends and mode is Mode.BUFFERED:
            assert await stream.receive() is None
        return reply


async def test_equal_starts_are_told_one_hash_in_header_and_metadata_and_the_stream_is_ended(
    sidecar: Launch,
) -> None:
    running = await sidecar({}, pools=[BIG])
    for number in range(12):  # of all traffic, a single text is then less than an endpoint's part
        await ask(running, f"{number} unlike the others " * 60)
    for mode in (Mode.BUFFERED, Mode.FULL_DUPLEX_STREAMED):
        replies = [await ask(running, TEXT + word, mode) for word in ("one", "two")]
        assert kind(replies[0]) == ("request_body" if mode is Mode.BUFFERED else "request_headers")
        told = {header_set(reply, HASH) for reply in replies}
        assert len(told) == 1
        (hash_,) = told
        assert hash_ is not None
        assert int(hash_, 16) > 0
        assert len(hash_) == 16
        metadata = replies[0].dynamic_metadata.fields["envoy.lb"].struct_value.fields
        assert {name: value.string_value for name, value in metadata.items()} == {HASH: hash_}
        assert header_set(replies[0]) is None  # no endpoint
    assert header_set(await ask(running, "other " * 200), HASH) not in told


async def test_state_metrics_choices_and_explain_tell_of_it_and_draining_works(
    sidecar: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = await sidecar({}, pools=[BIG], log_choices=1.0)
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"http://{running.admin}/api/explain", json=json.loads(chat(TEXT))) as answer,
    ):
        explained = await answer.json()
    reply = await ask(running, TEXT)
    assert (explained["steering"], explained["hash"]) == ("hash", header_set(reply, HASH))
    state = await running.state()
    assert (state["name"], state["steering"], state["endpoint_count"]) == ("big", "hash", 4)
    assert state["endpoints"] == []
    (choice,) = json.loads((await running.get("/api/choices"))[1])["choices"]
    assert (choice["hash"], choice["keyed_by"]) == (header_set(reply, HASH), "anchor")
    assert 'kvring_hashes_total{pool="big",source="anchor"} 1.0' in (await running.get("/metrics"))[1]
    assert (await running.get("/readyz"))[0] == 200
    assert (await asyncio.to_thread(cli.main, ["state", "--admin", running.admin])) == 0
    assert "about 4 endpoints" in capsys.readouterr().out
    assert running.logged("choice")
    running.signal(signal.SIGTERM)
    assert await running.exited() == 0


async def test_beside_a_pool_with_endpoints_both_are_served_and_shown(
    endpoint: Callable[..., FakeEndpoint], sidecar: Launch
) -> None:
    address = (await endpoint().listen()).address
    small = {"name": "small", "endpoints": [{"name": "e0", "address": address}], "match": {"models": ["m"]}}
    running = await sidecar({}, pools=[BIG, small])
    reply = await ask(running, TEXT, ends=False)  # of model m
    assert steered(reply) == address
    assert HASH in headers_removed(reply)
    pools = json.loads((await running.get("/api/state"))[1])["pools"]
    assert [(one["name"], one["steering"]) for one in pools] == [("small", "endpoint"), ("big", "hash")]


async def test_without_any_pool_of_endpoints_it_keeps_running(sidecar: Launch) -> None:
    running = await sidecar({}, pools=[BIG])
    for _ in range(3):
        await ask(running, TEXT)
    await eventually(lambda: running.process.poll() is None)
    assert not running.logged("draining")
