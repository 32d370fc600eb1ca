"""What befalls a store, or a replica, while clients ask: none of them notices, and all agree again."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests import valkey_server, valve
from tests.envoy import client, pressure, several

EACH = 4  # parked at each process, so that the count of open leases tells who hears whom
# room for all that is asked, so that every one's view of it is the same; slow, so that answers take a while
ENGINES = {"preset": "8b-h100", "speed": 0.4}
TALKS = [pressure.talk(number) for number in range(20)]
AGREED_S = 15.0  # docs/high-availability.md says 3 s; a busy machine may take longer


class Stage:
    """Three processes, the last one behind a valve, at one store."""

    def __init__(self, running: several.Several, store: valkey_server.Server, between: valve.Valve) -> None:
        self.running, self.store, self.between = running, store, between

    async def alone(self, *places: int) -> None:
        """Return when these processes are not connected and hear nobody, and are ready all the same."""

        async def so() -> bool:
            states = [await self.running.state(self.running.kvrings[place]) for place in places]
            return all(
                not state["sharing"]["connected"] and state["sharing"]["peers"] == 0 and state["ready"]
                for state in states
            )

        await client.until(so, f"{places} by themselves")

    @contextlib.asynccontextmanager
    async def fault(self, name: str):
        """Load, and open requests, while the block breaks and mends something; then all is as before."""
        running = self.running
        async with pressure.parked(running, EACH):
            async with pressure.load(running) as load:
                await running.whole(2 * EACH)
                yield load
                took_s = await running.whole(2 * EACH)
                print(f"{name}: {took_s:.2f} s until all heard all")  # noqa: T201
                assert took_s < AGREED_S
                await load.more()
            await running.counted(3 * EACH)
        await running.settled()
        await running.alike(TALKS)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stage")
    async with (
        valkey_server.running(directory) as store,
        valve.valve(store.socket) as between,
        several.several(directory, [store.url, store.url, between.url], engines=4, **ENGINES) as running,
    ):
        yield Stage(running, store, between)


async def test_store_dies_and_comes_back_empty(stage):
    async with stage.fault("store restarted empty") as load:
        await stage.store.kill()
        await stage.alone(0, 1, 2)
        await load.more()
        await stage.store.start()


async def test_store_hangs_for_five_seconds(stage):
    async with stage.fault("store paused") as load:
        stage.store.pause()
        try:
            await asyncio.sleep(5)  # the case itself
            await stage.alone(0, 1, 2)
            await load.more()
        finally:
            stage.store.resume()


async def test_a_replica_is_cut_off_from_the_store(stage):
    async with stage.fault("replica cut off") as load:
        stage.between.shut()
        try:
            await stage.alone(2)
            await load.more()

            async def together() -> bool:
                """The two others are; they may have heard the third a little later than it heard them."""
                shared = [state["sharing"] for state in (await stage.running.states())[:2]]
                assert all(one["connected"] for one in shared)
                assert all(one["peers"] >= 1 for one in shared)
                return all(one["peers"] == 1 for one in shared)

            await client.until(together, "two that go on together", AGREED_S)
            stage.between.cut()
            tries = stage.between.connections

            async def tried() -> bool:
                return stage.between.connections > tries

            await client.until(tried, "another try")
        finally:
            stage.between.open()


async def test_the_way_of_a_replica_to_the_store_is_long(stage):
    clock = asyncio.get_running_loop().time
    stage.between.delay_s = 0.3  # each way
    try:
        async with stage.fault("replica far away") as load:
            connects = stage.between.connections
            await load.more(100)
            assert stage.between.connections == connects  # slow is not dead
            ended_s = clock()
        took_s = clock() - ended_s
        print(f"replica far away: {took_s:.2f} s until all agreed")  # noqa: T201
        assert took_s < AGREED_S  # news does not pile up
    finally:
        stage.between.delay_s = 0.0


@pytest.mark.heavy
async def test_a_replica_hangs_for_five_seconds(stage):
    running = stage.running
    async with pressure.parked(running, EACH):
        async with pressure.load(running) as load:
            running.kvrings[2].child.signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(5)  # the case itself
                for one in running.kvrings[:2]:
                    assert (await running.state(one))["sharing"]["peers"] == 1
                await load.more()  # those it had in hand wait for it, or for Envoy's patience
            finally:
                running.kvrings[2].child.signal(signal.SIGCONT)
            print(f"replica hung: {await running.whole(2 * EACH):.2f} s until all heard all")  # noqa: T201
            await load.more()
        await running.counted(3 * EACH)
    await running.settled()
    await running.alike(TALKS)


async def test_a_replica_with_a_hundred_leases_is_killed_and_a_new_one_is_warm(stage):
    running, clock = stage.running, asyncio.get_running_loop().time
    async with pressure.parked(running, 100, places=[2], tokens=200):
        await running.counted(100)
        async with pressure.load(running) as load:
            await load.more()
            await running.end(running.kvrings[2], signal.SIGKILL)
            died_s = clock()

            async def expired() -> bool:
                states = await running.states()
                return all(state["sharing"]["peer_leases"] < 50 for state in states)

            await client.until(expired, "the dead one's leases gone")
            took_s = clock() - died_s
            print(f"killed: {took_s:.2f} s until its leases were gone")  # noqa: T201
            assert 1 < took_s < AGREED_S
            await load.more()
            new = await running.start(at=2)
            state = await running.state(new)  # as it stands when it says that it is ready
            assert state["sharing"]["warm"]
            assert state["sharing"]["peers"] == 2
        await running.counted(0)  # what it had is still answered, and nobody's

    async def served() -> bool:
        answer = await running.chat("hello", url=running.url_of(2))
        assert answer.status == 200
        return await running.metric(new, "kvring_choices_total") > 0

    await client.until(served, "Envoy asks the new one")
    for number in range(12):
        answer = await running.chat(pressure.talk(number), url=running.url_of(2))
        usage = json.loads(answer.body)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"]
    await running.settled()
    await running.alike(TALKS)


def workers(parent: int) -> dict[int, int]:
    """Process ids of the workers of a `kvring serve --workers`, by number."""
    found = {}
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"--worker" in words:
            found[int(words[words.index(b"--worker") + 1])] = int(pid)
    return found


async def test_a_worker_dies_the_others_are_right_and_the_next_one_is_warm(tmp_path):
    async with several.several(tmp_path, None, workers=3, engines=4, **ENGINES) as running:
        parent = running.kvrings[0].child.pid
        async with pressure.parked(running, EACH):
            await running.counted(3 * EACH)
            async with pressure.load(running) as load:
                await load.more()
                before, dead = workers(parent), running.kvrings[1]
                os.kill(before[1], signal.SIGKILL)

                async def again() -> bool:
                    if workers(parent).get(1, before[1]) == before[1]:
                        return False
                    with contextlib.suppress(aiohttp.ClientError):
                        return (await running.state(dead))["ready"]
                    return False

                await client.until(again, "another worker in its place")
                state = await running.state(dead)
                assert state["sharing"]["warm"]
                assert sum(one["residency_blocks"] for one in state["pools"][0]["endpoints"]) > 100
                await running.acquainted()
                await load.more()
            await running.counted(2 * EACH)
        await running.settled()
        await running.alike(TALKS)
