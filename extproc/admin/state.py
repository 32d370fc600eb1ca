"""State: pools and endpoints as /api/state tells them, as JSON has it.

Never: anything of a request. Called by: admin.server.
"""

from __future__ import annotations

from typing import Any

from extproc import hasher
from extproc import views as _views

__all__ = ["hasher_state", "pool_state"]

_MODELS_SHOWN = 64


def pool_state(view: _views.PoolView, now: float) -> dict[str, Any]:
    """One pool and its endpoints at `now` [s, monotonic]."""
    return {
        "name": view.name,
        "steering": "endpoint",
        "generation": view.generation,
        "policy": view.settings.policy,
        "panic": view.panics,
        "open_leases": view.open_leases,
        "bound": _rounded(view.bound),
        "bound_on": "open requests" if view.settings.policy == "cost" else "tokens of work",
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


def hasher_state(of: hasher.Hasher) -> dict[str, Any]:
    """A pool whose endpoints Envoy's own hashing chooses: what little there is to tell."""
    return {
        "name": of.name,
        "steering": "hash",
        "endpoint_count": of.endpoints,
        "anchor_edges": len(of.anchors),
        "panic": False,
        "bytes_per_token": _rounded(of.settings.bytes_per_token),
        "endpoints": [],
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
        "work": _rounded(view.work),
        "filled": _rounded(view.filled),
        "oldest_lease_s": _rounded(view.oldest_lease_s),
        "residency_blocks": view.residency_blocks,
        "capacity_blocks": view.capacity_blocks,
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
