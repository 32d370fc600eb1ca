"""`steering: hash` through a real Envoy: its ring_hash or maglev goes by what kvring sets, and bounds it."""

import asyncio
import io
from collections import Counter

import pytest

from extproc import bootstrap, gateway
from extproc.exchange import BodyMode
from tests.envoy import client, troublemaker
from tests.envoy import fleet as fleets

MODES = [BodyMode.BUFFERED_PARTIAL, BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED]
HASH = bootstrap.HASH
by_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)


def hashed(fleet, *, replicas=4, hash=bootstrap.Hash(), **more):  # noqa: A002, B008
    """A fleet whose kvring knows no endpoint."""
    pool = {"name": "big", "steering": "hash", "endpoint_count": replicas}
    return fleet(replicas=replicas, pool=pool, hash=hash, **more)


def talk(number, turns=1):
    """Messages of a conversation: what its first `turns` turns say, each of them long."""
    return [
        {"role": "user", "content": f"conversation {number}, turn {turn}: " + f"{number} and {turn} " * 150}
        for turn in range(turns)
    ]


async def served_by(running, number, turns=1, **fields):
    answer = await running.chat("", messages=talk(number, turns), **fields)
    assert answer.status == 200
    return answer.served_by


async def warm(running):
    """Traffic of which no single conversation is an endpoint's part: the anchor of each is its own start."""
    for number in range(100, 112):
        await served_by(running, number)


@by_mode
@pytest.mark.parametrize("algorithm", ["RING_HASH", "MAGLEV"])
async def test_a_conversation_stays_at_one_replica_and_conversations_spread(fleet, mode, algorithm):
    async with hashed(fleet, body_mode=mode, hash=bootstrap.Hash(algorithm)) as running:
        await warm(running)
        homes = {}
        for turns in (1, 2, 3, 4):
            for number in range(12):
                homes.setdefault(number, []).append(await served_by(running, number, turns))
        moved = [number for number, seen in homes.items() if len(set(seen)) > 1]
        assert moved == [], homes
        assert len({seen[-1] for seen in homes.values()}) >= 3
        answer = await running.chat("", messages=talk(3, 5))
        assert answer.cached_tokens > 1000  # the engine holds what the earlier turns said
        assert await running.metric("kvring_hashes_total", pool="big", source="anchor") == 61
        assert await running.metric("kvring_choices_total") == 0


async def test_equal_hashes_overflow_to_others_at_envoys_balance_factor(fleet):
    """16 open requests with one hash over 4 replicas, at most 150 % of the mean each, and one more."""
    async with hashed(fleet, hash=bootstrap.Hash(balance_percent=150)) as running:
        await warm(running)
        running.pace(0.01)
        asked = []
        for number in range(16):
            asked.append(asyncio.ensure_future(served_by(running, 1, max_tokens=200)))
            await client.until(lambda wanted=number + 1: _active(running, wanted), "it is at a replica")
        running.pace(1000)
        counts = Counter(await asyncio.gather(*asked))
        assert max(counts.values()) == 16 * 150 // 100 // 4 + 1
        assert len(counts) == 3


async def _checks(running):
    return sum((await running.envoy.stats("cluster.llm.health_check.success")).values())


async def _active(running, wanted):
    stats = await running.envoy.stats("cluster.llm.upstream_rq_active")
    return sum(stats.values()) >= wanted


@by_mode
@pytest.mark.parametrize("why", ["no prompt", "no kvring"])
async def test_without_a_hash_replicas_are_drawn_and_a_clients_own_hash_steers_nobody(fleet, mode, why):
    async with hashed(fleet, body_mode=mode, kvring=why != "no kvring") as running:
        seen = Counter()
        for _ in range(40):
            url, headers = f"{running.url}/v1/models", {HASH: "00000000000000aa"}
            async with running.http.get(url, headers=headers) as answer:
                assert answer.status == 200
                seen[answer.headers["x-kvring-endpoint"]] += 1
        assert len(seen) == 4
        if why == "no kvring":
            return
        await warm(running)
        homes = {
            (await running.chat("", messages=talk(1), headers={HASH: f"{number:016x}"})).served_by
            for number in range(8)
        }
        assert len(homes) == 1  # kvring's own is set over a client's


