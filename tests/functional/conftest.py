"""What functional tests run against: a Server in this process, a real `kvring serve`, endpoints to probe.

All on loopback and ports the kernel gives; everything a fixture starts, it stops. A sidecar process must
leave nothing on stderr but kvring's own JSON lines: a traceback anywhere fails the test that used it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from extproc import admin, exchange, metrics, pool, prompt, router, server
from tests import ports

__all__ = ["PATH", "FakeEndpoint", "Launch", "Serve", "Served", "Sidecar", "chat", "command", "eventually"]

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0  # bound of what should take far less: other work may share the machine
PATH = {":path": "/v1/chat/completions", ":method": "POST", "content-type": "application/json"}


def chat(text: str, model: str = "m") -> bytes:
    """A chat request of one message."""
    return json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()


async def eventually(holds: Callable[[], Any], wait_s: float = WAIT_S) -> None:
    """Return once `holds()` (awaited if need be) is true; fail after `wait_s` [s]."""
    end_s = time.monotonic() + wait_s
    while True:
        answer = holds()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < end_s, f"not within {wait_s} s"
        await asyncio.sleep(0.005)


# ---- a Server in this process ----


@dataclass
class Served:
    """An ext_proc server in this process, over endpoints that only exist by name."""

    server: server.Server
    router: router.Router
    metrics: metrics.Metrics
    admin: admin.Admin
    answers: list[tuple[str, bool]]  # endpoint, and whether it answered well

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def addresses(self) -> set[str]:
        return {endpoint.address for endpoint in self.router.pool.endpoints}

    def state(self) -> dict[str, Any]:
        """The pool as /api/state tells it."""
        (group,) = self.admin.state()["pools"]
        return group

    def inflight(self) -> dict[str, int]:
        """Open requests by address."""
        return {endpoint["address"]: endpoint["inflight"] for endpoint in self.state()["endpoints"]}

    def count(self, name: str, **labels: str) -> float:
        """The value of one series."""
        value = self.metrics.registry.get_sample_value(name, labels)
        assert value is not None, f"no series {name}{labels}"
        return value

    def choices(self) -> float:
        """Choices counted, for whatever reason."""
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "kvring_choices_total"
        )

    async def idle(self) -> None:
        """Return when no stream is open; then nothing may be left in the ledger."""
        await eventually(lambda: self.server.streams_open == 0)
        state = self.state()
        assert state["open_leases"] == 0
        assert {(e["inflight"], e["pending_tokens"]) for e in state["endpoints"]} == {(0, 0)}
        assert self.count("kvring_streams_open") == 0


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`await serve(**settings)`: a started server. See the arguments of `start`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *,
            endpoints: int = 4,
            ready: bool = True,
            kind: type[router.Router] = router.Router,
            tuning: router.Settings | None = None,
            prompt_bytes_max: int = 2 * 1024 * 1024,
            decision_timeout_s: float = 30.0,
            message_bytes_max: int = 64 * 1024 * 1024,
            streams_max: int = 100_000,
            pick_header: bool = True,
            hooks: bool = False,
            listen: str = "127.0.0.1:0",
        ) -> Served:
            members = [
                pool.Endpoint(pool.EndpointId(f"vllm-{n}"), f"10.0.0.{n + 1}:8000", ready=ready)
                for n in range(endpoints)
            ]
            answers: list[tuple[str, bool]] = []
            chooser = kind(pool.make("default", members), tuning or router.Settings())
            counted = metrics.Metrics(chooser, time.monotonic, 0.0)
            made = server.Server(
                server.Settings(listen, message_bytes_max, streams_max, pick_header),
                chooser,
                exchange.Settings(
                    prompt.Settings(prompt_bytes_max),
                    held_bytes_max=prompt_bytes_max,
                    decision_timeout_s=decision_timeout_s,
                    hooks=hooks,
                ),
                counted,
                time.monotonic,
                lambda: 0.5,
                lambda _, endpoint, well: answers.append((endpoint, well)),
            )
            await made.start()
            stack.push_async_callback(made.stop, 0)
            looked = admin.Admin(chooser, counted, time.monotonic, lambda: True)
            return Served(made, chooser, counted, looked, answers)

        yield start


# ---- a real `kvring serve` ----


@dataclass
class Sidecar:
    """A `kvring serve` process that has said it is ready."""

    process: subprocess.Popen[str]
    stderr_path: Path
    grpc: str
    health: str
    admin: str
    tls: str = ""

    def stderr(self) -> str:
        return self.stderr_path.read_text(encoding="utf-8")

    def events(self) -> list[dict[str, Any]]:
        """The log, line by line; fails on any line that is not JSON (a traceback, a library's chatter)."""
        return [json.loads(line) for line in self.stderr().splitlines()]

    def logged(self, event: str) -> bool:
        return any(line["event"] == event for line in self.events())

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page of the admin server."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.admin}{path}") as answer:
            return answer.status, await answer.text()

    async def state(self) -> dict[str, Any]:
        """The pool in /api/state."""
        status, text = await self.get("/api/state")
        assert status == 200
        (group,) = json.loads(text)["pools"]
        return group

    async def open_leases(self) -> int:
        leases: int = (await self.state())["open_leases"]
        return leases

    async def ready_names(self) -> set[str]:
        return {endpoint["name"] for endpoint in (await self.state())["endpoints"] if endpoint["ready"]}

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def exited(self, wait_s: float = WAIT_S) -> int:
        """The exit code, once the process has ended."""
        return await asyncio.to_thread(self.process.wait, wait_s)


