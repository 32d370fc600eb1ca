"""Connections: how many clients the admin port keeps, and how long one may be idle.

Who connects and says nothing costs a socket and memory, and would for ever. So a connection without a request
ends after a time, and of too many the one that has been idle longest ends first: neither clients that forget
theirs nor somebody who opens them on purpose keeps out a scrape. Headers that do not come to their end are no
request. Only where every other one is busy, the new one is ended.

Never: an end to a request under way. Called by: admin.server.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

__all__ = ["Connections", "Limits"]

_log = logging.getLogger("kvring")


@dataclass(frozen=True, slots=True)
class Limits:
    """`most`: connections open at once; `idle_s`: without a request [s]: above Prometheus' usual interval of
    15 to 60 s, so that it keeps its own.
    """

    most: int = 256
    idle_s: float = 75.0


class Connections:
    """The connections of one server. Called for each that is accepted, as asyncio's protocol factory."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._server: web.Server | None = None
        self._busy: set[asyncio.BaseProtocol] = set()
        self._idle_since_s: dict[asyncio.BaseProtocol, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._full = False

    def start(self, server: web.Server) -> None:
        """Connections are this server's from now on."""
        self._server = server

    def stop(self) -> None:
        """No more is ended."""
        if self._timer is not None:
            self._timer.cancel()

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection."""
        if self._server is None:
            raise RuntimeError("not started")
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._tidy)  # once it is among the server's
        return self._server()

    @property
    def middleware(self) -> Middleware:
        """Keeps count of who has a request under way."""

        @web.middleware
        async def watched(request: web.Request, handler: Handler) -> web.StreamResponse:
            one = request.protocol
            self._busy.add(one)
            try:
                return await handler(request)
            finally:
                self._busy.discard(one)
                self._idle_since_s[one] = asyncio.get_running_loop().time()

        return watched

    def _tidy(self) -> None:
        if self._server is None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        there = [one for one in self._server.connections if one.transport is not None]
        idle: dict[asyncio.BaseProtocol, float] = {
            one: self._idle_since_s.get(one, now) for one in there if one not in self._busy
        }
        overdue = sum(now - since_s >= self._limits.idle_s for since_s in idle.values())
        too_many = max(0, len(there) - self._limits.most)
        ending = set(sorted(idle, key=idle.__getitem__)[: max(overdue, too_many)])
        for one in there:
            if one in ending:
                one.force_close()
                del idle[one]
        if too_many and not self._full:
            _log.warning("admin connections ended: too many", extra={"most": self._limits.most})
        self._full = too_many > 0
        self._idle_since_s = idle
        self.stop()
        if there:
            self._timer = loop.call_at(min(idle.values(), default=now) + self._limits.idle_s, self._tidy)
