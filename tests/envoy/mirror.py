"""Mirror: an endpoint that hands the body of a request back, piece by piece, with trailers behind it.

It speaks HTTP/1.1 by hand: no HTTP library here sends trailers. `read_message` reads them for the client.

async with mirror.mirror() as there:
    there.address;  there.open;  there.trailers      # of the last request
    there.gate.clear()                               # an answer stops after its first piece
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib

PIECE_BYTES = 7001


class Mirror:
    def __init__(self) -> None:
        self.address = ""
        self.open = 0
        self.got = 0  # bytes of bodies that have come, of all requests
        self.trailers: dict[str, str] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, headers = await _head(reader)
        if line.startswith("GET"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        self.open += 1
        try:
            body, self.trailers = await _body(reader, headers, self._count)
            digest = hashlib.sha256(body).hexdigest()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for at in range(0, len(body), PIECE_BYTES):
                piece = body[at : at + PIECE_BYTES]
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
                await self.gate.wait()
            writer.write(f"0\r\nx-digest: {digest}\r\n\r\n".encode())
            await writer.drain()
        finally:
            self.open -= 1

    def _count(self, count: int) -> None:
        self.got += count


@contextlib.asynccontextmanager
async def mirror():
    made = Mirror()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, limit=1 << 20)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        made.gate.set()
        server.close()


async def read_message(reader: asyncio.StreamReader) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and trailers of an answer."""
    line, headers = await _head(reader)
    body, trailers = await _body(reader, headers, lambda _: None)
    return int(line.split()[1]), body, trailers


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    return lines[0], _fields(lines[1:])


async def _body(reader, headers, count) -> tuple[bytes, dict[str, str]]:
    if headers.get("transfer-encoding") != "chunked":
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        count(len(body))
        return body, {}
    pieces = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        piece = (await reader.readexactly(size + 2))[:-2]
        count(len(piece))
        pieces.append(piece)
    lines = []
    while (line := (await reader.readuntil(b"\r\n")).strip()) != b"":
        lines.append(line.decode())
    return b"".join(pieces), _fields(lines)


def _fields(lines: list[str]) -> dict[str, str]:
    split = (line.partition(":") for line in lines if line)
    return {name.lower(): value.strip() for name, _, value in split}
