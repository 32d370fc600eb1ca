"""The link to a store where the store, or a file of ours, is not what it should be: it goes on trying."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from extproc.config import store as settings_
from extproc.share import link
from tests import valkey_server, valve

store = pytest.importorskip("extproc.share.store", reason="needs the extra valkey")

ANSWERS = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"$abc\r\n",
    b"*x\r\n",
    b":zz\r\n",
    b"-\xff\xfe\r\n",
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
        made = store.StoreLink(settings_.Store(url=server.url, timeout_s=0.1), lambda: 0.0)
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        joined = asyncio.Event()
        running = asyncio.create_task(made.run(heard.put_nowait, joined.set))
        await joined.wait()
        await asyncio.sleep(0.5)  # as long as a replica may have nothing to say
        made.send(b"x")
        async with asyncio.timeout(5):
            assert await heard.get() == b"x"
        assert made.state.connects == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
