"""Client: what a test sends to the gateway, from well-behaved SDK calls down to single bytes on a socket.

Raw connections exist since no HTTP library sends what clients on bad networks send: half a body, a chunk of
one byte, a trailer nobody asked for, and then nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time

import aiohttp
import openai

from extproc import gateway
from tests.envoy import fleet as fleets

WAIT_S = 60.0
"""Bound of every wait for something that should take far less: other work may share the machine."""


def openai_client(running: fleets.Fleet) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=WAIT_S)


def session(timeout_s: float = WAIT_S) -> aiohttp.ClientSession:
    """A client without a limit of connections."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=timeout_s)
    )


def chat_body(text: str, **fields) -> bytes:
    """A chat request of one user message; one token of answer unless `fields` say otherwise."""
    body = {"model": fleets.MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    return json.dumps(body | fields).encode()


def padded(body_bytes: int, **fields) -> bytes:
    """A valid chat body of exactly so many bytes [>= 100], most of them in a field that engines ignore."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1} | fields
    short = json.dumps(body | {"user": ""}).encode()
    return json.dumps(body | {"user": "x" * (body_bytes - len(short))}).encode()


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


async def until(found, what: str = "", timeout_s: float = WAIT_S):
    """The first truthy value of `await found()`."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := await found()):
        assert time.monotonic() < deadline_s, f"still not: {what or found}"
        await asyncio.sleep(0.05)
    return value


async def in_time(envoy: gateway.Envoy, send):
    """An answer of `await send()` for which Envoy heard kvring in time: a busy machine may take longer than
    the message_timeout that is shipped, and then Envoy does without.
    """

    async def answered():
        before = await _did_without(envoy)
        answer = await send()
        return answer if await _did_without(envoy) == before else None

    return await until(answered, "kvring answers in time")


async def _did_without(envoy: gateway.Envoy) -> int:
    found = await envoy.stats(r"ext_proc.*\.(failure_mode_allowed|message_timeouts|streams_failed)$")
    return sum(found.values())


class Raw:
    """One HTTP/1.1 connection, written byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self.reader, self.writer, self._host = reader, writer, host

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, path: str = "/v1/chat/completions", method: str = "POST", **headers: object) -> None:
        """Request line and headers; a header's "_" stands for "-"."""
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._host}", "content-type: application/json"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        """A chunk of a chunked body; an empty one ends it."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) of an answer that has a length or ends with the connection."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
        }
        if "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        else:
            body = await self.reader.read()
        return int(head[0].split()[1]), headers, body

    def abort(self) -> None:
        """RST, not FIN: as a client that is gone."""
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def raw(running: fleets.Fleet):
    """A Raw connection to kvring's door."""
    host = running.url.removeprefix("http://")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    try:
        yield Raw(reader, writer, host)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
