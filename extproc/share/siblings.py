"""Siblings: a link between the workers of one machine, over Unix sockets in one directory.

Every worker listens on `worker-N.sock` and writes to all others' sockets, length before message. No
process is in between, so that none can hold up the others, and the death of one cuts only its own
connections.

Never: more than `_BUFFER_BYTES_MAX` waiting for one that does not read; what comes then is dropped for it,
counted. Called by: app (makes), share.sharing. Why not through one of them: docs/decisions/0042-workers.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from pathlib import Path

from extproc.news import message
from extproc.share import link

__all__ = ["Siblings"]

_BUFFER_BYTES_MAX = 8 * 1024 * 1024
_RETRY_S = 0.1
_LENGTH = 4


class Siblings:
    """The link of worker `index` of `count`."""

    def __init__(self, directory: Path, index: int, count: int) -> None:
        """`directory`: of the sockets, for this user only."""
        self.state = link.State("siblings")
        self._directory = directory
        self._index = index
        self._others = [number for number in range(count) if number != index]
        self._to: dict[int, asyncio.WriteTransport] = {}
        self._gone: dict[int, asyncio.Event] = {}

    async def run(self, heard: link.Heard, joined: Callable[[], None]) -> None:
        """As in `link.Link`."""
        loop = asyncio.get_running_loop()
        path = self._path(self._index)
        path.unlink(missing_ok=True)  # of the one that was worker N before
        server = await loop.create_unix_server(lambda: _Reader(heard), str(path))
        async with server, asyncio.TaskGroup() as group:
            for number in self._others:
                group.create_task(self._reach(number, joined))

    def send(self, data: bytes) -> None:
        """As in `link.Link`."""
        framed = len(data).to_bytes(_LENGTH, "little") + data
        for transport in self._to.values():
            if transport.get_write_buffer_size() > _BUFFER_BYTES_MAX:
                self.state.dropped += 1
            else:
                transport.write(framed)

    async def close(self) -> None:
        """As in `link.Link`."""
        for transport in self._to.values():
            transport.close()  # what is in its buffer is still written
        await asyncio.sleep(0)

    def _path(self, number: int) -> Path:
        return self._directory / f"worker-{number}.sock"

    async def _reach(self, number: int, joined: Callable[[], None]) -> None:
        """Keep a connection to worker `number`."""
        loop = asyncio.get_running_loop()
        while True:
            gone = asyncio.Event()
            with contextlib.suppress(OSError):
                transport, _ = await loop.create_unix_connection(
                    functools.partial(_Writer, gone), str(self._path(number))
                )
                self._to[number] = transport
                self.state.connects += 1
                self._note()
                joined()
                try:
                    await gone.wait()
                finally:
                    del self._to[number]
                    transport.close()
                    self._note()
            await asyncio.sleep(_RETRY_S)

    def _note(self) -> None:
        missing = len(self._others) - len(self._to)
        self.state.connected = not missing
        self.state.carries = bool(self._to)
        self.state.problem = f"{missing} of {len(self._others)} workers not reached" if missing else ""


class _Writer(asyncio.Protocol):
    """Tells when the connection is gone; nothing is read from it."""

    def __init__(self, gone: asyncio.Event) -> None:
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        self._gone.set()


class _Reader(asyncio.Protocol):
    """Cuts what comes into messages."""

    def __init__(self, heard: link.Heard) -> None:
        self._heard = heard
        self._buffer = bytearray()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH:
            end = start + _LENGTH + int.from_bytes(buffer[start : start + _LENGTH], "little")
            if end - start > message.BYTES_MAX + _LENGTH:
                buffer.clear()
                if self._transport is not None:
                    self._transport.close()
                return
            if len(buffer) < end:
                break
            self._heard(bytes(buffer[start + _LENGTH : end]))
            start = end
        del buffer[:start]
