"""Endpoints that die, hang or come back: kvring must know, for Envoy goes where it is told."""

import asyncio
from collections import Counter

import pytest

from tests.envoy import account, client, troublemaker

KEYS = [f"user {number} has a question of his own, about {number * 7}. " * 30 for number in range(40)]


async def _homes(running):
    names = {each.address: each.name for each in running.endpoints}
    found = {}
    for key in KEYS:
        answer = await running.chat(key)
        assert answer.status == 200
        found[key] = names[answer.served_by]
    return found


async def _ready(running, names):
    return account.ready(await running.state()) == set(names)


async def test_a_dead_replica_is_named_no_more_its_keys_scatter_and_return_with_it(fleet):
    """M02, M07."""
    async with fleet(replicas=5, policy="ring") as running:
        everybody = {each.name for each in running.endpoints}
        before = await _homes(running)
        dead = running.endpoints[2]

        await running.stop_replica(2)
        await client.until(lambda: _ready(running, everybody - {dead.name}), "dead one excluded")
        retries = await account.retries(running)
        during = await _homes(running)  # all 200
        assert await account.retries(running) == retries  # not even tried
        moved = {key for key in KEYS if during[key] != before[key]}
        assert moved == {key for key in KEYS if before[key] == dead.name}
        assert len({during[key] for key in moved}) > 1

        await running.start_replica(2)
        await client.until(lambda: _ready(running, everybody), "back")
        assert await _homes(running) == before


async def test_a_dead_replica_that_kvring_does_not_know_of_is_tried_each_time(fleet):
    """So the test above can fail: Envoy goes where it is told."""
    # by neither of the two ways in which it notices: health checks, and reading metrics once a second
    blind = {"health": {"interval_s": 300}, "signals": {"interval_s": 0}}
    known = True
    for _ in range(5):  # the second check comes whenever chance has it within the interval: seldom just now
        async with fleet(replicas=5, policy="ring", pool=blind) as running:
            dead = running.endpoints[2].name
            before = await _homes(running)
            await running.stop_replica(2)
            await _homes(running)  # retried elsewhere, hence still all 200
            known = dead not in account.ready(await running.state())
            if not known:
                assert await account.retries(running) >= list(before.values()).count(dead) > 0
                break
    assert not known


async def test_a_replica_that_dies_under_load_costs_at_most_the_answers_in_flight(fleet):
    async with fleet(replicas=4, speed=4) as running, client.session() as http:
        running.http, own = http, running.http
        outcomes, done = Counter(), asyncio.Event()
        cut, turns = set(), Counter()  # whose answers broke off, and how many each has begun

        async def load(name):
            while not done.is_set():
                turns[name] += 1
                turn = turns[name]
                try:
                    answer = await running.chat(
                        f"{name} asks " * 100 + str(turn), max_tokens=20, stream=turn % 2 == 0
                    )
                    outcomes[answer.status] += 1
                except client.aiohttp.ClientPayloadError:  # its answer had begun
                    cut.add((name, turn))

        async def a_turn_each():
            before = turns.copy()

            async def begun():
                return all(turns[name] > before[name] for name in before)

            await client.until(begun, "everybody's next request")

        loads = [asyncio.ensure_future(load(f"user {number}")) for number in range(16)]
        await client.until(lambda: _each_busy(running), "all busy")
        open_there = account.really_inflight(running)["replica-0"]
        await running.stop_replica(0)
        await client.until(lambda: _ready(running, {f"replica-{n}" for n in (1, 2, 3)}), "excluded")
        await a_turn_each()  # so what was chosen before that is over
        cut_before = len(cut)
        await a_turn_each()
        done.set()
        await asyncio.gather(*loads)
        running.http = own
        assert set(outcomes) == {200}
        assert cut_before <= open_there + 16
        assert len(cut) == cut_before
        await account.settled(running)


async def _each_busy(running):
    return all(account.really_inflight(running).values())


@pytest.mark.parametrize("sickness", ["hang", "503"])
async def test_an_endpoint_whose_health_check_hangs_or_fails_is_excluded_and_comes_back(fleet, sickness):
    async with troublemaker.troublemaker() as trouble:
        trouble.kinds = ["ok"]
        options = {
            "others": {"trouble": trouble.address},
            "pool": {"health": {"interval_s": 0.1, "timeout_s": 0.8}},
        }
        async with fleet(replicas=2, policy="ring", **options) as running:
            everybody = {each.name for each in running.endpoints}
            await _homes(running)
            assert trouble.calls["ok"] > 0
            trouble.health = sickness
            await client.until(lambda: _ready(running, everybody - {"trouble"}), "excluded")
            calls = trouble.calls["ok"]
            await _homes(running)
            assert trouble.calls["ok"] == calls
            assert await running.metric("kvring_endpoint_ready", endpoint="trouble") == 0
            trouble.health = "ok"
            await client.until(lambda: _ready(running, everybody), "back")
            await _homes(running)
            assert trouble.calls["ok"] > calls


async def test_with_every_replica_down_kvring_has_no_opinion_and_recovers(fleet):
    async with fleet(replicas=2) as running:
        for number in (0, 1):
            await running.stop_replica(number)
        await client.until(lambda: _ready(running, set()), "nobody ready")
        assert (await running.chat("hello")).status == 503  # Envoy's own, nobody listens
        assert await running.metric("kvring_no_opinion_total", reason="no_endpoint") == 1
        assert await running.metric("kvring_endpoint_ready") == 0
        state = await running.state()
        assert state["ready"]  # kvring itself is well, and says so to Envoy
        for number in (0, 1):
            await running.start_replica(number)
        await client.until(lambda: _ready(running, {"replica-0", "replica-1"}), "back")
        assert (await running.chat("hello")).status == 200
        await account.settled(running)
