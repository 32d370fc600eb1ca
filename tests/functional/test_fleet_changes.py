"""Members that change, come back and go again and again, with requests open: nothing of the old is left."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from pathlib import Path

import pytest

from extproc import choice, exchange, groups, pool, protocol, router
from tests.functional import engines
from tests.functional.conftest import PATH, chat, eventually

E0 = pool.EndpointId("e0")


async def test_who_takes_over_a_name_takes_over_nothing_else() -> None:
    made = engines.several(2) | {"heir": engines.Engine(metrics_status=404, health=503)}
    async with engines.running(made, slow_start_s=60, policy="round_robin") as running:
        others = running.member("e1")
        running.script.list(running.member("e0"), others)
        await running.becomes("e0", "e1")
        opened = [running.choose(text) for text in engines.prompts(20)]
        made["e0"].asleep = True
        await running.becomes("e1")
        running.script.list(heir := pool.Endpoint(E0, made["heir"].address), others)
        await eventually(lambda: heir.address in {one.address for one in running.router.pool.endpoints})
        load = running.router.ledger.load(E0, time.monotonic())
        assert (load.inflight, load.pending) == (0, 0)
        assert running.router.sent.to(E0).requests == 0
        made["heir"].health = 200
        await running.becomes("e0", "e1")
        assert running.against("e0") == set()
        assert running.router.ramp.share(E0, time.monotonic()) < 0.15  # from when it could work
        for decided in opened:
            assert isinstance(decided, choice.Decision)
            decided.lease.release()
            running.fleet.answered(decided.choice.endpoint, good=decided.choice.endpoint.id != E0)
        assert running.ready() == {"e0", "e1"}  # what the old one failed at is not its fault
        assert running.router.ledger.load(E0, time.monotonic()).inflight == 0
        assert running.router.ledger.open_leases == 0


async def test_a_fault_of_our_own_in_watching_is_counted_and_the_watching_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with engines.running(engines.several(2)) as running:

        def faults(task: str) -> float:
            return running.metrics.registry.get_sample_value("kvring_task_faults_total", {"task": task}) or 0

        def broken() -> float:
            raise RuntimeError("no time")

        right, running.fleet.clock = running.fleet.clock, broken
        await eventually(lambda: faults("probe") >= 2 and faults("scrape") >= 2)
        running.fleet.clock = right
        assert running.ready() == {"e0", "e1"}
        running.script.faults.append(RuntimeError("once"))
        running.script.list(running.member("e0"))
        await eventually(lambda: len(running.router.pool.endpoints) == 1)
        assert faults("source") == 1
        await running.engines["e0"].stop()
        await running.becomes()
        await running.engines["e0"].start()
        await running.becomes("e0")
        await running.engines["e0"].scraped()
        assert {record.getMessage() for record in caplog.records if record.exc_info} == {
            "fault in a task; it begins again"
        }


async def test_an_endpoint_whose_models_are_no_longer_listed_is_asked_for_them() -> None:
    async with engines.running(engines.several(1, models=["base", "more"])) as running:
        running.script.list(running.member("e0", models=frozenset({"listed"})))
        await eventually(lambda: running.router.pool.models == {"listed"})
        running.send("x" * 1000, "listed")
        running.script.list(running.member("e0"))
        while running.router.pool.models != {"base", "more"}:
            assert running.ready() == {"e0"}  # it is not new, and serves all the time
            await asyncio.sleep(0)
        assert running.router.residency.blocks(E0) > 0


async def test_endpoints_that_come_and_go_a_thousand_times_leave_nothing_behind() -> None:
    made = engines.several(3) | {"slow": engines.Engine(delay_s=30.0)}  # is always being asked when it goes
    async with engines.running(made, random.Random(1).random, ring_points=4) as running:
        stays = running.member("e0")

        def left() -> tuple[int, int, int]:
            """Tasks, open files and series."""
            lines = running.metrics.exposition().decode().splitlines()
            return len(asyncio.all_tasks()), len([*Path("/proc/self/fd").iterdir()]), len(lines)

        def objects() -> int:
            gc.collect()
            return sum(str(type(one).__module__).startswith("extproc") for one in gc.get_objects())

        running.script.list(stays)
        await eventually(lambda: left()[0] <= 12)
        await made["e0"].scraped()
        objects_before, before = objects(), left()
        rng = random.Random(2)
        for turn in range(1000):
            passing = [running.member(name) for name in ("e1", "e2", "slow") if rng.random() < 0.7]
            once = pool.Endpoint(pool.EndpointId(f"once-{turn}"), f"127.0.0.1:{1 + turn % 3}")
            running.script.list(stays, *passing, once)
            for _ in range(rng.choice([1, 1, 2, 3, 20])):
                await asyncio.sleep(0)
            decided = running.choose("x" * 500)
            assert isinstance(decided, choice.Decision)
            decided.lease.release()
        assert len(running.router.pool.endpoints) > 1
        assert made["e1"].scrapes > 0
        running.script.list(stays)
        await eventually(lambda: all(now <= then for now, then in zip(left(), before, strict=True)))
        running.router.residency.forget(stays.id)  # what it was sent, and the answers
        assert objects() < objects_before + 20  # of a thousand


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_to_the_pool_each_endpoint_counts_what_is_open_there(seed: int) -> None:
    """Pools are swapped, endpoints leave and rejoin, names change hands with requests open: L03, M04."""
    rng = random.Random(seed)
    names = [pool.EndpointId(f"e{number}") for number in range(6)]
    chooser = router.Router(pool.make("p", ()), router.Settings(policy=rng.choice(["cost", "ring"])))
    made = groups.alone(chooser)
    open_: list[exchange.Exchange] = []
    there: dict[pool.EndpointId, list[exchange.Exchange]] = {name: [] for name in names}
    now = 0.0
    for step in range(300):
        now += rng.random() * 0.01
        match rng.randrange(8):
            case 0:
                members = [
                    pool.Endpoint(name, f"10.0.0.{rng.randrange(200)}:80", ready=rng.random() < 0.8)
                    for name in names
                    if rng.random() < 0.7
                ]
                chooser.publish(pool.make("p", members, step + 2))
                for name in set(names) - {one.id for one in members}:
                    there[name] = []
            case 1:
                name = rng.choice(names)
                chooser.replace(name, now)
                there[name] = []
            case 2:
                chooser.restart(rng.choice(names), now)
            case 3 | 4 if open_:
                over = open_.pop(rng.randrange(len(open_)))
                for _ in range(rng.randrange(1, 3)):
                    over.close()
                for mine in there.values():
                    mine[:] = [one for one in mine if one is not over]
            case 5 if open_:
                answer = protocol.ResponseBody(b"data: {}", end_of_stream=False)
                rng.choice(open_).receive(answer, now, 0.5)
            case _:
                one = exchange.Exchange(made, exchange.Settings())
                mode = protocol.BodyMode.BUFFERED
                headers = protocol.RequestHeaders(PATH, end_of_stream=False, body_mode=mode)
                one.receive(headers, now, rng.random())
                body = protocol.RequestBody(chat("word " * rng.randrange(2000)), end_of_stream=True)
                one.receive(body, now, rng.random())
                open_.append(one)
                if isinstance(one.result, choice.Choice):
                    assert one.result.endpoint in chooser.pool.ready
                    there[one.result.endpoint.id].append(one)
        loads = {name: chooser.ledger.load(name, now) for name in names}
        assert {name: load.inflight for name, load in loads.items()} == {
            name: len(mine) for name, mine in there.items()
        }
        assert min(min(load.pending, load.kv_tokens) for load in loads.values()) >= 0
    for one in open_:
        one.close()
    assert chooser.ledger.open_leases == 0
    assert not any(chooser.ledger.load(name, now).work for name in names)
