"""FULL_DUPLEX_STREAMED both ways through a real Envoy: bytes exact, every outcome as docs/exchange.md says.

An endpoint hands each body back in pieces with trailers behind it, so that what a client gets has passed
kvring twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random

import pytest
import pytest_asyncio

from extproc import bootstrap, gateway
from extproc.exchange import BodyMode
from tests.envoy import account, client, mirror
from tests.envoy import fleet as fleets

DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
TRAILERS = {"enable_trailers": True}


class Rig:
    """A fleet whose endpoints are mirrors, behind an Envoy that lets trailers pass."""

    def __init__(self, running, mirrors, envoy):
        self.running, self.mirrors, self.envoy = running, mirrors, envoy
        self.host = envoy.url("llm").removeprefix("http://")

    async def settled(self):
        await client.until(self._empty, "no lease, no stream")

    async def _empty(self):
        state = (await self.running.state())["pools"][0]
        return (
            state["open_leases"] == 0
            and all(e["inflight"] == e["pending_tokens"] == 0 for e in state["endpoints"])
            and await self.running.metric("kvring_streams_open") == 0
        )

    @contextlib.asynccontextmanager
    async def connection(self):
        reader, writer = await asyncio.open_connection(*self.host.split(":"), limit=1 << 20)
        try:
            yield client.Raw(reader, writer, self.host)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def send(self, body, *, chunk_bytes=0, trailers=None, pause_s=0.0):
        """(status, body, trailers) of a POST; `chunk_bytes` 0 sends it with its length."""
        async with self.connection() as raw, asyncio.timeout(client.WAIT_S):
            answer = asyncio.create_task(mirror.read_message(raw.reader))
            if not chunk_bytes:
                await raw.head(content_length=len(body))
                await raw.send(body)
                return await answer
            await raw.head(transfer_encoding="chunked")
            for at in range(0, len(body), chunk_bytes):
                await raw.chunk(body[at : at + chunk_bytes])
                await asyncio.sleep(pause_s)
            lines = "".join(f"{name}: {value}\r\n" for name, value in (trailers or {}).items())
            await raw.send(f"0\r\n{lines}\r\n".encode())
            return await answer


@contextlib.asynccontextmanager
async def rig(directory, retry_policy=None, change=lambda _built: None, **settings):
    """A running Rig; `change`: what else is done to its bootstrap."""
    async with contextlib.AsyncExitStack() as stack:
        mirrors = [await stack.enter_async_context(mirror.mirror()) for _ in range(3)]
        others = {f"mirror-{number}": each.address for number, each in enumerate(mirrors)}
        running = await stack.enter_async_context(
            fleets.fleet(directory, replicas=0, others=others, settings=settings)
        )
        sidecar = bootstrap.Sidecar(
            running._listen["grpc"], int(running._listen["health"].rpartition(":")[2])
        )
        door = bootstrap.Listener(
            "127.0.0.1:0",
            running.endpoints,
            steering=bootstrap.Steering([sidecar], body_mode=DUPLEX, response_body_mode=DUPLEX),
        )
        built = bootstrap.build([door], admin="127.0.0.1:0")
        manager = built["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_protocol_options"] = TRAILERS
        if retry_policy:
            manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["retry_policy"] = retry_policy
        for cluster in built["static_resources"]["clusters"]:
            (options,) = cluster["typed_extension_protocol_options"].values()
            if "http_protocol_options" in options["explicit_http_config"]:
                options["explicit_http_config"]["http_protocol_options"] = TRAILERS
        change(built)
        envoy = await stack.enter_async_context(gateway.envoy(built))
        made = Rig(running, mirrors, envoy)
        await client.until(lambda: _healthy(envoy), "kvring known to Envoy")
        yield made


async def _healthy(envoy):
    stats = await envoy.stats("cluster.kvring.membership_healthy")
    return stats["cluster.kvring.membership_healthy"] == 1


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory):
    async with rig(tmp_path_factory.mktemp("duplex")) as made:
        yield made


def _body(size: int) -> bytes:
    return client.padded(size) if size >= 200 else bytes(range(256))[:size]


def _exact(answer, body):
    status, came, trailers = answer
    return status == 200 and came == body and trailers == {"x-digest": hashlib.sha256(body).hexdigest()}


@pytest.mark.parametrize("chunk_bytes", [0, 100_000], ids=["length", "chunked"])
@pytest.mark.parametrize("size", [0, 1, 200, 32_769, 65_537, 1_200_000, 5_000_000])
async def test_a_body_of_any_size_comes_back_exactly(shared, size, chunk_bytes):
    body = _body(size)
    assert _exact(await shared.send(body, chunk_bytes=chunk_bytes), body)
    await shared.settled()


async def test_a_body_of_one_byte_chunks_comes_back_exactly(shared):
    body = _body(700)
    assert _exact(await shared.send(body, chunk_bytes=1), body)


async def test_trailers_pass_both_ways(shared):
    body = _body(100_000)
    answer = await shared.send(body, chunk_bytes=30_000, trailers={"x-sum": "42"})
    assert _exact(answer, body)
    assert {"x-sum": "42"} in [each.trailers for each in shared.mirrors]


async def test_a_retry_policy_would_send_a_body_with_trailers_twice_which_is_why_there_is_none(tmp_path):
    """envoy#46095, still in 1.40. When this fails, the bootstrap may retry in full duplex again."""
    policy = {"retry_on": "connect-failure", "num_retries": 1}
    body = _body(300)
    async with rig(tmp_path, retry_policy=policy) as made:
        assert _exact(await made.send(body, chunk_bytes=100), body)
        _, came, _ = await made.send(body, chunk_bytes=100, trailers={"x-sum": "42"})
        assert came == body + body


