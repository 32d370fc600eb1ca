"""Scraping 256 endpoints every second: what it costs, and whether a choice ever waits for it.

Each answers with the 60 KB of a real vLLM. CPU time of this process, of which the servers are no part, over
wall time, the least of a few windows, reckoned down by what a fixed piece of work takes meanwhile: where
cores are shared the same work takes up to twice as long. And how late a timer of 1 ms comes with and without
scraping.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import pathlib
import random
import sys
import time
from multiprocessing.connection import Connection

import pytest

from extproc import config, metrics, pool, router
from extproc.endpoints import fleet, static

ENDPOINTS = 256
WINDOWS, SECONDS = 4, 4.0
REST_US = 15.0  # what `_spin_us` is where nothing else runs; work that shares its core takes longer
BODY = (pathlib.Path(__file__).parents[1] / "data/vllm_metrics.txt").read_bytes()
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
SHORT = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"

pytestmark = pytest.mark.bench


class _Engine(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER if data.startswith(b"GET /metrics") else SHORT)  # type: ignore[attr-defined]


def _serve(ports: Connection) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(_Engine, "127.0.0.1", 0) for _ in range(ENDPOINTS)]
        ports.send([server.sockets[0].getsockname()[1] for server in servers])
        await loop.run_in_executor(None, ports.recv)

    asyncio.run(run())


async def _lateness_ms(seconds: float) -> list[float]:
    """How much later than asked a timer of 1 ms comes, again and again [ms, sorted]."""
    late = []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append((time.perf_counter() - before - 0.001) * 1000)
    return sorted(late)


async def _measure(ports: list[int]) -> tuple[float, float, list[float], list[float], float]:
    listed = [config.Endpoint(name=f"e{n}", address=f"127.0.0.1:{port}") for n, port in enumerate(ports)]
    group = config.Pool(
        endpoints=listed, health=config.Health(interval_s=300), signals=config.Signals(models_interval_s=0)
    )
    quiet = await _lateness_ms(3)
    chooser = router.Router(pool.make("default", ()), config.router_settings(group))
    counted = metrics.Metrics(chooser, time.monotonic, 0.0)
    members = static.Static(config.static_members(group), time.monotonic)
    made = fleet.Fleet(group, chooser, members, counted, time.monotonic, random.random)
    running = asyncio.create_task(made.run())
    await made.settled.wait()
    await asyncio.sleep(2)
    gc.collect()
    gc.freeze()  # as app does once all is built
    measured = []
    for _ in range(WINDOWS):
        slower = max(1.0, _spin_us() / REST_US)
        before = _scrapes(counted)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        await asyncio.sleep(SECONDS)
        wall_s = time.perf_counter() - wall_s
        slower = (slower + max(1.0, _spin_us() / REST_US)) / 2
        spent = (time.process_time() - cpu_s) / wall_s
        measured.append((spent / slower, spent, (_scrapes(counted) - before) / wall_s))
    at_rest, spent, rate = min(measured)
    busy = await _lateness_ms(5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return at_rest, spent, quiet, busy, rate


def _spin_us() -> float:
    """How busy the machine is: what a fixed piece of work takes [us]."""
    started_s = time.process_time()
    for _ in range(2000):
        sum(range(1000))
    return (time.process_time() - started_s) / 2000 * 1e6


def _scrapes(counted: metrics.Metrics) -> float:
    return counted.registry.get_sample_value("kvring_scrapes_total", {"result": "good"}) or 0.0


def test_256_endpoints_a_second_cost_a_tenth_of_a_core_at_most_and_delay_no_choice() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    try:
        assert ours.poll(30)
        at_rest, spent, quiet, busy, rate = asyncio.run(_measure(ours.recv()))
    finally:
        ours.send(None)
        process.join(10)
    each_us = spent / rate * 1e6
    said = [f"{rate:.0f} scrapes/s of {len(BODY)} bytes: {spent:.1%} of a core, {each_us:.0f} us each"]
    said.append(f"at this machine's speed at rest {at_rest:.1%} of a core")
    for name, late in (("without", quiet), ("with", busy)):
        median, most = late[len(late) // 2], late[int(len(late) * 0.99)]
        said.append(f"timer late {name}: median {median:.2f} ms, 99 % {most:.2f} ms")
    sys.stdout.write("\n" + "\n".join(said) + "\n")
    assert rate > 0.9 * ENDPOINTS
    assert at_rest <= 0.10
