"""Sharing: moves messages between the view and a link, at the right time.

The server says when something happened. A choice is told at once, unless a message left just before: then
all that happens until the next is due leaves in it (`view.Settings`). What comes is taken in at once. Some
times a second it is looked whether something waits; twice a second at least something is said, so that the
others know that we live.

Never: a request that waits for any of it. Called by: app.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from extproc import outbox, views
from extproc.news import view
from extproc.share import link

__all__ = ["Sharing"]

_SETTLE_S = 1.0
_ALONE_S = 0.3  # a peer answers a greeting in less
_SETTLE_LOOK_S = 0.02


class Sharing:
    """One process's sharing."""

    def __init__(
        self, shared: view.View, entries: outbox.Outbox, way: link.Link, clock: Callable[[], float]
    ) -> None:
        """`entries`: what `shared` tells of; `clock`: monotonic [s]."""
        self._view = shared
        self._entries = entries
        self._link = way
        self._clock = clock
        self._timer: asyncio.Handle | None = None  # for what is due before the next look
        self._look_s = -math.inf  # when that is

    def poke(self) -> None:
        """Something may have happened: tell it soon."""
        if self._timer is None and self._entries.weight:
            self._plan()

    async def run(self) -> None:
        """Share until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._link.run(self._hear, self._joined))
            group.create_task(self._beat())

    async def settle(self) -> None:
        """Return when what peers know was heard, there seem to be none, or it takes too long."""
        began_s, joined_s = self._clock(), None
        while not self._view.warm and self._clock() - began_s < _SETTLE_S:
            if self._link.state.connected and joined_s is None:
                joined_s = self._clock()
            if joined_s is not None and not self._view.peers and self._clock() - joined_s > _ALONE_S:
                return
            await asyncio.sleep(_SETTLE_LOOK_S)

    async def stop(self) -> None:
        """Say good-bye, so that nobody has to wait until our leases expire."""
        if self._timer is not None:
            self._timer.cancel()
        self._link.send(self._view.bye(self._clock()))
        with contextlib.suppress(OSError):
            await self._link.close()

    def look(self) -> views.SharingView:
        """How it stands."""
        state, shared = self._link.state, self._view
        return views.SharingView(
            state.kind,
            state.connected,
            state.problem,
            shared.peers,
            shared.peer_leases,
            shared.warm or not shared.peers,
            {"unsent": state.dropped, **{why.value: count for why, count in shared.strange.items()},
             "repeated": shared.counts.repeated, "crowd": shared.counts.crowd, "unplaced":
             shared.counts.unplaced, "unresolved": shared.counts.unresolved},
            {"gap": shared.counts.gaps, "mismatch": shared.counts.mismatches, "expired":
            shared.counts.expired}, shared.counts.told,
            shared.counts.told_bytes,
            shared.counts.heard,
            shared.counts.heard_bytes,
            shared.counts.dispatches,
        )  # fmt: skip

    def _plan(self) -> None:
        """Be back for what is due before the next look."""
        due_s = self._view.due_s
        if self._timer is not None or due_s >= self._look_s:
            return
        loop = asyncio.get_running_loop()
        wait_s = due_s - self._clock()
        # never in this call: an answer may be about to be written
        self._timer = loop.call_later(wait_s, self._flush) if wait_s > 0 else loop.call_soon(self._flush)

    def _joined(self) -> None:
        self._view.greet()
        self._flush()

    def _hear(self, data: bytes) -> None:
        self._view.hear(data, self._clock())
        if self._timer is None:
            self._plan()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        self._look_s = now + self._view.settings.look_s
        self._view.reached = self._link.state.connected
        if not self._link.state.carries:
            self._view.hold(now)
            return
        data = self._view.flush(now)
        if data is not None:
            self._link.send(data)
        self._plan()

    async def _beat(self) -> None:
        while True:
            wait_s = self._look_s - self._clock()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            else:
                self._flush()
