"""Hashing: what a pool with `steering: hash` may say, and who decides for it.

kvring then knows no endpoint, so whatever is about endpoints has no meaning and must not be written.

Called by: config.checks, app, cli.
"""

from __future__ import annotations

from extproc import hasher
from extproc.config import derived, pools

__all__ = ["hasher_of", "problem"]

_READ = {
    "name", "match", "steering", "endpoint_count", "block_bytes", "blocks_max", "bytes_per_token",
    "anchor_half_life_s",
}  # fmt: skip


def problem(group: pools.Pool) -> tuple[str, str] | None:
    """The key that can't be as it is, beside `steering`, and why; None if all can."""
    if group.steering == "endpoint":
        if group.endpoint_count is not None:
            return "endpoint_count", "not allowed; only with steering: hash, which knows no endpoints"
        return None
    for key in group.__struct_fields__:
        if key not in _READ and getattr(group, key) != getattr(_BARE, key):
            return key, "not allowed with steering: hash, where Envoy chooses and kvring knows no endpoint"
    if group.endpoint_count is None:
        return "endpoint_count", "missing; must be an integer from 1 to 1000000, about, with steering: hash"
    return None


def hasher_of(group: pools.Pool) -> hasher.Hasher | None:
    """Who decides for the pool, without any traffic seen; None where a router does."""
    if group.steering == "endpoint":
        return None
    return hasher.Hasher(group.name, group.endpoint_count or 1, derived.router_settings(group))


_BARE = pools.Pool()
