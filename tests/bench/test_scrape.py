"""Scraping 256 endpoints every second: what it costs, and whether a choice ever waits for it.

Each answers with the 60 KB of a real vLLM. CPU time of this process, of which the servers are no part, over
wall time, the least of a few windows (a busy machine makes the same work take longer); and beside it how late
a timer of 1 ms comes with and without scraping.
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


async def _measure(ports: list[int]) -> tuple[float, list[float], list[float], float]:
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
        before = _scrapes(counted)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        await asyncio.sleep(SECONDS)
        wall_s = time.perf_counter() - wall_s
        measured.append(((time.process_time() - cpu_s) / wall_s, (_scrapes(counted) - before) / wall_s))
    spent, rate = min(measured)
    busy = await _lateness_ms(5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return spent, quiet, busy, rate


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
        spent, quiet, busy, rate = asyncio.run(_measure(ours.recv()))
    finally:
        ours.send(None)
        process.join(10)
    said = [
        f"{rate:.0f} scrapes/s of {len(BODY)} bytes: {spent:.1%} of a core, {spent / rate * 1e6:.0f} us each"
    ]
    said.append(f"this machine now: {_spin_us():.0f} us for a sum of 1,000 numbers (10 us at rest)")
    for name, late in (("without", quiet), ("with", busy)):
        median, most = late[len(late) // 2], late[int(len(late) * 0.99)]
        said.append(f"timer late {name}: median {median:.2f} ms, 99 % {most:.2f} ms")
    sys.stdout.write("\n" + "\n".join(said) + "\n")
    assert rate > 0.9 * ENDPOINTS
    assert spent <= 0.10