async def test_kvring_killed_leaves_requests_to_envoy_and_back_again_they_go_home(fleet):
    async with hashed(fleet, message_timeout_s=fleets.SHIPPED_S) as running:
        await warm(running)
        before = [await served_by(running, number) for number in range(8)]
        await running.kill_kvring()
        for _ in range(3):
            for number in range(8):
                await served_by(running, number)
        await running.start_kvring()

        async def steered():
            await served_by(running, 0)
            return await running.metric("kvring_hashes_total", source="anchor") >= 1

        await client.until(steered, "kvring is asked again")
        await warm(running)  # it starts without counts of traffic
        assert [await served_by(running, number) for number in range(8)] == before


async def test_a_replica_that_fails_loses_its_keys_to_others_and_no_request_is_lost(fleet):
    async with troublemaker.troublemaker() as trouble:
        trouble.kinds = ["503"]
        async with hashed(fleet, replicas=2, others={"trouble": trouble.address}) as running:
            for number in range(24):
                await served_by(running, number)  # retried elsewhere
            assert trouble.calls["503"] >= 3

            async def is_out():
                stats = await running.envoy.stats("cluster.llm.outlier_detection.ejections_active")
                return sum(stats.values()) == 1

            await client.until(is_out, "it is ejected")
            seen = await _checks(running)

            async def is_checked():
                return await _checks(running) >= seen + 4

            await client.until(is_checked, "each of the three is found well once more")
            assert await is_out()  # its health check is good all the time
            calls = trouble.calls["503"]
            for number in range(12):
                await served_by(running, number)
            assert trouble.calls["503"] == calls


@pytest.mark.parametrize("mode", [MODES[0], MODES[2]], ids=lambda mode: mode.name)
async def test_while_an_answer_streams_kvring_has_nothing_open(fleet, mode):
    async with hashed(fleet, body_mode=mode, speed=0.02) as running:
        body = client.chat_body("word " * 400, stream=True, max_tokens=50)
        url = f"{running.url}/v1/chat/completions"
        asked = asyncio.ensure_future(running.http.post(url, data=io.BytesIO(body)))

        async def is_over():
            ended = await running.metric("kvring_streams_total")
            return ended == 1 and await running.metric("kvring_streams_open") == 0

        await client.until(is_over, "the stream has ended")
        assert await _active(running, 1)
        running.pace(1000)
        answer = await asked
        text = await answer.read()
        assert answer.status == 200
        assert answer.headers["x-sim-body-sha256"] == client.sha256(body)
        assert text.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("mode", [MODES[0], MODES[2]], ids=lambda mode: mode.name)
@pytest.mark.parametrize("size", [2_000, 400_000, 3_000_000])
async def test_bodies_arrive_unchanged_and_long_ones_are_hashed_too(fleet, mode, size):
    async with hashed(fleet, replicas=2, body_mode=mode) as running:
        await warm(running)
        body = client.chat_body("word " * 300, user="x" * (size - 1500), tool_choice="auto")
        url = f"{running.url}/v1/chat/completions"
        served = set()
        for _ in range(4):
            async with running.http.post(url, data=io.BytesIO(body)) as answer:
                await answer.read()
                assert answer.status == 200
                assert answer.headers["x-sim-body-sha256"] == client.sha256(body)
                served.add(answer.headers["x-kvring-endpoint"])
        assert len(served) == 1
        assert await running.metric("kvring_hashes_total", source="anchor") == 16


async def test_a_route_that_removes_the_header_hashes_by_nothing(fleet):
    """Why `kvring check --envoy` calls it an error."""
    async with hashed(fleet) as running:
        steering = bootstrap.Steering([bootstrap.Sidecar("127.0.0.1:1")], hash=bootstrap.Hash())
        door = bootstrap.Listener("127.0.0.1:0", running.endpoints, steering=steering, expose_endpoint=True)
        for removes in (False, True):
            config = bootstrap.build([door], admin="127.0.0.1:0")
            chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
            manager = chain["filters"][0]["typed_config"]
            del manager["early_header_mutation_extensions"]  # the client sends the hash here
            if removes:
                route = manager["route_config"]["virtual_hosts"][0]["routes"][0]
                route["request_headers_to_remove"] = [HASH]
            async with gateway.envoy(config) as envoy:
                seen = set()
                for _ in range(30):
                    headers = {HASH: "00000000000000aa"}
                    async with running.http.get(f"{envoy.url()}/v1/models", headers=headers) as answer:
                        assert answer.status == 200
                        seen.add(answer.headers["x-kvring-endpoint"])
            assert len(seen) == (4 if removes else 1)
