"""The admin server: one route a question; reads, never changes.

    /metrics /healthz /readyz        for machines
    /  /page/...                     the page
    /api/state                       pools and endpoints as they stand
    /api/choices?after=N             the latest choices, newest first, with what the page counts by
    /api/config                      settings in force, secrets left out, and versions
    POST /api/explain?path=P         what would become of the request in the body, now

Called by: app.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import platform
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from extproc import __version__, exchange, explanation, groups, journal, metrics, router
from extproc import views as _views
from extproc.admin import access, connections, files, state

__all__ = ["Admin", "Desk"]

_RING_SLOTS = 720
_CHOICES_MOST = 128
_PATH_CHARS_MAX = 2048
_BODY_S = 10.0  # for a whole body to come
_HEADERS_MAX = 32
_HEADER_PREFIX = "x-kvring-asked-"

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Desk:
    """What the page shows beside the state: the pools to explain by, how requests are read, the latest
    choices, the settings in force (`config`, free of secrets), and who may look.
    """

    pools: groups.Groups
    how: exchange.Settings
    latest: journal.Journal
    config: dict[str, Any] = field(default_factory=dict)
    access: access.Access = field(default_factory=access.Access)


class Admin:
    """The admin server of one process."""

    def __init__(
        self,
        looked_at: _views.Views | router.Router,
        counted: metrics.Metrics,
        clock: Callable[[], float],
        is_ready: Callable[[], bool],
        desk: Desk | None = None,
        sharing: Callable[[], _views.SharingView | None] = lambda: None,
        limits: connections.Limits | None = None,
    ) -> None:
        """Serve what is known.

        Args: looked_at: the pools at a time; is_ready: what /readyz answers; desk: None for no page; sharing:
            how replicas share, None if they do not; limits: of its connections.
        """
        self._sharing = sharing
        self._views = _views.alone(looked_at) if isinstance(looked_at, router.Router) else looked_at
        self._metrics = counted
        self._clock = clock
        self._is_ready = is_ready
        self._desk = desk
        self._rings: dict[str, tuple[object, list[int]]] = {}
        self._access = access.Access() if desk is None else desk.access
        body_bytes_max = 0 if desk is None else desk.how.prompt.whole_bytes_max
        self._connections = connections.Connections(limits or connections.Limits())
        app = web.Application(client_max_size=body_bytes_max + 1, middlewares=[self._connections.middleware])
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/healthz", self._get_healthz)
        app.router.add_get("/readyz", self._get_readyz)
        app.router.add_get("/api/state", self._guard(self._get_state, guarded=False))
        if desk is not None:
            app.router.add_get("/api/choices", self._guard(self._get_choices))
            app.router.add_get("/api/config", self._guard(self._get_config))
            app.router.add_post("/api/explain", self._guard(self._post_explain))
            for file in files.load():
                app.router.add_get(file.path, _of_file(file))
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        self._listening: asyncio.Server | None = None
        self.address = ""

    async def start(self, listen: str) -> None:
        """Serve on "host:port"; the address in use is then in `address`. Raises: OSError."""
        await self._runner.setup()
        host, _, port = listen.rpartition(":")
        server = self._runner.server
        if server is None:
            raise RuntimeError("set up, but without a server")
        self._connections.start(server)
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self._connections, host.strip("[]"), int(port))
        bound = self._listening.sockets[0].getsockname()[1]
        self.address = f"{host}:{bound}"

    async def stop(self) -> None:
        """Stop at once."""
        if self._listening is not None:
            self._listening.close()
        self._connections.stop()
        await self._runner.cleanup()

    def state(self) -> dict[str, Any]:
        """Pools, load, residency and signals as they stand."""
        now = self._clock()
        pools = [state.pool_state(view, now) for view in self._views(now)]
        if self._desk is not None:
            pools += [state.hasher_state(one) for one in self._desk.pools.hashers]
        shared = self._sharing()
        told = None if shared is None else dataclasses.asdict(shared)
        return {"version": __version__, "ready": self._is_ready(), "pools": pools, "sharing": told}

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.exposition(), headers={"content-type": metrics.CONTENT_TYPE})

    async def _get_healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _get_readyz(self, _request: web.Request) -> web.Response:
        # How sharing fares is told, and changes nothing: without it each replica goes on by itself.
        detail = _detail(self._sharing())
        if self._is_ready():
            return web.Response(text=f"ready\n{detail}")
        return web.Response(status=503, text=f"not ready\n{detail}")

    async def _get_state(self, _request: web.Request) -> web.Response:
        return _json(self.state())

    async def _get_choices(self, request: web.Request) -> web.Response:
        desk = self._shown()
        text = request.query.get("after", "0")
        after = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
        now = self._clock()
        entries = desk.latest.after(after, _CHOICES_MOST)
        return _json(
            {
                "latest": desk.latest.latest,
                "totals": self._metrics.totals(),
                "decision_s": {"p50": desk.latest.spent_s(0.5), "p99": desk.latest.spent_s(0.99)},
                "rings": {one.pool.name: self._ring(one) for one in desk.pools.routers},
                "choices": [
                    {
                        "number": entry.number,
                        "age_s": round(now - entry.at_s, 3),
                        "spent_us": round(entry.spent_s * 1e6),
                        **journal.told(entry.made),
                    }
                    for entry in entries
                ],
            }
        )

    async def _get_config(self, _request: web.Request) -> web.Response:
        versions = {"kvring": __version__, "python": platform.python_version(), "os": platform.platform()}
        return _json({"versions": versions, "config": self._shown().config})

    async def _post_explain(self, request: web.Request) -> web.Response:
        desk = self._shown()
        # Of another kind a browser would send it for any page that asks, without asking us first.
        if request.content_type != "application/json":
            return _json({"problem": "content-type must be application/json"}, 415)
        bytes_max = desk.how.prompt.whole_bytes_max
        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            body = None
        except TimeoutError:
            return _json({"problem": f"the body did not come within {_BODY_S:.0f} s"}, 408)
        except web.RequestPayloadError:
            return _json({"problem": "the body is not in its content-encoding, or broke off"}, 400)
        if body is None or len(body) > bytes_max:
            return _json({"problem": f"longer than {bytes_max:,} bytes, which is all that is ever read"}, 413)
        path = request.query.get("path", "/v1/chat/completions")[:_PATH_CHARS_MAX]
        given = [(name.lower(), value) for name, value in request.headers.items()][:256]
        headers = {
            name.removeprefix(_HEADER_PREFIX): value
            for name, value in given
            if name.startswith(_HEADER_PREFIX)
        }
        asked = explanation.Asked({**dict(list(headers.items())[:_HEADERS_MAX]), ":path": path}, body)
        found = explanation.explain(desk.pools, desk.how, asked, self._clock())
        if isinstance(found, explanation.Unanswered):
            return _json({"problem": found.why}, 422)
        return _json(found)

    def _ring(self, of: router.Router) -> list[int]:
        """The ring for drawing: which endpoint, by its place in the pool, has each of the even slots."""
        known = self._rings.get(of.pool.name)
        if known is None or known[0] is not of.ring:
            places = {endpoint.id: at for at, endpoint in enumerate(of.pool.endpoints)}
            known = of.ring, [places[name] for name in of.ring.slots(_RING_SLOTS)]
            self._rings[of.pool.name] = known
        return known[1]

    def _shown(self) -> Desk:
        if self._desk is None:
            raise RuntimeError("a route of the page without a page")
        return self._desk

    def _guard(self, answer: _Handler, *, guarded: bool = True) -> _Handler:
        async def guard(request: web.Request) -> web.StreamResponse:
            given = request.headers.get("authorization", "")
            host = request.headers.get("host", "")
            if self._access.allows(given, request.remote, guarded=guarded, host=host):
                return await answer(request)
            if self._access.has_token:
                return _json({"problem": "a token is needed"}, 401)
            why = "only for this machine, by address or as localhost, while no admin_token_file is set"
            return _json({"problem": why}, 403)

        return guard


def _of_file(file: files.File) -> _Handler:
    async def get_file(_request: web.Request) -> web.Response:
        return web.Response(body=file.data, headers={**files.HEADERS, "content-type": file.kind})

    return get_file


def _json(found: dict[str, Any], status: int = 200) -> web.Response:
    headers = {
        **files.HEADERS,
        "cache-control": "no-store",
        "content-type": "application/json; charset=utf-8",
    }
    return web.Response(text=json.dumps(found), status=status, headers=headers)


def _detail(shared: _views.SharingView | None) -> str:
    if shared is None:
        return ""
    how = f"{shared.peers} peers" if shared.connected else f"alone, {shared.problem or 'not connected yet'}"
    return f"sharing: {shared.kind}, {how}\n"
