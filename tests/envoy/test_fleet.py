"""Endpoints come, go, die, hang, restart, drain and join under load; two models, one with an adapter."""

import asyncio
import contextlib
import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from extproc import gateway
from extproc.sim import performance, replica
from tests import ports
from tests.envoy import account, client
from tests.envoy import fleet as fleets

SPEED = 20.0
SLOW_START_S = 2.0
USERS = 20
TURNS = 4
FIRST = [f"replica-{n}" for n in range(5)] + ["killed", "hung", "restarted"]
SPARE = ["new-0", "new-1"]


class Load:
    """Users who hold one conversation after the other; what came of each request."""

    def __init__(self, running: fleets.Fleet) -> None:
        self._running = running
        self._names: dict[str, str] = {}
        self.answers: list[tuple[str, int, int]] = []  # served by, prompt tokens, cached tokens
        self.failed: Counter[str] = Counter()
        self.done = False

    async def user(self, number: int) -> None:
        names = {each.address: each.name for each in self._running.endpoints}
        talk = 0
        while not self.done:
            talk += 1
            text = f"user {number} talks of matter {talk}. " * 80
            for turn in range(TURNS):
                if self.done:
                    return
                text += f"turn {turn}: and then what happened to {number * talk}? " * 4
                try:
                    answer = await self._running.chat(text, max_tokens=8)
                except (client.aiohttp.ClientError, TimeoutError) as error:
                    self.failed[type(error).__name__] += 1
                    continue
                if answer.status != 200:
                    self.failed[str(answer.status)] += 1
                    continue
                usage = json.loads(answer.body)["usage"]
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                self.answers.append((names[answer.served_by], usage["prompt_tokens"], cached))

    async def window(self, requests: int) -> tuple[Counter[str], float]:
        """Who served the next requests, and which share of their prompt tokens was cached."""
        start = len(self.answers)
        await client.until(self._reached(start + requests), f"{requests} more answers")
        seen = self.answers[start:]
        hit = sum(cached for *_, cached in seen) / sum(tokens for _, tokens, _ in seen)
        return Counter(name for name, *_ in seen), hit

    def _reached(self, count: int):
        async def reached() -> bool:
            return len(self.answers) >= count

        return reached


def words(port: int) -> list[str]:
    said = ["sim-replica", "--preset", fleets.PRESET, "--speed", str(SPEED), "--model", fleets.MODEL]
    return [*said, "--port", str(port)]


def list_endpoints(path: Path, running: fleets.Fleet, names: list[str], drained: str = "") -> None:
    """Write the file that kvring reads its endpoints from."""
    where = {each.name: each.address for each in running.endpoints}
    listed = [{"name": name, "address": where[name], "ready": name != drained} for name in names]
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"endpoints": listed}))
    new.replace(path)


async def ready(running: fleets.Fleet, names: list[str]) -> None:
    async def are() -> bool:
        return account.ready(await running.state()) == set(names)

    await client.until(are, f"ready are {names}")


@pytest.mark.timeout(180)
async def test_a_fleet_under_load_survives_all_that_happens_to_endpoints(fleet, tmp_path):
    path = tmp_path / "endpoints.json"
    path.write_text('{"endpoints": []}')
    pool = {
        "file": {"path": str(path), "poll_interval_s": 0.1},
        "health": {"interval_s": 0.2, "timeout_s": 1.0},
        "signals": {"interval_s": 0.2, "age_max_s": 2},
        "slow_start_s": SLOW_START_S,
        "alternates": 2,
    }
    model = performance.PRESETS[fleets.PRESET]
    async with contextlib.AsyncExitStack() as stack:
        children = {
            name: await stack.enter_async_context(gateway.command(words(ports.own()), name=name))
            for name in ("killed", "hung", "restarted")
        }
        others = {name: child.ready["replicas"][0] for name, child in children.items()}
        for name in SPARE:
            one = replica.Replica(model, replica.Settings(name, speed=SPEED))
            others[name] = (await stack.enter_async_context(one)).address
        running = await stack.enter_async_context(fleet(replicas=5, speed=SPEED, pool=pool, others=others))
        http = running.http
        running.http = await stack.enter_async_context(client.session())
        list_endpoints(path, running, FIRST)
        await ready(running, FIRST)
        load = Load(running)
        users = [asyncio.ensure_future(load.user(number)) for number in range(USERS)]

        shares, warm_hit = await load.window(250)
        assert set(shares) == set(FIRST)

        # one is killed: what was open there may fail, nothing else
        open_there = await dies(running, children["killed"])
        await ready(running, [name for name in FIRST if name != "killed"])
        await load.window(40)
        assert load.failed.total() <= open_there  # those chosen before it was known to be dead are retried
        failed_then = load.failed.total()

        # one hangs: excluded, and what is open there ends well when it goes on
        children["hung"].signal(signal.SIGSTOP)
        await ready(running, [name for name in FIRST if name not in ("killed", "hung")])
        shares, _ = await load.window(60)
        assert not shares["hung"]
        children["hung"].signal(signal.SIGCONT)

        # one restarts in place, with an empty cache
        assert load.failed.total() == failed_then
        port = int(others["restarted"].rpartition(":")[2])
        held = (await blocks(running))["restarted"]
        open_there = await dies(running, children["restarted"])
        again = gateway.command(words(port), name="restarted")
        await stack.enter_async_context(again)
        await client.until(lambda: restarted(running), "restart noticed")
        assert (await blocks(running))["restarted"] < held / 2  # and what came since

        # two join, two leave, one drains
        stay = [name for name in FIRST if name not in ("killed", "replica-0", "replica-1")] + SPARE
        assert load.failed.total() <= failed_then + open_there
        before = load.failed.total()
        list_endpoints(path, running, stay, drained="replica-2")
        last = [name for name in stay if name != "replica-2"]
        await ready(running, last)
        await asyncio.sleep(SLOW_START_S)
        await client.until(lambda: idle(running, "replica-2"), "drained")
        shares, hit = await load.window(300)
        assert load.failed.total() == before
        assert set(shares) == set(last)
        fair = shares.total() / len(last)
        assert max(shares.values()) < 2.2 * fair
        assert min(shares.values()) > 0.3 * fair
        assert hit > max(0.55, 0.9 * warm_hit)

        load.done = True
        await asyncio.gather(*users)
        running.http = http
        await client.until(lambda: all_over(running), "no lease left")
        assert await running.metric("kvring_endpoint_events_total", event="restarted") == 1


