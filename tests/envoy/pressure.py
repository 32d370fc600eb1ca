"""Pressure: clients that ask all the time, and requests that stay open, at kvring processes of a `Several`.

async with pressure.load(running) as load:         # fails if one answer is not good
    await load.more(20)
async with pressure.parked(running, 10):           # open at each process, answered at the end of the block
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Sequence

from tests.envoy import client, several

__all__ = ["Load", "load", "parked", "talk"]


def talk(number: int, turns: int = 1) -> str:
    """Text of conversation `number` at its turn; all begin with the same."""
    rng = random.Random(number)
    return "All of us begin like this. " * 40 + " ".join(
        f"word{rng.getrandbits(30)}" for _ in range(150 * turns)
    )


class Load:
    """`answers`: how many were good; `over`: set to end it."""

    def __init__(self) -> None:
        self.answers = 0
        self.over = False

    async def more(self, count: int = 20) -> None:
        """Return when so many more were answered."""
        wanted = self.answers + count

        async def answered() -> bool:
            return self.answers >= wanted

        await client.until(answered, f"{count} more answers")


@contextlib.asynccontextmanager
async def load(running: several.Several, clients: int = 4):
    """A Load on the door of all processes; at the end of the block it is over. It asks of some conversations
    at a time, now and then of another one.
    """
    made, rng = Load(), random.Random(0)

    async def ask() -> None:
        while not made.over:
            answer = await running.chat(talk(rng.randrange(12) + made.answers // 20))
            assert answer.status == 200, answer.body
            made.answers += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(ask())
        try:
            await made.more(4)
            yield made
        finally:
            made.over = True


@contextlib.asynccontextmanager
async def parked(running: several.Several, each: int, places: Sequence[int] = (0, 1, 2), tokens: int = 1000):
    """So many open requests at each of the places; their engines must be slow."""
    numbers = itertools.count()
    waiting = [
        asyncio.create_task(
            running.chat(f"parked {next(numbers)}", url=running.url_of(place), max_tokens=tokens)
        )
        for place in places
        for _ in range(each)
    ]

    async def all_in() -> bool:
        for one in running.kvrings:
            state = await running.state(one)
            own = state["pools"][0]["open_leases"] - state["sharing"]["peer_leases"]
            if one.place in places and own < each:
                return False
        return True

    try:
        await client.until(all_in, "all parked")
        yield
        for engine in running.engines:
            engine.pace(500.0)
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}
    finally:
        for one in waiting:
            one.cancel()
        for engine in running.engines:
            engine.pace(engine.settings.speed)
