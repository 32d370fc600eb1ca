"""Two real vLLM processes on the CPU behind Envoy and kvring: `make test-engine`, minutes, 5 GB of memory.

`KVRING_ENGINE` names a folder with `serve.sh NAME PORT`, `wait_ready.sh NAME PORT SECONDS` and `stop.sh NAME`
that run a small model called `tiny`; by default the folder `engine` in `$KVRING_DATA`, as its install.sh
leaves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.envoy import account, client

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

_DATA = os.environ.get("KVRING_DATA")
ENGINE = Path(os.environ.get("KVRING_ENGINE") or (Path(_DATA) / "engine" if _DATA else "no-engine"))
READY_S = 600


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def _run(*words: str) -> None:
    environ = os.environ | {"EVENTS": "off"}
    process = await asyncio.create_subprocess_exec(*words, cwd=ENGINE, env=environ)
    assert await process.wait() == 0, words


async def _start(name: str, port: int) -> None:
    await _run("./serve.sh", name, str(port))
    await _run("./wait_ready.sh", name, str(port), str(READY_S))


@pytest.fixture
async def engines() -> AsyncIterator[dict[str, int]]:
    """Name and port of two running engines."""
    if not (ENGINE / "venv/bin/vllm").exists():
        pytest.skip(f"no engine in {ENGINE}: set KVRING_ENGINE to where its install.sh was run")
    ports = {name: _free_port() for name in ("kvring-a", "kvring-b")}
    try:
        for name, port in ports.items():
            await _start(name, port)
        yield ports
    finally:
        for name in ports:
            with contextlib.suppress(AssertionError):
                await _run("./stop.sh", name)


async def test_real_engines_are_read_chosen_and_seen_to_restart_and_lose_their_cache(fleet, engines):
    others = {name: f"127.0.0.1:{port}" for name, port in engines.items()}
    pool = {"signals": {"interval_s": 0.5}, "slow_start_s": 1, "health": {"interval_s": 1, "timeout_s": 5}}
    kept = {"kv_tokens": None, "prefill_tokens_per_s": None}  # the engines tell
    async with (
        fleet(replicas=0, others=others, pool=pool | kept) as running,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http,
    ):
        running.http = http

        async def endpoint(name: str) -> dict:
            state = await running.state()
            return next(each for each in account.endpoints(state) if each["name"] == name)

        async def told(name: str) -> bool:
            return (await endpoint(name))["signals"] is not None

        for name in engines:
            await client.until(lambda name=name: told(name), "signals")
            one = await endpoint(name)
            assert one["signals"]["engine"] == "vllm"
            assert one["signals"]["kv_tokens"] > 10_000
            assert one["models"] == ["tiny"]

        # conversations stay where they are and find their cache, as predicted
        served: dict[int, set[str]] = {}
        cached: dict[int, list[int]] = {}
        talks = {number: f"conversation {number} is about matter {number * 13}. " * 60 for number in range(6)}

        async def turn(number: int) -> None:
            talks[number] += "and then? what came of it in the end? " * 20
            answer = await running.chat(talks[number], model="tiny", max_tokens=2)
            assert answer.status == 200
            served.setdefault(number, set()).add(answer.served_by)
            cached.setdefault(number, []).append(answer.cached_tokens)

        for _ in range(4):
            for number in talks:
                await turn(number)
        assert all(len(where) == 1 for where in served.values())
        assert all(counts[-1] > counts[1] > 0 for counts in cached.values())
        await asyncio.sleep(2)
        for name in engines:
            one = await endpoint(name)
            told_tokens = one["signals"]["cached_tokens"]
            predicted = one["sent"]["predicted_cached_tokens"]
            assert told_tokens == pytest.approx(predicted, rel=0.35)

        # a reset without a restart is seen in the hits
        name, port = next(iter(engines.items()))
        async with http.post(f"http://127.0.0.1:{port}/reset_prefix_cache") as answer:
            assert answer.status == 200
        address = others[name]
        mine = [number for number, where in served.items() if where == {address}]
        assert mine
        for _ in range(6):  # the first of each finds nothing
            for number in mine:
                await turn(number)
            if await running.metric("kvring_endpoint_events_total", event="cache_lost"):
                break
            async with http.post(f"http://127.0.0.1:{port}/reset_prefix_cache") as answer:
                await answer.read()
        assert await running.metric("kvring_endpoint_events_total", event="cache_lost") >= 1

        # a restart in place
        await _run("./stop.sh", name)
        await _start(name, port)

        async def restarted() -> bool:
            return await running.metric("kvring_endpoint_events_total", event="restarted") == 1

        await client.until(restarted, "restart seen", timeout_s=60)
        assert (await endpoint(name))["residency_blocks"] == 0