async def dies(running: fleets.Fleet, child: gateway.Child) -> int:
    """Kill an endpoint; how many requests were open there. Stopped first: so no answer begins uncounted."""
    child.signal(signal.SIGSTOP)
    open_there = (await inflight(running))[child.name]
    child.signal(signal.SIGKILL)
    await child.wait()
    return open_there


async def inflight(running: fleets.Fleet) -> dict[str, int]:
    return account.inflight(await running.state())


async def blocks(running: fleets.Fleet) -> dict[str, int]:
    return {each["name"]: each["residency_blocks"] for each in account.endpoints(await running.state())}


async def restarted(running: fleets.Fleet) -> bool:
    return await running.metric("kvring_endpoint_events_total", event="restarted") == 1


async def all_over(running: fleets.Fleet) -> bool:
    return not any(each["open_leases"] for each in (await running.state())["pools"])


async def idle(running: fleets.Fleet, name: str) -> bool:
    return (await inflight(running))[name] == 0


@pytest.mark.parametrize("requests", [240, pytest.param(10_000, marks=pytest.mark.heavy)])
async def test_two_models_and_an_adapter_on_half_of_one_land_where_they_are_served(fleet, requests):
    model = performance.PRESETS[fleets.PRESET]
    async with contextlib.AsyncExitStack() as stack:
        served: dict[str, tuple[str, ...]] = {}
        others: dict[str, str] = {}
        for number in range(6):
            name = "llama" if number < 4 else "coder"
            adapters = ("legal",) if number in (1, 3) else ()
            settings = replica.Settings(f"{name}-{number}", name, adapters, speed=SPEED)
            one = await stack.enter_async_context(replica.Replica(model, settings))
            others[settings.name], served[one.address] = one.address, (name, *adapters)
        common = {"health": {"interval_s": 0.2, "failures": 10}, "kv_tokens": model.kv_tokens}
        listed = [{"name": name, "address": address} for name, address in others.items()]
        pools = [
            {"name": "chat", "endpoints": listed[:4], **common},
            {"name": "code", "endpoints": listed[4:], "match": {"models": ["coder*"]}, **common},
        ]
        running = await stack.enter_async_context(fleet(replicas=0, others=others, settings={"pools": pools}))
        landed: Counter[tuple[str, str]] = Counter()

        async def ask(number: int) -> None:
            wanted = ("llama", "legal", "coder")[number % 3]
            answer = await running.chat(f"question {number % 40} " * 50, model=wanted)
            assert answer.status == 200
            assert wanted in served[answer.served_by]
            landed[wanted, answer.served_by] += 1

        for start in range(0, requests, 24):
            await asyncio.gather(*(ask(number) for number in range(start, min(start + 24, requests))))
        assert len([1 for wanted, _ in landed if wanted == "llama"]) == 4
        assert len([1 for wanted, _ in landed if wanted == "legal"]) == 2
        assert len([1 for wanted, _ in landed if wanted == "coder"]) == 2
        assert await running.metric("kvring_no_opinion_total") == 0
        await client.until(lambda: all_over(running), "no lease left")
        states = (await running.state())["pools"]
        adapters = {one["name"] for one in states[0]["endpoints"] if "legal" in one["models"]}
        assert adapters == {"llama-1", "llama-3"}
