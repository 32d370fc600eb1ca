"""The link to a store where the store, or a file of ours, is not what it should be: it goes on trying."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from extproc.config import store as settings_
from extproc.share import link
from tests import valkey_server, valve

store = pytest.importorskip("extproc.share.store", reason="needs the extra valkey")
resp = pytest.importorskip("extproc.share.resp", reason="needs the extra valkey")

ANSWERS = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"$abc\r\n",
    b"*x\r\n",
    b":zz\r\n",
    b"-\xff\xfe\r\n",
    b"%1\r\n*1\r\n+a\r\n+x\r\n",
    b"*3\r\n$9\r\nsubscribe\r\n$6\r\nkvring\r\n:1\r\n+PONG\r\n*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n:5\r\n",
]


async def tries(asked: settings_.Store, seen: asyncio.Queue[None]) -> link.State:
    """The state after a few connections; the link must live then."""
    made = store.StoreLink(asked, lambda: 0.0)
    heard: list[bytes] = []
    running = asyncio.create_task(made.run(heard.append, lambda: None))
    waiting = asyncio.ensure_future(_several(seen))
    try:
        await asyncio.wait({running, waiting}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done(), running.exception()
        assert waiting.done()
        assert all(isinstance(one, bytes) for one in heard)
    finally:
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
    return made.state


async def _several(seen: asyncio.Queue[None]) -> None:
    for _ in range(2):
        await seen.get()


@pytest.mark.parametrize("answer", ANSWERS)
async def test_what_is_no_store_is_tried_again(answer: bytes) -> None:
    seen: asyncio.Queue[None] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.put_nowait(None)
        try:
            while await reader.read(4096):
                writer.write(answer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await tries(settings_.Store(url=f"redis://127.0.0.1:{port}", timeout_s=0.2), seen)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n", "needs RESP3: "),
        (b"-ERR unknown command 'HELLO'\r\n", "needs RESP3: Valkey, or Redis 6.0 or later"),
        (b"-NOPROTO unsupported protocol version\r\n", "needs RESP3: Valkey, or Redis 6.0 or later"),
        (b"-ERR max number of clients reached\r\n", "ERR"),
    ],
)
async def test_a_server_without_resp3_is_told_as_what_it_is(answer: bytes, problem: str) -> None:
    seen: asyncio.Queue[None] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        seen.put_nowait(None)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        state = await tries(settings_.Store(url=f"redis://127.0.0.1:{port}"), seen)
    assert state.problem.startswith(problem)
    assert problem != "ERR" or state.problem == problem


@pytest.mark.parametrize("message", [b"%1\r\n*1\r\n+a\r\n+x\r\n", b"~1\r\n%0\r\n", b"*x\r\n"])
async def test_no_message_raises_into_the_loop(message: bytes) -> None:
    connection = resp.Connection(lambda _: None)
    feed(connection, message)
    assert isinstance(connection.gone.exception(), resp.BrokenError)


async def test_a_list_without_an_end_is_not_kept() -> None:
    connection = resp.Connection(lambda _: None)
    feed(connection, b"*10000000\r\n")
    piece = b"$4096\r\n" + b"x" * 4096 + b"\r\n"
    for _ in range(64 * 1024 * 1024 // len(piece) + 1):
        feed(connection, piece)
    assert isinstance(connection.gone.exception(), resp.BrokenError)


async def test_messages_that_do_end_may_be_many() -> None:
    heard: list[int] = []
    connection = resp.Connection(lambda data: heard.append(len(data)))
    message = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$60000\r\n" + b"x" * 60000 + b"\r\n"
    for _ in range(1200):
        feed(connection, message)
    assert heard == [60000] * 1200
    assert not connection.gone.done()


async def test_what_a_server_pushes_unasked_is_no_answer() -> None:
    pushes = (
        b">2\r\n+invalidate\r\n_\r\n>3\r\n+subscribe\r\n+other\r\n:2\r\n>3\r\n+unsubscribe\r\n_\r\n:0\r\n"
    )
    message = b">3\r\n+message\r\n+c\r\n$1\r\nx\r\n"
    answers = {
        b"HELLO": b"%1\r\n+proto\r\n:3\r\n",
        b"SUBSCRIBE": b">3\r\n+subscribe\r\n+c\r\n:1\r\n",
        b"PING": b"+PONG\r\n",
        b"PUBLISH": message + b":1\r\n",
        b"SENTINEL": b"*1\r\n%1\r\n+name\r\n+main\r\n",
    }

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):  # the last: the test is over
            while asked := await reader.read(65536):
                for word in asked.split(b"\r\n"):
                    writer.write(pushes + answers[word] + pushes if word in answers else b"")
        writer.close()

    heard: list[bytes] = []
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = await resp.dial(("127.0.0.1", port), None, None, None, heard.append)
        await connection.subscribe("c")
        for _ in range(3):
            connection.publish("c", b"x")
        assert await connection.ask("PING") == b"PONG"
        assert await connection.ask("SENTINEL", "MASTERS") == [{b"name": b"main"}]
        assert await connection.ask("PING") == b"PONG"
        assert heard == [b"x"] * 3
        assert not connection.gone.done()
        connection.close()


async def test_of_a_refusal_only_a_short_first_word_is_kept() -> None:
    assert resp.RefusedError("NOPERM this user").code == "NOPERM"
    assert resp.RefusedError("A" * 100_000).code == "ERR"


async def test_a_sentinel_that_names_no_port_is_no_end() -> None:
    async with valkey_server.naming(b"127.0.0.1", b"65536") as (port, seen):
        await tries(settings_.Store(url=f"redis://127.0.0.1:{port}", sentinel="main", timeout_s=2), seen)


@pytest.mark.parametrize("ip", [b"127.0.0.1", b"\xff"])
async def test_a_sentinel_that_names_no_address_keeps_nobody_from_asking_the_next(ip: bytes) -> None:
    async with (
        valkey_server.naming(ip, b"65536") as (bad, _),
        valkey_server.naming(b"10.0.0.7", b"6379") as (good, _),
    ):
        url = f"redis://127.0.0.1:{bad},127.0.0.1:{good}"
        made = store.StoreLink(settings_.Store(url=url, sentinel="main"), lambda: 0.0)
        assert await made._find() == ("10.0.0.7", 6379)


@pytest.mark.parametrize("entry", ["127.0.0.1:x", "a..b", "a" * 64])  # no port, no names: as IDNA has it
async def test_a_sentinel_that_can_not_be_asked_keeps_nobody_from_asking_the_next(entry: str) -> None:
    async with valkey_server.naming(b"10.0.0.7", b"6379") as (good, _):
        url = f"redis://{entry},127.0.0.1:{good}"
        made = store.StoreLink(settings_.Store(url=url, sentinel="main"), lambda: 0.0)
        assert await made._find() == ("10.0.0.7", 6379)


async def test_who_is_let_in_and_turned_out_again_waits_longer_each_time() -> None:
    let_in_s: list[float] = []
    enough = asyncio.Event()
    clock = asyncio.get_running_loop().time

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while asked := await reader.read(4096):
                if b"HELLO" in asked:
                    writer.write(b"%0\r\n")
                if b"SUBSCRIBE" in asked:
                    writer.write(b">3\r\n$9\r\nsubscribe\r\n$6\r\nkvring\r\n:1\r\n")
                if b"PING" in asked:
                    let_in_s.append(clock())
                    writer.write(b"+PONG\r\n")
                if b"PUBLISH" in asked:
                    writer.write(b"-NOPERM this user has no permissions\r\n")
        except OSError:
            pass
        finally:
            writer.close()
            if len(let_in_s) == 5:
                enough.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        made = store.StoreLink(settings_.Store(url=f"redis://127.0.0.1:{port}"), lambda: 0.5)
        running = asyncio.create_task(made.run(lambda _: None, lambda: made.send(b"greeting")))
        try:
            await asyncio.wait_for(enough.wait(), 30)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    gaps_s = [after - before for before, after in itertools.pairwise(let_in_s[:5])]
    assert gaps_s[3] >= 0.75, gaps_s  # 0.1, 0.2, 0.4, 0.8
    assert made.state.problem == "NOPERM"


def feed(connection: Any, data: bytes) -> None:
    """As the loop does."""
    for start in range(0, len(data), 65536):
        piece = data[start : start + 65536]
        connection.get_buffer(0)[: len(piece)] = piece
        connection.buffer_updated(len(piece))


async def test_a_password_file_that_is_no_text_is_a_problem_and_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"\xff\xfe\xff")
    seen: asyncio.Queue[None] = asyncio.Queue()
    read = store._secret

    def secret(path: str | None) -> str | None:
        seen.put_nowait(None)
        return read(path)

    monkeypatch.setattr(store, "_secret", secret)
    state = await tries(settings_.Store(url="redis://127.0.0.1:1", password_file=str(file)), seen)
    assert state.problem == "UnicodeDecodeError"


async def test_who_hears_nothing_any_more_connects_again_though_publishing_works(tmp_path: Path) -> None:
    async with (
        valkey_server.running(tmp_path) as server,
        valve.valve(server.socket) as between,
    ):
        made = store.StoreLink(settings_.Store(url=between.url, timeout_s=30.0), lambda: 0.0)
        heard: list[bytes] = []
        running = asyncio.create_task(made.run(heard.append, lambda: None))

        async def own_echo() -> None:
            before = len(heard)
            async with asyncio.timeout(30):
                while len(heard) == before:
                    made.send(b"x")
                    await asyncio.sleep(0.05)

        await own_echo()
        between.shut(0)  # the one that is subscribed: it is made first
        await own_echo()
        assert made.state.connects == 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_silence_longer_than_an_answer_may_take_is_no_fault(tmp_path: Path) -> None:
    async with valkey_server.running(tmp_path) as server:
        made = store.StoreLink(settings_.Store(url=server.url, timeout_s=0.5), lambda: 0.0)
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        joined = asyncio.Event()
        running = asyncio.create_task(made.run(heard.put_nowait, joined.set))
        await joined.wait()
        await asyncio.sleep(1.0)  # longer than a replica may have nothing to say
        made.send(b"x")
        async with asyncio.timeout(30):
            assert await heard.get() == b"x"
        assert made.state.connects == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
