"""When the loop of a replica tells what happened: at once, when enough has gathered, or at the next look."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from extproc import outbox, pool, router
from extproc.news import message, view
from extproc.share import link, sharing
from tests.functional.conftest import eventually

A = pool.EndpointId("a")
PACE = view.Settings(look_s=2.0, beat_s=60.0)


class Way:
    """A link that keeps what is sent, with the time it was sent at [s]. Law: as in `link.Link`."""

    def __init__(self) -> None:
        self.state = link.State("test", connected=True, carries=True)
        self.sent: list[tuple[float, message.Batch]] = []

    async def run(self, heard: link.Heard, joined: Callable[[], None]) -> None:  # noqa: ARG002
        joined()
        await asyncio.Event().wait()

    def send(self, data: bytes) -> None:
        batch = message.decode(data)
        assert isinstance(batch, message.Batch)
        self.sent.append((asyncio.get_running_loop().time(), batch))

    async def close(self) -> None:
        """Nothing waits."""


class Replica:
    def __init__(self) -> None:
        self._entries = outbox.Outbox()
        members = pool.make("p", [pool.Endpoint(A, "10.0.0.1:1")])
        chooser = router.Router(members, router.Settings(), self._entries)
        self.way = Way()
        self.sharing = sharing.Sharing(
            view.View(1, {"p": chooser}, self._entries, PACE),
            self._entries,
            self.way,
            asyncio.get_running_loop().time,
        )

    def dispatch(self, uncached_tokens: int) -> None:
        number = self._entries.next_number()
        self._entries.began(outbox.Began(number, "p", A, uncached_tokens=uncached_tokens))
        self.sharing.poke()

    async def told(self, dispatches: int) -> list[float]:
        """Times of messages from the first dispatch on, once so many dispatches have been told."""

        def telling() -> list[tuple[float, int]]:
            return [(at_s, len(batch.began)) for at_s, batch in self.way.sent if batch.began]

        await eventually(lambda: sum(count for _, count in telling()) == dispatches, 20)
        return [at_s for at_s, _ in telling()]


@contextlib.asynccontextmanager
async def silent_replica() -> AsyncIterator[Replica]:
    """That has said nothing for longer than a look."""
    replica = Replica()
    running = asyncio.create_task(replica.sharing.run())
    await eventually(lambda: replica.way.sent, 5)
    await asyncio.sleep(1.5 * PACE.look_s)
    yield replica
    running.cancel()


async def test_a_dispatch_after_a_silence_is_told_at_once_and_a_light_one_behind_it_at_the_next_look() -> (
    None
):
    async with silent_replica() as replica:
        began_s = asyncio.get_running_loop().time()
        replica.dispatch(10)
        first_s = (await replica.told(1))[0]
        replica.dispatch(10)
        _, second_s = await replica.told(2)
        assert first_s - began_s < PACE.look_s / 2
        assert second_s - first_s > 0.9 * PACE.look_s


async def test_as_soon_as_there_is_enough_to_tell_it_is_told_without_waiting_for_a_look() -> None:
    async with silent_replica() as replica:
        replica.dispatch(10)
        first_s = (await replica.told(1))[0]
        replica.dispatch(10)
        replica.dispatch(PACE.heavy_tokens)
        _, second_s = await replica.told(3)
        assert 0.9 * PACE.gather_s < second_s - first_s < PACE.look_s / 2
