"""Derived: what the core needs of a pool's block in kvring.yaml.

Called by: app, cli, endpoints.making. For `steering: hash`, see config.hashing.
"""

from __future__ import annotations

from extproc import groups, policy, pool, router
from extproc.config import pools

__all__ = ["match_of", "router_settings", "static_members", "static_pool"]


def router_settings(group: pools.Pool, replicas: int = 1) -> router.Settings:
    """What the router needs of a pool's block; `replicas`: of kvring."""
    defaults = router.Settings()
    return router.Settings(
        policy=group.policy,
        limits=policy.Limits(group.bound_factor, group.bound_floor_tokens, group.bound_floor_requests),
        ring_points=group.ring_points,
        block_bytes=group.block_bytes,
        blocks_max=group.blocks_max,
        bytes_per_token=group.bytes_per_token or defaults.bytes_per_token,
        prefill_tokens_per_s=group.prefill_tokens_per_s or defaults.prefill_tokens_per_s,
        kv_tokens=group.kv_tokens or defaults.kv_tokens,
        host_kv_tokens=group.host_kv_tokens or 0,
        external_kv_tokens=group.external_kv_tokens,
        residency_idle_s=group.residency_idle_s,
        anchor_half_life_s=group.anchor_half_life_s,
        answers_max=group.answers_max,
        alternates=group.alternates,
        slow_start_s=group.slow_start_s,
        signals_age_max_s=group.signals.age_max_s,
        inflight_max=group.inflight_max,
        refuses_empty=(
            group.inference_pool is not None if group.on_empty is None else group.on_empty == "refuse"
        ),
        replicas=replicas,
    )


def match_of(group: pools.Pool) -> groups.Match:
    """Which requests belong to the pool."""
    rules = group.match or pools.Match()
    return groups.Match(
        tuple(rules.models), tuple(rules.adapters), tuple(rules.clusters), tuple(rules.routes)
    )


def static_members(group: pools.Pool) -> tuple[pool.Endpoint, ...]:
    """The endpoints listed in the file; () if they come from elsewhere."""
    return tuple(
        pool.Endpoint(
            pool.EndpointId(listed.name),
            listed.address,
            listed.weight,
            models=None if listed.models is None else frozenset(listed.models),
        )
        for listed in group.endpoints or ()
    )


def static_pool(group: pools.Pool) -> pool.Pool:
    """The pool of the endpoints listed in the file."""
    return pool.make(group.name, static_members(group))
