"""Admin: HTTP for people and machines: /metrics, /healthz, /readyz, /api/state.

Never: anything of a request. Called by: app.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from extproc import __version__, metrics, router

__all__ = ["Admin"]


class Admin:
    """The admin server of one process."""

    def __init__(
        self,
        chooser: router.Router,
        counted: metrics.Metrics,
        clock: Callable[[], float],
        is_ready: Callable[[], bool],
    ) -> None:
        """`is_ready` tells what /readyz answers."""
        self._router = chooser
        self._metrics = counted
        self._clock = clock
        self._is_ready = is_ready
        app = web.Application()
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/healthz", self._get_healthz)
        app.router.add_get("/readyz", self._get_readyz)
        app.router.add_get("/api/state", self._get_state)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        self.address = ""

    async def start(self, listen: str) -> None:
        """Serve on "host:port"; the address in use is then in `address`. Raises: OSError."""
        await self._runner.setup()
        host, _, port = listen.rpartition(":")
        site = web.TCPSite(self._runner, host.strip("[]"), int(port))
        await site.start()
        bound = self._runner.addresses[0][1]
        self.address = f"{host}:{bound}"

    async def stop(self) -> None:
        """Stop at once."""
        await self._runner.cleanup()

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.exposition(), headers={"content-type": metrics.CONTENT_TYPE})

    async def _get_healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _get_readyz(self, _request: web.Request) -> web.Response:
        if self._is_ready():
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not ready\n")

    async def _get_state(self, _request: web.Request) -> web.Response:
        return web.json_response(self.state())

    def state(self) -> dict[str, Any]:
        """Pool, load and residency as they stand."""
        chooser, now = self._router, self._clock()
        endpoints = []
        for endpoint in chooser.pool.endpoints:
            load = chooser.ledger.load(endpoint.id, now)
            endpoints.append(
                {
                    "name": endpoint.id,
                    "address": endpoint.address,
                    "weight": endpoint.weight,
                    "ready": endpoint.ready,
                    "inflight": load.inflight,
                    "pending_tokens": load.pending,
                    "residency_blocks": chooser.residency.blocks(endpoint.id),
                }
            )
        pool = {
            "name": chooser.pool.name,
            "generation": chooser.pool.generation,
            "policy": chooser.settings.policy,
            "open_leases": chooser.ledger.open_leases,
            "endpoints": endpoints,
        }
        return {"version": __version__, "ready": self._is_ready(), "pools": [pool]}
