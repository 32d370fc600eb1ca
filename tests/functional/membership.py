"""Membership: what a source under test has published, to be awaited instead of slept for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from extproc import pool

WAIT_S = 60.0


class Membership:
    """The receiving end of a source."""

    def __init__(self) -> None:
        self.history: list[tuple[pool.Endpoint, ...]] = []
        self._changed = asyncio.Event()

    def publish(self, members: Sequence[pool.Endpoint]) -> None:
        self.history.append(tuple(members))
        self._changed.set()

    @property
    def now(self) -> tuple[pool.Endpoint, ...]:
        return self.history[-1]

    @property
    def addresses(self) -> dict[str, str]:
        """Name -> address of all members; nothing if nothing was published."""
        return {str(member.id): member.address for member in (self.history[-1] if self.history else ())}

    @property
    def ready(self) -> set[str]:
        return {str(member.id) for member in (self.history[-1] if self.history else ()) if member.ready}

    async def until(self, holds: Callable[[Membership], bool]) -> None:
        """Wait until the last membership is as wanted."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not (self.history and holds(self)):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"never as wanted; last: {self.history[-1:]}") from None


@contextlib.asynccontextmanager
async def running(source: Any) -> AsyncIterator[Membership]:
    """The membership of `source` while it runs; it must not end by itself."""
    members = Membership()
    task = asyncio.create_task(source.run(members.publish))
    try:
        yield members
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
