"""Tuning: one pool's settings as the router takes them, and what follows from them.

Called by: config (makes), router, simulator. Source of the defaults: docs/configuration.md, docs/decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from extproc import footprint as _footprint
from extproc import policy, residency, ring

__all__ = ["Settings", "capacity", "residency_of"]


@dataclass(frozen=True, slots=True)
class Settings:
    """One pool's tuning. Units in the names; what each is worth is in docs/configuration.md.

    `inflight_max`: open requests of an endpoint [count], 0 for any number. `refuses_empty`: whether a request
    is refused when nobody is ready.
    """

    limits: policy.Limits = field(default_factory=policy.Limits)
    policy: str = "cost"
    ring_points: int = ring.POINTS
    block_bytes: int = 256
    blocks_max: int = 8192
    bytes_per_token: float = 4.0
    prefill_tokens_per_s: float = 8000.0
    kv_tokens: int = 400_000
    host_kv_tokens: int = 0
    external_kv_tokens: int = 0
    host_load_cost: float = 0.1
    residency_idle_s: float = 1200.0
    anchor_half_life_s: float = 300.0
    answers_max: int = 65_536
    alternates: int = 0
    slow_start_s: float = 30.0
    signals_age_max_s: float = 5.0
    inflight_max: int = 0
    refuses_empty: bool = False
    replicas: int = 1  # of kvring, that place requests on this pool


def capacity(settings: Settings) -> residency.Capacity:
    """Tokens of KV cache as blocks of the chain."""
    per_block = settings.block_bytes / settings.bytes_per_token

    def blocks(tokens: int) -> int:
        return int(tokens / per_block)

    return residency.Capacity(
        blocks(settings.kv_tokens),
        blocks(settings.kv_tokens + settings.host_kv_tokens) if settings.host_kv_tokens else 0,
        blocks(settings.external_kv_tokens),
    )


def residency_of(settings: Settings) -> residency.Residency:
    """An empty residency of a pool so tuned, where answers are as long as is expected of them."""
    per_block = settings.block_bytes / settings.bytes_per_token
    answer_blocks = round(_footprint.OUTPUT_TOKENS / per_block)
    return residency.Residency(capacity(settings), settings.residency_idle_s, answer_blocks)
