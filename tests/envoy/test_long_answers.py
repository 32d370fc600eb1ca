"""X16: an answer that streams for an hour. What could cut it, or let kvring take it for finished?

    Envoy, to the client     stream_idle_timeout 1 h: of silence, not of the answer; the route's timeout: none
    Envoy, to kvring         silent all the while where it shows no answers; control planes set a gRPC timeout
    kvring                   keepalive 30 s; what it keeps of an answer it is shown

Nobody waits an hour here: the limits are cut to seconds, and the answer outlives them several times over. The
heavy test takes minutes (`KVRING_ANSWER_MIN`, 60 if you like) with everything as shipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

import pytest
import yaml

from extproc import bootstrap, gateway
from extproc.exchange import BodyMode
from tests.deploy import shapes
from tests.envoy import account, client, mirror
from tests.envoy import fleet as fleets

SHIPPED = sorted((Path(__file__).parents[2] / "envoy").glob("*.yaml"))
MIB = 1024 * 1024
IDLE_S = 2.0
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
MODES = {
    "shipped": {},
    "shown the answer": {"body_mode": DUPLEX, "response_body_mode": DUPLEX},
}
TOKEN = b'data: {"choices": [{"delta": {"content": "token"}}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"data: [DONE]\n\n"


class Talker:
    """An endpoint whose answers go on, `pause_s` between pieces of `piece`, until `enough` is set."""

    def __init__(self, pause_s: float, piece: bytes = TOKEN) -> None:
        self.pause_s, self.piece = pause_s, piece
        self.pieces = 0
        self.enough = asyncio.Event()
        self.address = ""

    async def serve(self, reader, writer) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                line, headers = await mirror._head(reader)
                await mirror._body(reader, headers, lambda _: None)
                if line.startswith("GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    continue
                writer.write(HEAD)
                while not self.enough.is_set():
                    writer.write(b"%x\r\n%b\r\n" % (len(self.piece), self.piece))
                    await writer.drain()
                    self.pieces += 1
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self.pause_s):
                            await self.enough.wait()
                writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(END), END))
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def talking(directory, talker, mode, *, idle_s=None, grpc_s=None):
    """(fleet with this talker as its only endpoint, URL of a door to it, an open answer)."""
    server = await asyncio.start_server(talker.serve, "127.0.0.1", 0)
    talker.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    others = {"talker": talker.address}
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(server.close)
        stack.callback(talker.enough.set)
        running = await stack.enter_async_context(fleets.fleet(directory, replicas=0, others=others, **mode))
        sidecar = bootstrap.Sidecar(
            running._listen["grpc"], int(running._listen["health"].rpartition(":")[2])
        )
        steering = bootstrap.Steering([sidecar], message_timeout_s=fleets.PATIENCE_S, **mode)
        door = bootstrap.Listener("127.0.0.1:0", running.endpoints, steering=steering)
        built = bootstrap.build([door], admin="127.0.0.1:0")
        manager = shapes.manager(built)
        if idle_s is not None:
            manager["stream_idle_timeout"] = f"{idle_s}s"
        if grpc_s is not None:
            manager["http_filters"][0]["typed_config"]["grpc_service"]["timeout"] = f"{grpc_s}s"
        envoy = await stack.enter_async_context(gateway.envoy(built))
        http = await stack.enter_async_context(client.session(timeout_s=None))

        async def asked():
            stats = await envoy.stats("cluster.kvring.membership_healthy")
            return stats["cluster.kvring.membership_healthy"] == 1

        await client.until(asked, "kvring known to Envoy")
        answer = await stack.enter_async_context(
            http.post(f"{envoy.url('llm')}/v1/chat/completions", data=client.chat_body("hello", stream=True))
        )
        assert answer.status == 200
        yield running, answer


async def held(running):
    """kvring counts the answer as open."""
    state = (await running.state())["pools"][0]
    assert state["open_leases"] == 1
    assert await running.metric("kvring_streams_open") == 1


async def spoken(talker, pieces):
    async def enough():
        return talker.pieces >= pieces

    await client.until(enough, f"{pieces} pieces")


@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_outlives_every_limit_many_times_while_it_goes_on(tmp_path, mode):
    talker = Talker(pause_s=IDLE_S / 10)
    async with talking(tmp_path, talker, MODES[mode], idle_s=IDLE_S, grpc_s=IDLE_S / 2) as (running, answer):
        began_s = time.monotonic()
        reading = asyncio.create_task(answer.read())
        await spoken(talker, talker.pieces + 40)
        assert time.monotonic() - began_s > 3 * IDLE_S
        await held(running)
        talker.enough.set()
        body = await reading
        assert body == TOKEN * talker.pieces + END
        await account.settled(running)


@pytest.mark.parametrize("mode", MODES)
async def test_one_that_is_silent_for_longer_is_cut_so_the_limit_above_is_real(tmp_path, mode):
    talker = Talker(pause_s=60)
    async with talking(tmp_path, talker, MODES[mode], idle_s=IDLE_S) as (running, answer):
        with pytest.raises(client.aiohttp.ClientPayloadError):
            await answer.read()
        await account.settled(running)


async def test_an_answer_that_kvring_is_shown_takes_no_more_memory_the_longer_it_is(tmp_path):
    talker = Talker(pause_s=0, piece=TOKEN * 300)
    async with talking(tmp_path, talker, MODES["shown the answer"]) as (running, answer):
        sizes, came = [], 0
        async for piece in answer.content.iter_any():
            came += len(piece)
            if came > 10 * MIB * (len(sizes) + 1):
                sizes.append(account.rss_bytes(running))
            if len(sizes) == 50:
                talker.enough.set()
        # 200 MiB and more apart; some of 30 MiB are on their way at a time, for a while
        early, late = sizes[:10], sizes[30:50]
        assert min(late) - min(early) < 12 * MIB, [size / MIB for size in sizes]
        await account.settled(running)


@pytest.mark.parametrize(
    "path", [one for one in SHIPPED if one.name != "endpoints.yaml"], ids=lambda p: p.name
)
def test_no_shipped_limit_is_below_an_hour(path):
    config = yaml.safe_load(path.read_text())
    manager = shapes.manager(config)
    assert manager["stream_idle_timeout"] == "3600s"
    for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
        assert route["route"]["timeout"] == "0s"
        assert "idle_timeout" not in route["route"]
    assert "max_stream_duration" not in str(config)
    assert "max_connection_duration" not in str(config)
    assert "timeout" not in manager["http_filters"][0]["typed_config"]["grpc_service"]


@pytest.mark.heavy
@pytest.mark.timeout(0)
@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_of_many_minutes_as_shipped(tmp_path, mode):
    """Longer than what might cut it: 15 s of a route, 50 s of keepalive, Envoy's 5 min of silence."""
    minutes = float(os.environ.get("KVRING_ANSWER_MIN", "6"))
    pause_s = 20.0
    talker = Talker(pause_s)
    async with talking(tmp_path, talker, MODES[mode]) as (running, answer):
        reading = asyncio.create_task(answer.read())
        await spoken(talker, 1)
        before = account.rss_bytes(running)
        deadline_s = time.monotonic() + 60 * minutes
        while time.monotonic() < deadline_s:
            await held(running)
            assert not reading.done()
            await asyncio.sleep(pause_s)  # the answer's own pace
        assert account.rss_bytes(running) - before < 3 * MIB
        talker.enough.set()
        assert await reading == TOKEN * talker.pieces + END
        await account.settled(running)
