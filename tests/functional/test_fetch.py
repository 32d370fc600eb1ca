"""GETs of model servers: every way an answer can come, or fail to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from extproc import fetch
from tests.functional.conftest import WAIT_S


@contextlib.asynccontextmanager
async def serving(*answers: bytes, close: bool = True, pieces: int = 0) -> AsyncIterator[Served]:
    """A server that gives one of `answers` to each request on a connection, then closes it."""
    served = Served()

    tasks: list[asyncio.Task[None] | None] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        tasks.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            for answer in answers:
                served.requests.append(await reader.readuntil(b"\r\n\r\n"))
                for start in range(0, len(answer), pieces or max(len(answer), 1)):
                    writer.write(answer[start : start + (pieces or len(answer))])
                    await writer.drain()
                    if pieces:
                        await asyncio.sleep(0)
            if not close:
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    served.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*filter(None, tasks))


class Served:
    address = ""
    connections = 0

    def __init__(self) -> None:
        self.requests: list[bytes] = []


OK = b"HTTP/1.1 200 OK\r\n"
SIZED = OK + b"content-length: 5\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"


@pytest.mark.parametrize("pieces", [0, 1, 7])
@pytest.mark.parametrize(
    "answer",
    [
        SIZED,
        CHUNKED,
        OK + b"\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        OK + b"Content-LENGTH:  5 \r\nx: y\r\n\r\nhello",
        OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nTrailer: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED,
    ],
)
async def test_an_answer_is_read_however_it_is_framed_and_cut(answer: bytes, pieces: int) -> None:
    async with serving(answer, pieces=pieces) as served:
        found = await fetch.fetch(served.address, "/metrics", 5)
    assert found == fetch.Answer(200, b"hello")
    assert served.requests[0].startswith(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"connection: close\r\n" in served.requests[0]


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_needs_no_length(status: int) -> None:
    async with serving(b"HTTP/1.1 %d X\r\n\r\n" % status, close=False) as served:
        assert await fetch.fetch(served.address, "/", 5) == fetch.Answer(status, b"")


async def test_a_kept_connection_serves_many_requests() -> None:
    async with serving(SIZED, CHUNKED, SIZED, close=False) as served:
        connection = fetch.Connection(served.address)
        for _ in range(3):
            assert (await connection.get("/metrics", 5)).body == b"hello"
        assert served.connections == 1
        connection.close()


async def test_a_connection_closed_while_idle_is_opened_again() -> None:
    async with serving(SIZED) as served:  # one answer a connection
        connection = fetch.Connection(served.address)
        for _ in range(3):
            assert (await connection.get("/", 5)).body == b"hello"
            await asyncio.sleep(0.01)
        assert served.connections == 3
        connection.close()


async def test_an_answer_that_says_close_is_not_reused() -> None:
    async with serving(OK + b"connection: close\r\ncontent-length: 1\r\n\r\nx", close=False) as served:
        connection = fetch.Connection(served.address)
        for _ in range(2):
            await connection.get("/", 5)
        assert served.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"content-length: -5\r\n\r\n",
        OK + b"content-length: 999999999\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\nfffffff\r\n",
        OK + b"x: " + b"y" * 70_000,
        OK + b"transfer-encoding: chunked\r\n\r\n" + b"1" * 2000,
    ],
)
async def test_what_is_no_answer_is_malformed(answer: bytes) -> None:
    async with serving(answer, close=False) as served:
        with pytest.raises(fetch.FetchError, match="malformed"):
            await fetch.fetch(served.address, "/", 5)


async def test_a_body_without_end_stops_at_the_bound() -> None:
    async with serving(OK + b"\r\n" + b"x" * 100_000, close=False) as served:
        with pytest.raises(fetch.FetchError, match="malformed"):
            await fetch.Connection(served.address, body_bytes_max=50_000).get("/", 5)


@pytest.mark.parametrize("answer", [b"", OK, SIZED[:-1], CHUNKED[:-4]])
async def test_an_answer_that_breaks_off_is_as_good_as_refused(answer: bytes) -> None:
    async with serving(answer) as served:
        with pytest.raises(fetch.FetchError, match="refused"):
            await fetch.fetch(served.address, "/", 5)


async def test_nobody_listening_is_refused(unused_address: str) -> None:
    with pytest.raises(fetch.FetchError, match="refused"):
        await fetch.fetch(unused_address, "/", 5)


async def test_silence_ends_in_a_timeout_and_the_next_request_gets_a_connection_of_its_own() -> None:
    async with serving(OK + b"content-length: 9\r\n\r\nhel", close=False) as served:
        connection = fetch.Connection(served.address)
        for _ in range(2):
            with pytest.raises(fetch.FetchError, match="timeout"):
                await connection.get("/", 0.05)
        assert served.connections == 2
