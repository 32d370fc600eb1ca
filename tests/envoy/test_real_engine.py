"""Two real vLLM processes on the CPU behind Envoy and kvring: `make test-engine`, minutes, 6 GB of memory.

`KVRING_ENGINE` names a folder with `serve.sh NAME PORT`, `wait_ready.sh NAME PORT SECONDS` and `stop.sh NAME`
that run a small model called `tiny`; by default the folder `engine` in `$KVRING_DATA`, as its install.sh
leaves it. What counts is what the engines say of themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from tests import ports
from tests.envoy import account, client
from tests.envoy import fleet as fleets

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

_DATA = os.environ.get("KVRING_DATA")
ENGINE = Path(os.environ.get("KVRING_ENGINE") or (Path(_DATA) / "engine" if _DATA else "no-engine"))
READY_S = 600

BLOCK_TOKENS = 32
BLOCKS = 384  # of one engine: room for four of the six conversations
SETUP = {"EVENTS": "off", "BLOCKS": str(BLOCKS), "BLOCK": str(BLOCK_TOKENS), "MAX_LEN": "8192"}
CONVERSATIONS, TURNS = 6, 4
SYSTEM_WORDS, TURN_WORDS = 2400, 60
WORDS = "river stone cloud table engine window garden metal signal copper yellow winter".split()  # noqa: SIM905


async def _run(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(*words, cwd=ENGINE, env=os.environ | SETUP)
    assert await process.wait() == 0, words


async def _start(name: str, port: int) -> None:
    await _run("./serve.sh", name, str(port))
    await _run("./wait_ready.sh", name, str(port), str(READY_S))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engines() -> AsyncIterator[dict[str, int]]:
    """Name and port of two running engines."""
    if not (ENGINE / "venv/bin/vllm").exists():
        pytest.skip(f"no engine in {ENGINE}: set KVRING_ENGINE to where its install.sh was run")
    found = {name: ports.own() for name in ("kvring-a", "kvring-b")}
    try:
        for name, port in found.items():
            await _start(name, port)
        yield found
    finally:
        for name in found:
            with contextlib.suppress(AssertionError):
                await _run("./stop.sh", name)


@pytest.fixture
def gateway(fleet, engines):
    """`async with gateway() as running`: Envoy and kvring in front of the engines; who tell all they can."""
    pool = {"signals": {"interval_s": 0.5}, "slow_start_s": 1, "health": {"interval_s": 1, "timeout_s": 5}}
    told = {"kv_tokens": None, "prefill_tokens_per_s": None}
    others = {name: f"127.0.0.1:{port}" for name, port in engines.items()}
    return lambda: fleet(replicas=0, others=others, pool=pool | told)


async def _counters(running: fleets.Fleet) -> Counter[str]:
    """All counters of vLLM, of both engines together, without their labels."""
    found: Counter[str] = Counter()
    for address in running.addresses:
        text = await running.get(f"http://{address}/metrics")
        for name, value in re.findall(r"^vllm:(\w+_total)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
            found[name] += float(value)
    return found


async def _reset(running: fleets.Fleet, *addresses: str) -> None:
    for address in addresses:
        async with running.http.post(f"http://{address}/reset_prefix_cache") as answer:
            assert answer.status == 200


async def _endpoint(running: fleets.Fleet, name: str) -> dict:
    return next(each for each in account.endpoints(await running.state()) if each["name"] == name)


async def _told(running: fleets.Fleet) -> None:
    """Returns when kvring has heard all engines, as they are now."""
    now = time.time()

    async def heard() -> bool:
        signals = [each["signals"] for each in account.endpoints(await running.state())]
        return all(one is not None and one["age_s"] < time.time() - now for one in signals)

    await client.until(heard, "signals")


@dataclass
class Talks:
    """Conversations with long prompts that share nothing.

    All begin at once. Then their turns come one by one, each time in an order that is shifted by one, so that
    round robin over two engines sends the turns of a conversation to either in turn. (Six in the same order
    would stay where they are by chance of the number.)
    """

    running: fleets.Fleet
    url: str
    seed: int
    messages: dict[int, list[dict]] = field(default_factory=dict)
    served: dict[int, list[str]] = field(default_factory=dict)
    first_token_s: dict[int, list[float]] = field(default_factory=dict)  # by turn

    def words(self, count: int, *what: int) -> str:
        rng = random.Random(f"{self.seed} {what}")
        return " ".join(rng.choice(WORDS) for _ in range(count))

    async def turn(self, number: int, turn: int) -> None:
        messages = self.messages.setdefault(
            number, [{"role": "system", "content": self.words(SYSTEM_WORDS, number)}]
        )
        messages.append({"role": "user", "content": self.words(TURN_WORDS, number, turn)})
        started_s = time.perf_counter()
        answer = await self.running.chat(
            "", url=self.url, model="tiny", messages=messages, max_tokens=1, temperature=0
        )
        assert answer.status == 200, answer.body
        self.first_token_s.setdefault(turn, []).append(time.perf_counter() - started_s)
        self.served.setdefault(number, []).append(answer.served_by)
        messages.append({"role": "assistant", "content": self.words(20, number, turn, 1)})

    async def hold(self) -> float:
        """The share of prompt tokens that the engines found in their caches, by their own counters."""
        before = await _counters(self.running)
        await asyncio.gather(*(self.turn(number, 0) for number in range(CONVERSATIONS)))
        for turn in range(1, TURNS):
            for place in range(CONVERSATIONS):
                await self.turn((place + turn) % CONVERSATIONS, turn)
        spent = await _counters(self.running) - before
        hit = spent["prefix_cache_hits_total"] / spent["prefix_cache_queries_total"]
        first_s = statistics.median(self.first_token_s[0])
        later_s = statistics.median(s for turn, seen in self.first_token_s.items() for s in seen if turn)
        sys.stdout.write(
            f"{spent['prefix_cache_queries_total']:.0f} prompt tokens, hit {hit:.3f}, time to first token: "
            f"turn 1 {first_s:.2f} s, later {later_s:.2f} s; "
            f"moved {sum(len(set(where)) - 1 for where in self.served.values())}\n"
        )
        return hit


async def test_conversations_find_their_cache_again_where_round_robin_does_not(gateway):
    async with gateway() as running, client.session(300) as http:
        running.http = http
        await _told(running)
        for name in ("kvring-a", "kvring-b"):
            one = await _endpoint(running, name)
            assert one["signals"]["engine"] == "vllm"
            assert one["signals"]["kv_tokens"] == BLOCKS * BLOCK_TOKENS
            assert one["models"] == ["tiny"]

        ours = await Talks(running, running.url, seed=1).hold()
        await _told(running)
        for each in account.endpoints(await running.state()):
            signals, sent = each["signals"], each["sent"]
            predicted = sent["predicted_cached_tokens"] / sent["prompt_tokens"]
            true = signals["cached_tokens"] / signals["looked_up_tokens"]
            sys.stdout.write(
                f"{each['name']}: hit {predicted:.3f} as predicted, {true:.3f} by its counters\n"
            )
            assert predicted == pytest.approx(true, abs=0.1)
        await _reset(running, *running.addresses)
        theirs = await Talks(running, running.plain_url, seed=2).hold()
        assert ours >= 0.7
        assert theirs < 0.3


async def test_a_reset_and_a_restart_are_seen_and_what_was_held_is_dropped(gateway, engines):
    async with gateway() as running, client.session(300) as http:
        running.http = http
        await _told(running)
        talks = Talks(running, running.url, seed=3)
        for turn in range(2):
            for number in range(CONVERSATIONS):
                await talks.turn(number, turn)
        name, port = next(iter(engines.items()))
        address = f"127.0.0.1:{port}"
        mine = [number for number, where in talks.served.items() if set(where) == {address}]
        assert mine
        assert (await _endpoint(running, name))["residency_blocks"] > 0

        # a reset without a restart is seen in the hits
        await _told(running)
        for turn in range(2, 8):
            await _reset(running, address)
            for number in mine:
                await talks.turn(number, turn)  # finds nothing
            if await running.metric("kvring_endpoint_events_total", event="cache_lost"):
                break
        assert await running.metric("kvring_endpoint_events_total", event="cache_lost") >= 1

        # a restart in place
        (other,) = engines.keys() - {name}
        held = (await _endpoint(running, other))["residency_blocks"]
        await _run("./stop.sh", name)
        await _start(name, port)

        async def restarted() -> bool:
            return await running.metric("kvring_endpoint_events_total", event="restarted") == 1

        await client.until(restarted, "restart seen", timeout_s=60)
        assert (await _endpoint(running, name))["residency_blocks"] == 0
        assert (await _endpoint(running, other))["residency_blocks"] == held
