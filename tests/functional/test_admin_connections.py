"""The admin port keeps a bounded number of connections, none idle for ever, and answers whoever asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest

from extproc import admin, exchange, groups, journal, metrics, pool, prompt, router
from extproc.admin import connections
from tests.functional.conftest import WAIT_S, chat, eventually

MOST = 8
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def served(most: int = MOST, idle_s: float = 60.0) -> AsyncIterator[admin.Admin]:
    members = [pool.Endpoint(pool.EndpointId(f"e{at}"), f"10.0.0.{at}:1") for at in (1, 2)]
    chooser = router.Router(pool.make("p", members), router.Settings())
    how = exchange.Settings(prompt.Settings(4096))
    shown = admin.Desk(groups.alone(chooser), how, journal.Journal())
    counted = metrics.Metrics(chooser, lambda: 0.0, 0.0)
    limits = connections.Limits(most, idle_s)
    running = admin.Admin(chooser, counted, lambda: 0.0, lambda: True, shown, limits=limits)
    await running.start("127.0.0.1:0")
    try:
        yield running
    finally:
        await running.stop()


async def connected(running: admin.Admin) -> Streams:
    host, _, port = running.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def ended(streams: Streams) -> bool:
    """Whether the other side has ended it; what came before is read away."""
    reader, _ = streams
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        async with asyncio.timeout(0.01):
            while await reader.read(65536):
                pass
    return reader.at_eof()


async def ends(streams: Streams) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await ended(streams):
            pass


def close(*many: Streams) -> None:
    for _, writer in many:
        writer.close()


async def test_idle_connections_without_number_keep_nobody_out() -> None:
    async with served() as running, aiohttp.ClientSession() as session:
        many = []
        for _ in range(5 * MOST):
            many.append(await connected(running))
            async with session.get(f"http://{running.address}/metrics") as answer:
                assert answer.status == 200
        for one in many[:-MOST]:
            await ends(one)
        assert not [one for one in many[-MOST + 1 :] if await ended(one)], "the latest are kept"
        close(*many)


async def test_a_request_under_way_is_never_ended_for_a_new_connection() -> None:
    body = chat("hello")
    head = (
        f"POST /api/explain HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n"
    )
    async with served() as running:
        busy = [await connected(running) for _ in range(MOST)]
        for reader, writer in busy:
            writer.write(head.encode())
            async with asyncio.timeout(WAIT_S):
                assert b"100" in await reader.readuntil(b"\r\n\r\n")  # it is being handled
        turned_away = await connected(running)
        await ends(turned_away)
        for reader, writer in busy:
            writer.write(body)
            async with asyncio.timeout(WAIT_S):
                assert b"200 OK" in await reader.readuntil(b"\r\n")
        close(turned_away, *busy)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET /met"])
async def test_a_connection_that_asks_nothing_more_ends(sent: bytes) -> None:
    async with served(idle_s=0.3) as running:
        silent = await connected(running)
        silent[1].write(sent)
        await ends(silent)
        close(silent)


async def test_one_that_goes_on_asking_is_kept() -> None:
    async with served(idle_s=2.0) as running:
        reader, writer = asking = await connected(running)
        silent = await connected(running)
        for _ in range(3):
            for _ in range(8):  # two seconds and more in all
                writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                async with asyncio.timeout(WAIT_S):
                    assert b"200 OK" in await reader.readuntil(b"\r\n\r\nok\n")
                await asyncio.sleep(0.1)  # its own pace
        await ends(silent)
        close(asking, silent)


async def test_that_there_were_too_many_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "kvring")
    async with served() as running:
        many = [await connected(running) for _ in range(3 * MOST)]
        await ends(many[MOST])
        await eventually(lambda: bool(caplog.records))
        assert {record.message for record in caplog.records} == {"admin connections ended: too many"}
        close(*many)
