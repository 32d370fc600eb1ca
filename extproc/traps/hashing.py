"""Hashing: the rules about steering by hash: kvring sets a header, and Envoy's consistent hashing reads it.

They speak where a route hashes by kvring's header, or where one whose endpoints are hashed does not.

Called by: serving. What each finding means: catalogue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from extproc.traps import guards
from extproc.traps.finding import Finding
from extproc.traps.reading import Door, Json, Part, at, each, targets, type_of

__all__ = ["HASH", "algorithm", "findings", "is_only", "is_read"]

HASH = "x-kvring-hash"

_BOUND_MIN = 100
_RING_DEFAULT, _RING_MIN = 1024, 8192
_ALGORITHMS = {"RING_HASH": "RING_HASH", "MAGLEV": "MAGLEV", "RingHash": "RING_HASH", "Maglev": "MAGLEV"}
_BY_NAME = {"STRICT_DNS", "LOGICAL_DNS"}


def findings(door: Door, clusters: Mapping[str, Json]) -> Iterator[Finding]:
    """What is wrong with the hashing of a door's routes."""
    for route in door.routes:
        names = [name for name, _ in targets([route])]
        hashed = [name for name in names if name in clusters and algorithm(clusters[name])]
        if _reads(route, clusters, names):
            yield from _route(door, route)
            yield from (
                Finding("hash-ignored", f"cluster {name}", route.where)
                for name in names
                if name in clusters and name not in hashed
            )
        elif hashed:
            yield Finding("hash-unread", route.where, f"cluster {hashed[0]}")
    for name, _ in targets(door.routes):
        if is_read(door, name, clusters) and algorithm(clusters.get(name, {})):
            yield from _cluster(clusters[name], f"cluster {name}")


def algorithm(cluster: Json) -> str | None:
    """By which Envoy's own consistent hashing chooses in a cluster; None if it does not."""
    found = _ALGORITHMS.get(str(at(cluster, "lb_policy")))
    return _ALGORITHMS.get(type_of(_typed(cluster)), found)


def is_read(door: Door, cluster: str, clusters: Mapping[str, Json] | None = None) -> bool:
    """Whether a route to `cluster` hashes by kvring's header."""
    leads = [one for one in door.routes if cluster in dict(targets([one]))]
    return any(_reads(one, clusters or {}, [cluster]) for one in leads)


def is_only(door: Door) -> bool:
    """Whether every route hashes by kvring's header: then nobody counts what is open."""
    return bool(door.routes) and all(_reads(one, {}, []) for one in door.routes)


def _typed(cluster: Json) -> Json:
    for policy in each(cluster, "load_balancing_policy", "policies")[:1]:
        found = at(policy, "typed_extension_config", "typed_config")
        return found if isinstance(found, Mapping) else {}
    return {}


def _policies(route: Part, clusters: Mapping[str, Json], names: list[str]) -> list[Json]:
    """Hash policies of the route, and of the balancing of where it leads."""
    found = each(route.value, "route", "hash_policy")
    for name in names:
        found += each(_typed(clusters.get(name, {})), "consistent_hashing_lb_config", "hash_policy")
    return found


def _reads(route: Part, clusters: Mapping[str, Json], names: list[str]) -> bool:
    return any(_is_ours(one) for one in _policies(route, clusters, names))


def _is_ours(policy: Json) -> bool:
    return str(at(policy, "header", "header_name")).lower() == HASH


def _route(door: Door, route: Part) -> Iterator[Finding]:
    policies = each(route.value, "route", "hash_policy")
    alone = len(policies) < 2 or (_is_ours(policies[0]) and at(policies[0], "terminal"))
    if not alone:
        yield Finding("hash-mixed", route.where, f"{len(policies)} hash policies")
    removed = [
        str(name).lower()
        for block in (route.value, at(route.value, "host"))
        for name in at(block, "request_headers_to_remove") or []
    ]
    if HASH in removed:
        yield Finding("hash-removed", route.where, "request_headers_to_remove")
    for asking in door.askings:
        if not guards.may_set(asking, HASH):
            yield Finding("hash-dropped", asking.where)
        if not guards.scrubs(door, asking, HASH):
            yield Finding("hash-spoof", door.where, HASH)


def _cluster(cluster: Json, where: str) -> Iterator[Finding]:
    typed = _typed(cluster)
    classic = at(cluster, "common_lb_config", "consistent_hashing_lb_config")
    config = at(typed, "consistent_hashing_lb_config") or classic
    factor = at(config, "hash_balance_factor")
    factor = at(factor, "value") if isinstance(factor, Mapping) else factor
    if not isinstance(factor, int) or factor < _BOUND_MIN:
        yield Finding("hash-unbound", where)
    if at(config, "use_hostname_for_hashing") and at(cluster, "type") in _BY_NAME:
        yield Finding("hash-one-name", where, str(at(cluster, "type")))
    points = at(typed, "minimum_ring_size") or at(cluster, "ring_hash_lb_config", "minimum_ring_size")
    points = at(points, "value") if isinstance(points, Mapping) else points
    points = int(points) if str(points).isdecimal() else _RING_DEFAULT
    if algorithm(cluster) == "RING_HASH" and points < _RING_MIN:
        yield Finding("hash-ring", where, f"{points} points")
    if not each(cluster, "health_checks") and at(cluster, "outlier_detection") is None:
        yield Finding("hash-unchecked", where)
