"""Admin: HTTP for people and machines: /metrics, /healthz, /readyz, /api/state.

Never: anything of a request. Called by: app.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from aiohttp import web

from extproc import __version__, metrics, router
from extproc import views as _views

__all__ = ["Admin"]

_MODELS_SHOWN = 64


class Admin:
    """The admin server of one process."""

    def __init__(
        self,
        looked_at: _views.Views | router.Router,
        counted: metrics.Metrics,
        clock: Callable[[], float],
        is_ready: Callable[[], bool],
        sharing: Callable[[], _views.SharingView | None] = lambda: None,
    ) -> None:
        """`looked_at`: the pools at a time; `is_ready`: what /readyz answers; `sharing`: how replicas
        share.
        """
        self._sharing = sharing
        self._views = _views.alone(looked_at) if isinstance(looked_at, router.Router) else looked_at
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
        # How sharing fares is told, and changes nothing: without it each replica goes on by itself.
        detail = _detail(self._sharing())
        if self._is_ready():
            return web.Response(text=f"ready\n{detail}")
        return web.Response(status=503, text=f"not ready\n{detail}")

    async def _get_state(self, _request: web.Request) -> web.Response:
        return web.json_response(self.state())

    def state(self) -> dict[str, Any]:
        """Pools, load, residency and signals as they stand."""
        now = self._clock()
        pools = [_pool(view, now) for view in self._views(now)]
        shared = self._sharing()
        return {
            "version": __version__,
            "ready": self._is_ready(),
            "pools": pools,
            "sharing": None if shared is None else dataclasses.asdict(shared),
        }


def _detail(shared: _views.SharingView | None) -> str:
    if shared is None:
        return ""
    how = f"{shared.peers} peers" if shared.connected else f"alone, {shared.problem or 'not connected yet'}"
    return f"sharing: {shared.kind}, {how}\n"


def _pool(view: _views.PoolView, now: float) -> dict[str, Any]:
    return {
        "name": view.name,
        "generation": view.generation,
        "policy": view.settings.policy,
        "panic": view.panics,
        "open_leases": view.open_leases,
        "source": {
            "kind": view.source.kind,
            "age_s": _rounded(view.source.age_s),
            "problem": view.source.problem,
            "detail": view.source.detail,
            "resyncs": view.source.resyncs,
        },
        "prefill_tokens_per_s": _rounded(view.settings.prefill_tokens_per_s),
        "bytes_per_token": _rounded(view.settings.bytes_per_token),
        "learned": {
            "prefill_tokens_per_s": _rounded(view.prefill_learned),
            "bytes_per_token": _rounded(view.bytes_learned),
        },
        "endpoints": [_endpoint(one, now) for one in view.endpoints],
    }


def _endpoint(view: _views.EndpointView, now: float) -> dict[str, Any]:
    endpoint, known, reading = view.endpoint, view.known, view.known.reading
    models = None if endpoint.models is None else sorted(endpoint.models)[:_MODELS_SHOWN]
    state: dict[str, Any] = {
        "name": endpoint.id,
        "address": endpoint.address,
        "weight": endpoint.weight,
        "ready": endpoint.ready,
        "against": [reason.value for reason in known.against],
        "share": _rounded(view.share),
        "models": models,
        "inflight": view.inflight,
        "pending_tokens": view.pending_tokens,
        "residency_blocks": view.residency_blocks,
        "residency_scale": _rounded(known.scale),
        "sent": {
            "requests": view.sent.requests,
            "prompt_tokens": round(view.sent.prompt_tokens),
            "predicted_cached_tokens": round(view.sent.gpu_tokens),
        },
        "predicted_hit": _rounded(known.predicted),
        "engine_hit": _rounded(known.true),
        "signals": None,
        "signals_problem": known.scrape_problem or None,
    }
    if reading is not None and known.read_s is not None:
        signal = view.signal
        state["signals"] = {
            "age_s": _rounded(now - known.read_s),
            "engine": reading.engine.value,
            "running": reading.running,
            "waiting": reading.waiting,
            "foreign": None if signal is None else signal.foreign,
            "kv_usage": _rounded(reading.kv_usage),
            "kv_tokens": reading.kv_tokens,
            "looked_up_tokens": reading.queries,
            "cached_tokens": reading.hits,
            "ttft_p50_s": _rounded(known.ttft_s(0.5)),
            "ttft_p99_s": _rounded(known.ttft_s(0.99)),
        }
    return state


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
