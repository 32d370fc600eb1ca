"""Troublemaker: an endpoint that is healthy when asked and fails requests in every way a model server can.

async with troublemaker.troublemaker() as trouble:     # an endpoint for `fleet(others=...)`
    trouble.kinds = ["cut", "503"]                      # in turn
    trouble.calls["cut"]                                # how often it did so
    trouble.health = "hang"                             # or "ok", "503"
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

from aiohttp import web

from tests.envoy import client

KINDS = ["reset", "cut", "silent", "503", "ok"]


class Troublemaker:
    def __init__(self) -> None:
        self.address = ""
        self.kinds = list(KINDS)
        self.health = "ok"
        self.calls: Counter[str] = Counter()
        self.bodies: list[str] = []  # sha256 of each body, in order
        self.headers: list[dict[str, str]] = []
        self._turn = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            if self.health == "hang":
                await asyncio.Event().wait()
            return web.Response(status=200 if self.health == "ok" else int(self.health))
        if request.headers.get("user-agent", "").startswith("kvring/"):  # its metrics, its models
            return web.Response(status=404)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.bodies.append(client.sha256(await request.read()))
        kind = self.kinds[self._turn % len(self.kinds)]
        self._turn += 1
        self.calls[kind] += 1
        match kind:
            case "reset":  # before any answer: Envoy may retry
                request.transport.abort()
                return web.Response()
            case "cut":  # within the answer: nobody may
                response = web.StreamResponse(headers={"content-type": "text/event-stream"})
                await response.prepare(request)
                await response.write(b'data: {"choices": []}\n\n')
                await asyncio.sleep(0.01)
                request.transport.abort()
                return response
            case "silent":
                await asyncio.Event().wait()
            case "503":
                return web.json_response({"error": {"message": "overloaded"}}, status=503)
        return web.json_response({"choices": [], "served_by": "troublemaker"})


@contextlib.asynccontextmanager
async def troublemaker():
    made = Troublemaker()
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.address = f"127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()
