"""Sharing: the routers of one simulation tell each other what they do, in the sidecar's own messages.

Every router has the view that a sidecar has (`news.view`); the bytes it would publish arrive at the others
`delay_s` later, as if through a store. Batches are gathered as long as in the sidecar.

Law: no chance, no clock but the simulation's. Called by: simulation.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from extproc.news import view
from extproc.sim import clock, policies

__all__ = ["Sharing"]

_USUAL = view.Settings()


class Sharing:
    """Views of all routers. `told`, `told_bytes`: messages and bytes published so far."""

    def __init__(
        self,
        timer: clock.Clock,
        routers: Sequence[policies.Production],
        delay_s: float,
        settings: view.Settings = _USUAL,
    ) -> None:
        """`routers`: that share; `delay_s`: of a message [s]; `settings`: of each router's view."""
        self._timer = timer
        self._delay_s = delay_s
        self._views = [
            view.View(number, {one.router.pool.name: one.router}, one.router.outbox, settings)
            for number, one in enumerate(routers, start=1)
            if one.router.outbox is not None
        ]
        for one in self._views:
            one.reached = True
        self._due = [False] * len(self._views)
        self._look_s = [0.0] * len(self._views)
        for number in range(len(self._views)):
            self._beat(number)

    @property
    def told(self) -> int:
        """Messages published."""
        return sum(one.counts.told for one in self._views)

    @property
    def told_bytes(self) -> int:
        """Bytes of them."""
        return sum(one.counts.told_bytes for one in self._views)

    def poke(self) -> None:
        """Something may have happened: it is told soon."""
        for number, one in enumerate(self._views):
            if not self._due[number] and one.due_s < self._look_s[number]:
                self._due[number] = True
                wait_s = max(one.due_s - self._timer.now, 0.0)
                self._timer.after(wait_s, functools.partial(self._flush, number))

    def _flush(self, number: int) -> None:
        self._due[number] = False
        self._look_s[number] = self._timer.now + self._views[number].settings.look_s
        data = self._views[number].flush(self._timer.now)
        if data is not None:
            self._timer.after(self._delay_s, functools.partial(self._arrive, number, data))
        self.poke()

    def _arrive(self, sender: int, data: bytes) -> None:
        for number, one in enumerate(self._views):
            if number != sender:
                one.hear(data, self._timer.now)
        self.poke()

    def _beat(self, number: int) -> None:
        if self._timer.now >= self._look_s[number]:
            self._flush(number)
        self._timer.at(self._look_s[number], functools.partial(self._beat, number))
