"""Valve: a TCP proxy between a process and its store, which a test can shut, break and open again.

async with valve.valve(server.socket) as between:
    between.url             # where the process connects
    between.shut()          # nothing passes any more, nobody is told: a network that swallows packets
    between.shut(0)         # only the connection made first
    between.delay_s = 0.2   # what comes later than now passes so much later, at any rate: a long way
    between.cut()           # connections are reset, new ones too: a network that refuses
    between.open()          # as before; what waited passes
    between.connections     # made so far
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

__all__ = ["Valve", "valve"]


class Valve:
    def __init__(self, target: Path | int, tls: ssl.SSLContext | None = None) -> None:
        """`target`: a Unix socket, or a port of 127.0.0.1. `tls`: what is spoken on this side, plaintext on
        the other.
        """
        self.port = 0
        self.connections = 0
        self.delay_s = 0.0
        self._target, self._tls = target, tls
        self._shut: set[int] = set()
        self._all_shut = self._refuses = False
        self._opened = asyncio.Event()
        self._tasks: set[asyncio.Task] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{'valkeys' if self._tls else 'valkey'}://127.0.0.1:{self.port}"

    def shut(self, connection: int | None = None) -> None:
        self._opened.clear()
        if connection is None:
            self._all_shut = True
        else:
            self._shut.add(connection)

    def cut(self) -> None:
        self._refuses = True
        for writer in self._writers:
            writer.transport.abort()

    def open(self) -> None:
        self._refuses = self._all_shut = False
        self._shut.clear()
        self._opened.set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        if self._refuses:
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            there = await (
                asyncio.open_unix_connection(str(self._target))
                if isinstance(self._target, Path)
                else asyncio.open_connection("127.0.0.1", self._target)
            )
            for source, sink in ((reader, there[1]), (there[0], writer)):
                self._writers.add(sink)
                task = asyncio.create_task(self._pump(number, source, sink))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return
        writer.transport.abort()

    async def _pump(self, number: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        clock = asyncio.get_running_loop().time

        async def pour() -> None:
            with contextlib.suppress(OSError):
                while True:
                    due_s, data = await waiting.get()
                    await asyncio.sleep(due_s - clock())
                    if not data:
                        return
                    while self._all_shut or number in self._shut:
                        await self._opened.wait()
                    sink.write(data)
                    await sink.drain()

        pouring = asyncio.create_task(pour())
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(65_536):
                    waiting.put_nowait((clock() + self.delay_s, data))
            waiting.put_nowait((clock() + self.delay_s, b""))
            await pouring
        finally:
            pouring.cancel()
            self._writers.discard(sink)
            sink.close()


@contextlib.asynccontextmanager
async def valve(target: Path | int, tls: ssl.SSLContext | None = None):
    """A running Valve, open."""
    made = Valve(target, tls)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
