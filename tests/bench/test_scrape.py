"""Scraping 256 endpoints every second: what it costs, and how long a choice ever waits for it.

Each answers with the 60 KB of a real vLLM. The cost is CPU time of this process, of which the servers are no
part, over wall time, in the best of a few windows: nothing is reckoned down for what else the machine does.

A choice runs on the loop that scrapes, so it waits for what is ready before it. That wait is measured as CPU
time too, which does not grow with what else the machine does: what the loop computes between the moment at
which something asks to be run and its turn. It is told in choices: of 256 endpoints, for a prompt of 8,000
tokens, measured in the same run.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import pathlib
import random
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import pytest

from extproc import config, metrics, pool, prompt, router
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


@dataclass
class Measured:
    """`windows`: part of a core spent, scrapes a second."""

    choice_s: float
    waits_s: list[float]
    windows: list[tuple[float, float]] = field(default_factory=list)


async def _waits_s(seconds: float) -> list[float]:
    """How much the loop computes before something gets its turn that asks for it at a random moment [s]."""
    loop = asyncio.get_running_loop()
    found: list[float] = []
    main_clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
    over = threading.Event()

    def turn(asked_s: float) -> None:
        found.append(time.clock_gettime(main_clock) - asked_s)

    def ask() -> None:
        rng = random.Random(1)
        while not over.wait(rng.expovariate(300)):
            loop.call_soon_threadsafe(turn, time.clock_gettime(main_clock))

    asking = threading.Thread(target=ask)
    asking.start()
    await asyncio.sleep(seconds)
    over.set()
    await asyncio.to_thread(asking.join)
    return found


def _choice_s(members: list[config.Endpoint]) -> float:
    """What one choice takes [s of CPU]."""
    endpoints = [pool.Endpoint(pool.EndpointId(one.name), one.address) for one in members]
    chooser = router.Router(pool.make("default", endpoints), router.Settings())
    taken = []
    for number in range(200):
        text = b"conversation %d has much to say. " % number * 1000
        asked = prompt.Prompt("/chat/completions", "m", (b"m",), text)
        started_s = time.thread_time()
        chooser.choose(asked, number * 0.01, 0.5)
        taken.append(time.thread_time() - started_s)
    return statistics.median(taken)


async def _measure(ports: list[int]) -> Measured:
    listed = [config.Endpoint(name=f"e{n}", address=f"127.0.0.1:{port}") for n, port in enumerate(ports)]
    group = config.Pool(
        endpoints=listed, health=config.Health(interval_s=300), signals=config.Signals(models_interval_s=0)
    )
    measured = Measured(_choice_s(listed), [])
    chooser = router.Router(pool.make("default", ()), config.router_settings(group))
    counted = metrics.Metrics(chooser, time.monotonic, 0.0)
    members = static.Static(config.static_members(group), time.monotonic)
    made = fleet.Fleet(group, chooser, members, counted, time.monotonic, random.random)
    running = asyncio.create_task(made.run())
    await made.settled.wait()
    await asyncio.sleep(2)
    gc.collect()
    gc.freeze()  # as app does once all is built
    for _ in range(WINDOWS):
        before = _scrapes(counted)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        await asyncio.sleep(SECONDS)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        measured.windows.append((cpu_s / wall_s, (_scrapes(counted) - before) / wall_s))
    measured.waits_s = sorted(await _waits_s(6))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return measured


def _scrapes(counted: metrics.Metrics) -> float:
    return counted.registry.get_sample_value("kvring_scrapes_total", {"result": "good"}) or 0.0


def test_256_endpoints_a_second_cost_a_tenth_of_a_core_at_most_and_delay_no_choice() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    try:
        assert ours.poll(30)
        measured = asyncio.run(_measure(ours.recv()))
    finally:
        ours.send(None)
        process.join(10)
    spent, rate = min(measured.windows)
    waits_s, choice_s = measured.waits_s, measured.choice_s
    median_s, most_s = waits_s[len(waits_s) // 2], waits_s[int(len(waits_s) * 0.999)]
    sys.stdout.write(
        f"\n{rate:.0f} scrapes/s of {len(BODY)} bytes: {spent:.1%} of a core, "
        f"{spent / rate * 1e6:.0f} us each\n"
        f"a choice: {choice_s * 1e6:.0f} us; what it waits for: median {median_s * 1e6:.0f} us, "
        f"99.9 % {most_s * 1e6:.0f} us, most {waits_s[-1] * 1e6:.0f} us, of {len(waits_s)}\n"
    )
    assert rate > 0.9 * ENDPOINTS
    assert most_s < 10 * choice_s
    assert spent <= 0.10
