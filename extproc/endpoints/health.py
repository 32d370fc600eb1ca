"""Health: which endpoints answer, by asking each of them; publishes pools in which only those are ready.

Envoy's override_host goes to an endpoint whatever its health, so kvring must not name a dead one.

    refused or reset connection              not ready at once: nobody listens
    other failure (timeout, status not 2xx)  not ready after `failures` in a row: a busy engine is slow
    good answer                              ready after `successes` in a row

Never: two probes of one endpoint at a time; a probe that delays another's; all endpoints declared dead
silently (the pool then has nobody ready, kvring has no opinion, and `kvring_endpoint_ready` says so).
Called by: app.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable

import aiohttp

from extproc import config, metrics, pool

__all__ = ["Prober"]

_log = logging.getLogger("kvring")

_JITTER = 0.1
_OURS = (errno.EMFILE, errno.ENFILE)  # says nothing about the endpoint, and least that it is gone


class Prober:
    """Probes the members of a pool until cancelled."""

    def __init__(
        self,
        settings: config.Health,
        members: pool.Pool,
        publish: Callable[[pool.Pool], None],
        counted: metrics.Metrics,
        chance: Callable[[], float],
    ) -> None:
        """`publish` gets every new generation of `members`; `chance` is uniform in [0, 1)."""
        self._settings = settings
        self._pool = members
        self._publish = publish
        self._metrics = counted
        self._chance = chance
        self._streaks: dict[pool.EndpointId, int] = {}  # > 0 good, < 0 bad probes in a row
        self.probed_all = asyncio.Event()  # every endpoint was asked once

    async def run(self) -> None:
        """Probe for ever, each endpoint on its own clock."""
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_s)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a new connection shows who listens
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
            asyncio.TaskGroup() as group,
        ):
            for endpoint in self._pool.endpoints:
                group.create_task(self._watch(session, endpoint))

    async def _watch(self, session: aiohttp.ClientSession, endpoint: pool.Endpoint) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            self._judge(endpoint, await self._probe(session, endpoint))
            jittered_s = self._settings.interval_s * (1 + _JITTER * (2 * self._chance() - 1))
            await asyncio.sleep(max(0.0, started_s + jittered_s - loop.time()))

    async def _probe(self, session: aiohttp.ClientSession, endpoint: pool.Endpoint) -> str:
        """The empty string if the answer was good, else what was wrong."""
        try:
            url = f"http://{endpoint.address}{self._settings.path}"
            async with session.get(url, allow_redirects=False) as answer:
                return "" if 200 <= answer.status < 300 else f"status {answer.status}"
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, ConnectionError) as error:
            if getattr(error, "errno", None) in _OURS:
                return "no descriptors"
            return "refused"  # or reset, which aiohttp makes a ClientOSError
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return type(error).__name__

    def _judge(self, endpoint: pool.Endpoint, problem: str) -> None:
        good = not problem
        (self._metrics.probe_good if good else self._metrics.probe_bad).inc()
        streak = self._streaks.get(endpoint.id, 0)
        streak = max(streak, 0) + 1 if good else min(streak, 0) - 1
        self._streaks[endpoint.id] = streak
        if len(self._streaks) == len(self._pool.endpoints):
            self.probed_all.set()
        if problem == "refused" or streak <= -self._settings.failures:
            self._set(endpoint.id, ready=False, problem=problem)
        elif streak >= self._settings.successes:
            self._set(endpoint.id, ready=True, problem="")

    def _set(self, name: pool.EndpointId, *, ready: bool, problem: str) -> None:
        changed = pool.with_ready(self._pool, {name: ready})
        if changed is self._pool:
            return
        self._pool = changed
        _log.warning(
            "endpoint is ready" if ready else "endpoint is not ready",
            extra={"endpoint": name, "problem": problem, "ready": len(changed.ready)},
        )
        self._publish(changed)