Launch = Callable[..., Awaitable[Sidecar]]


# These endpoints live in the process of the test: on a busy machine one that is well may answer late.
PATIENT = {"timeout_s": 10, "failures": 10}


@pytest.fixture
async def sidecar(tmp_path: Path, endpoint: Callable[..., FakeEndpoint]) -> AsyncIterator[Launch]:
    """`await sidecar(endpoints, **settings)`: a ready `kvring serve` with that configuration.

    `endpoints`: name -> address; `group`: settings of the pool; the rest: settings of the top level. An
    endpoint that refuses is excluded at once; one that is slow is not, unless `group` has a `health`.

    Needs `endpoint` so as to be ended before the endpoints are: else kvring finds them gone and says so.
    """
    started: list[Sidecar] = []

    async def start(
        endpoints: dict[str, str],
        *,
        group: dict[str, Any] | None = None,
        environ: dict[str, str] | None = None,
        **settings: Any,
    ) -> Sidecar:
        listed = [{"name": name, "address": address} for name, address in endpoints.items()]
        config = {
            "grpc_listen": "127.0.0.1:0",
            "health_listen": "127.0.0.1:0",
            "admin_listen": "127.0.0.1:0",
            "drain_notice_s": 0,
            "pools": [{"endpoints": listed, "health": PATIENT, **(group or {})}],
            **settings,
        }
        number = len(started)
        path, log = tmp_path / f"kvring-{number}.yaml", tmp_path / f"stderr-{number}"
        path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "extproc", "serve", "--config", str(path)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env={**os.environ, **(environ or {})},
            )
        made = Sidecar(process, log, "", "", "")
        started.append(made)
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = await asyncio.to_thread(process.stdout.readline)
        word, _, rest = line.partition(" ")
        assert word == "ready", f"{line!r}, {made.stderr()}"
        for name, address in json.loads(rest).items():
            setattr(made, name, address)
        return made

    yield start
    for made in started:
        if made.process.poll() is None:
            made.process.kill()
        more, _ = await asyncio.to_thread(made.process.communicate)
        assert more == "", "one line on stdout, no more"
        errors = [line for line in made.events() if line["level"] == "error"]
        # Not ours: grpc.aio on a stream that is reset as it ends, aiohttp on a request that is no HTTP.
        errors = [line for line in errors if line.get("exception") != "ExecuteBatchError"]
        assert [line for line in errors if line.get("logger") != "aiohttp.server"] == []


# ---- any other command ----


def command(*words: str, without: str = "") -> subprocess.CompletedProcess[str]:
    """A `kvring` command that has ended by itself; `without`: a package that is not installed for it."""
    missing = f"import sys; sys.modules[{without!r}] = None; from extproc import cli; sys.exit(cli.main())"
    started = ["-c", missing] if without else ["-m", "extproc"]
    return subprocess.run(
        [sys.executable, *started, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


# ---- endpoints to probe ----


@dataclass
class FakeEndpoint:
    """A model server as its /health shows it. Until it listens, connections are refused."""

    status: int = 200
    silent: bool = False  # takes the request, never answers
    resets: bool = False  # takes the request, resets the connection
    probes: int = 0
    running: int = 0
    running_max: int = 0
    address: str = field(default_factory=lambda: f"127.0.0.1:{ports.own()}")
    _runner: web.AppRunner | None = None

    async def listen(self) -> FakeEndpoint:
        """Answer from now on."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0, handler_cancellation=True)
        await self._runner.setup()
        host, _, port = self.address.rpartition(":")
        await web.TCPSite(self._runner, host, int(port)).start()
        return self

    async def die(self) -> None:
        """Refuse connections from now on, as a killed process does."""
        if self._runner is not None:
            await ports.leave(self._runner)
            self._runner = None

    async def probed(self, more: int = 1) -> None:
        """Return after this many further probes."""
        goal = self.probes + more
        await eventually(lambda: self.probes >= goal)

    async def _health(self, request: web.Request) -> web.Response:
        self.probes += 1
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            if self.resets and request.transport is not None:
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # close with RST
                request.transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
                request.transport.abort()
            if self.silent:
                await asyncio.Event().wait()
            return web.Response(status=self.status)
        finally:
            self.running -= 1


@pytest.fixture
async def endpoint() -> AsyncIterator[Callable[..., FakeEndpoint]]:
    """`endpoint(**behaviour)`: a FakeEndpoint, closed at the end."""
    made: list[FakeEndpoint] = []

    def make(**behaviour: Any) -> FakeEndpoint:
        made.append(FakeEndpoint(**behaviour))
        return made[-1]

    yield make
    for one in made:
        await one.die()


@pytest.fixture
def unused_address() -> str:
    """An address where nobody listens."""
    return f"127.0.0.1:{ports.own()}"
