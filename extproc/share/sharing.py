"""Sharing: moves messages between the view and a link, at the right time.

The server says when something happened; `_BATCH_S` later, all that happened since leaves in one message. What
comes is taken in at once. Twice a second at least something is said, so that the others know that we live.

Never: a request that waits for any of it. Called by: app.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from extproc import views
from extproc.news import view
from extproc.share import link

__all__ = ["Sharing"]

_BATCH_S = 0.005
_SETTLE_S = 1.0
_ALONE_S = 0.3  # a peer answers a greeting in less
_LOOK_S = 0.1  # between two looks whether it is time to say something


class Sharing:
    """One process's sharing."""

    def __init__(self, shared: view.View, way: link.Link, clock: Callable[[], float]) -> None:
        """`clock`: monotonic [s]."""
        self._view = shared
        self._link = way
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def poke(self) -> None:
        """Something may have happened: tell it soon."""
        if self._timer is None and self._view.waits:
            self._timer = asyncio.get_running_loop().call_later(_BATCH_S, self._flush)

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
            await asyncio.sleep(_LOOK_S / 5)

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

    def _joined(self) -> None:
        self._view.greet()
        self._flush()

    def _hear(self, data: bytes) -> None:
        self._view.hear(data, self._clock())
        self.poke()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._view.reached = self._link.state.connected
        data = self._view.flush(self._clock())
        if data is not None:
            self._link.send(data)
        self.poke()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._flush()