async def test_40_bodies_at_once_are_not_mixed_up(shared):
    rng = random.Random(5)
    bodies = [client.padded(rng.randrange(200, 200_000), seed=number) for number in range(40)]
    sizes = [rng.choice([0, 1000, 70_000]) for _ in bodies]
    answers = await asyncio.gather(
        *(shared.send(body, chunk_bytes=size) for body, size in zip(bodies, sizes, strict=True))
    )
    assert all(_exact(answer, body) for answer, body in zip(answers, bodies, strict=True))
    await shared.settled()


async def _slow_upload(made, seconds):
    """Upload 60 KB in `seconds`; whether the choice came before half of it had been sent, and the answer."""
    before = await made.running.metric("kvring_choices_total")
    body = client.chat_body("".join(f"word {number} " for number in range(6000)))
    pieces = 30
    size = -(-len(body) // pieces)
    sending = asyncio.create_task(made.send(body, chunk_bytes=size, pause_s=seconds / pieces))
    await client.until(lambda: _more(made, before), "a choice")
    early = not sending.done() and sum(each.got for each in made.mirrors)
    answer = await asyncio.wait_for(sending, client.WAIT_S + seconds)
    assert _exact(answer, body)
    return early


async def _more(made, before):
    return await made.running.metric("kvring_choices_total") > before


async def test_a_slow_upload_is_chosen_for_before_it_ends(shared):
    await _slow_upload(shared, 2.0)
    await shared.settled()


@pytest.mark.heavy
async def test_an_upload_of_30_s_is_chosen_for_long_before_it_ends(shared):
    got = sum(each.got for each in shared.mirrors)
    early = await _slow_upload(shared, 30.0)
    assert early is not False
    assert early - got < 40_000, "the choice came when less than half was on its way"
    await shared.settled()


async def test_an_answer_streams_through_piece_by_piece(shared):
    """Nothing of it is gathered: the first piece is there while the endpoint still holds the second back."""
    body = _body(60_000)
    for each in shared.mirrors:
        each.gate.clear()
    async with shared.connection() as raw, asyncio.timeout(client.WAIT_S):
        await raw.head(content_length=len(body))
        await raw.send(body)
        await raw.reader.readuntil(b"\r\n\r\n")
        size = int(await raw.reader.readuntil(b"\r\n"), 16)
        assert await raw.reader.readexactly(size) == body[:size]
        state = (await shared.running.state())["pools"][0]
        assert state["open_leases"] == 1
        assert [e["pending_tokens"] for e in state["endpoints"]] == [0, 0, 0], "the prefill is over"
        for each in shared.mirrors:
            each.gate.set()
    await shared.settled()


async def test_clients_that_go_away_anywhere_leave_nothing(shared):
    body = _body(300_000)

    async def gone(number):
        async with shared.connection() as raw:
            await raw.head(content_length=len(body))
            if number % 3 == 0:  # within the upload
                await raw.send(body[: number * 5000])
            else:  # within the answer
                await raw.send(body)
                with contextlib.suppress(asyncio.IncompleteReadError):
                    await raw.reader.readexactly(1 + number * 4000)
            raw.abort()

    await asyncio.gather(*(gone(number) for number in range(30)))
    await shared.settled()
    assert _exact(await shared.send(body), body)


async def test_a_kvring_that_is_killed_costs_what_is_open_and_nothing_later(tmp_path):
    """X08: in full duplex whatever is under way is lost; once Envoy has noticed, requests bypass kvring."""
    body = _body(60_000)
    async with rig(tmp_path) as made:
        for each in made.mirrors:
            each.gate.clear()
        async with made.connection() as uploading, made.connection() as answering:
            await uploading.head(content_length=len(body))
            await uploading.send(body[:30_000])
            await answering.head(content_length=len(body))
            await answering.send(body)
            await answering.reader.readuntil(b"\r\n\r\n")
            await made.running.kill_kvring()
            for each in made.mirrors:
                each.gate.set()
            async with asyncio.timeout(client.WAIT_S):
                assert b" 500 " in await uploading.reader.readuntil(b"\r\n")
                with contextlib.suppress(OSError):
                    assert body not in await answering.reader.read(), "cut"
        await client.until(lambda: _unhealthy(made.envoy), "Envoy has noticed")
        for _ in range(5):
            assert _exact(await made.send(body), body)
        await made.running.start_kvring()

        async def asked():
            before = await made.running.metric("kvring_choices_total")
            assert _exact(await made.send(body), body)
            return await made.running.metric("kvring_choices_total") == before + 1

        await client.until(asked, "kvring is asked again")
        windows = "cluster_manager.(cluster_updated_via_merge|update_out_of_merge_window)"
        assert not any((await made.envoy.stats(windows)).values()), "workers hear of kvring's health at once"
        await made.settled()


async def _unhealthy(envoy):
    return not await _healthy(envoy)


async def test_a_kvring_that_hangs_holds_an_answer_up_and_loses_nothing_of_it(tmp_path):
    body = _body(200_000)
    async with rig(tmp_path) as made:
        for each in made.mirrors:
            each.gate.clear()
        async with made.connection() as raw, asyncio.timeout(client.WAIT_S):
            await raw.head(content_length=len(body))
            await raw.send(body)
            head = await raw.reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head
            made.running.pause_kvring()
            for each in made.mirrors:
                each.gate.set()
            await client.until(lambda: _unhealthy(made.envoy), "Envoy has noticed")
            for _ in range(5):  # bypassed, while the other hangs on
                assert _exact(await made.send(body), body)
            made.running.resume_kvring()
            came, trailers = await mirror._body(raw.reader, {"transfer-encoding": "chunked"}, lambda _: None)
            assert came == body
            assert trailers == {"x-digest": hashlib.sha256(body).hexdigest()}
        await client.until(lambda: _healthy(made.envoy), "Envoy has noticed")
        await made.settled()


async def test_the_fleet_of_simulated_replicas_serves_sse_in_full_duplex_both_ways(fleet):
    async with (
        fleet(body_mode=DUPLEX, response_body_mode=DUPLEX) as running,
        client.openai_client(running) as ai,
    ):
        for _ in range(2):
            stream = await ai.chat.completions.create(
                model=fleets.MODEL,
                messages=[{"role": "user", "content": "hello é😀 " * 200}],
                max_tokens=5,
                stream=True,
                stream_options={"include_usage": True},
            )
            events = [event async for event in stream]
        await account.settled(running)
        told = events[-1].usage
        assert await running.metric("kvring_answer_tokens_total", kind="prompt") == 2 * told.prompt_tokens
        assert await running.metric("kvring_answer_tokens_total", kind="output") == 2 * told.completion_tokens
        cached = await running.metric("kvring_answer_tokens_total", kind="cached")
        assert cached == told.prompt_tokens_details.cached_tokens > 0
        assert await running.metric("kvring_served_total", by="chosen") == 2
