"""Three kvring processes, one Envoy, a real Valkey: as one, and by themselves when the store is gone."""

import asyncio
import collections
import random

import pytest

from tests import valkey_server
from tests.envoy import client, several

ROUND = 24


async def send(running, texts, **fields):
    """All at once; their statuses."""
    answers = await asyncio.gather(*(running.chat(text, **fields) for text in texts))
    return [answer.status for answer in answers]


def talk(number: int, turns: int) -> str:
    rng = random.Random(number)
    return "All of us begin like this. " * 40 + " ".join(
        f"word{rng.getrandbits(30)}" for _ in range(150 * turns)
    )


async def hit_share(running) -> float:
    engines = [one.engine.tally for one in running.engines]
    return sum(one.hit_tokens for one in engines) / max(sum(one.query_tokens for one in engines), 1)


async def test_three_share_what_they_send_and_end_with_an_empty_ledger(tmp_path):
    async with (
        valkey_server.running(tmp_path) as store,
        several.several(tmp_path, store.url, engines=4) as running,
    ):
        served = collections.defaultdict(set)
        for turn in (1, 2, 3):
            for number in range(8):
                answer = await running.chat(talk(number, turn))
                assert answer.status == 200
                served[number].add(answer.served_by)
        # D06: Envoy spreads streams over all of them, and a conversation stays where it was all the same
        chosen = [await running.metric(one, "kvring_choices_total") for one in running.kvrings]
        assert sum(chosen) == 24
        assert all(chosen)
        assert sum(len(where) == 1 for where in served.values()) >= 7
        await running.settled()
        for state in await running.states():
            assert state["sharing"]["connected"]
            assert state["sharing"]["lost"]["unresolved"] == 0
        heard = [
            await running.metric(one, "kvring_sharing_heard_dispatches_total") for one in running.kvrings
        ]
        assert sum(heard) == 48  # each by both others


async def test_the_store_dies_and_comes_back_empty_under_load_and_no_client_notices(tmp_path):
    async with (
        valkey_server.running(tmp_path) as store,
        several.several(tmp_path, store.url, engines=4) as running,
    ):

        async def load(seconds_until):
            statuses = []
            while not seconds_until.is_set():
                statuses += await send(running, [talk(random.randrange(12), 1) for _ in range(6)])
            return statuses

        done = asyncio.Event()
        loading = asyncio.create_task(load(done))
        await store.kill()

        async def alone() -> bool:
            return all(
                not state["sharing"]["connected"] and state["sharing"]["peers"] == 0 and state["ready"]
                for state in await running.states()
            )

        await client.until(alone, "all by themselves, and ready")
        await store.start()
        await running.acquainted()
        done.set()
        statuses = await loading
        assert set(statuses) == {200}
        await running.settled()
        for state in await running.states():
            assert state["sharing"]["peer_leases"] == 0


async def test_a_killed_replica_s_leases_expire_and_a_new_one_is_warm_from_the_start(tmp_path):
    async with (
        valkey_server.running(tmp_path) as store,
        several.several(tmp_path, store.url, engines=4, speed=1.0) as running,
    ):
        for number in range(12):
            assert (await running.chat(talk(number, 1))).status == 200
        long = [asyncio.create_task(running.chat(talk(number, 1), max_tokens=400)) for number in range(12)]

        async def all_open() -> bool:
            return all(state["pools"][0]["open_leases"] == 12 for state in await running.states())

        await client.until(all_open, "twelve open for everybody")
        dead = running.kvrings[2]
        await running.end(dead, several.signal.SIGKILL)

        async def fewer() -> bool:
            leases = [state["pools"][0]["open_leases"] for state in await running.states()]
            return leases[0] == leases[1] < 12

        await client.until(fewer, "the dead one's leases gone")
        new = await running.start()
        state = await running.state(new)  # as it stands when it says that it is ready
        assert state["sharing"]["warm"]
        assert sum(one["residency_blocks"] for one in state["pools"][0]["endpoints"]) > 100
        for one in running.engines:
            one.pace(100.0)
        assert {answer.status for answer in await asyncio.gather(*long)} == {200}
        await running.settled()
        await running.end(new)


@pytest.mark.parametrize("parked", [60, pytest.param(300, marks=pytest.mark.heavy)])
async def test_a_hot_prefix_keeps_every_endpoint_under_the_bound_over_all_three(tmp_path, parked):
    """R03: with requests parked on one prefix, the bound holds for the sum of what all three sent."""
    pool = {"policy": "ring", "bound_factor": 2.0, "bound_floor_tokens": 512}
    async with (
        valkey_server.running(tmp_path) as store,
        several.several(tmp_path, store.url, speed=1.0, pool=pool) as running,
    ):
        waiting = []
        for _ in range(parked):
            waiting.append(asyncio.create_task(running.chat("hot prefix " * 400, max_tokens=2000)))
            await asyncio.sleep(0.02)

        def inside() -> list[int]:
            return [one.engine.running + one.engine.waiting for one in running.engines]

        async def all_in() -> bool:
            return sum(inside()) == parked

        await client.until(all_in, "all parked")
        mean = parked / len(running.engines)
        # a burst reaches three processes before they hear of each other: a few more each than the bound says
        assert max(inside()) <= 2.0 * mean + 4, inside()
        for one in running.engines:
            one.pace(2000.0)
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}
        await running.settled()
