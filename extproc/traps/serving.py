"""Serving: the rules about routes and the clusters of endpoints: does Envoy obey kvring, and only kvring?

Called by: traps.find.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extproc.traps import guards, hashing
from extproc.traps.asked import BREAKER_MIN, breaker
from extproc.traps.finding import Finding
from extproc.traps.reading import Asking, Door, Json, Part, Setup, at, each, seconds, targets, type_of

__all__ = ["findings"]

_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_ORIGINAL_DST_HEADER = "x-envoy-original-dst-host"
_ROUTE_TIMEOUT_DEFAULT_S, _ROUTE_TIMEOUT_MIN_S = 15.0, 300.0
_IDLE_DEFAULT_S, _IDLE_MIN_S = 300.0, 600.0
_UVICORN_S = 5.0


def findings(setup: Setup) -> Iterator[Finding]:
    """What is wrong with where requests go."""
    for door in setup.doors:
        yield from hashing.findings(door, setup.clusters)
        idle_s = seconds(at(door.manager, "stream_idle_timeout"), _IDLE_DEFAULT_S)
        for route in door.routes:
            yield from _route(route, idle_s)
        for name, where in targets(door.routes):
            cluster = setup.clusters.get(name)
            if cluster is not None:
                yield from _cluster(door, cluster, f"cluster {name}", where)


def _route(route: Part, idle_s: float) -> Iterator[Finding]:
    action = at(route.value, "route")
    if action is None:
        return  # a redirect or a direct response
    timeout_s = seconds(at(action, "timeout"), _ROUTE_TIMEOUT_DEFAULT_S)
    if 0 < timeout_s < _ROUTE_TIMEOUT_MIN_S:
        yield Finding("route-timeout", route.where, f"{timeout_s:g} s")
    idle_s = seconds(at(action, "idle_timeout"), idle_s)
    if 0 < idle_s < _IDLE_MIN_S:
        yield Finding("idle-timeout", route.where, f"{idle_s:g} s")
    retry = at(action, "retry_policy") or at(route.value, "host", "retry_policy")
    if retry and not any("previous_hosts" in str(one) for one in each(retry, "retry_host_predicate")):
        yield Finding("retry-same", route.where)


def _cluster(door: Door, cluster: Json, where: str, route: str) -> Iterator[Finding]:
    sources = _sources(cluster)
    if at(cluster, "type") == "ORIGINAL_DST":
        header = str(at(cluster, "original_dst_lb_config", "http_header_name") or _ORIGINAL_DST_HEADER)
        sources = [{"header": header}]
        yield Finding("original-dst", where, "ORIGINAL_DST")
    elif sources is None:
        if hashing.algorithm(cluster) is None and not hashing.is_read(door, str(at(cluster, "name"))):
            yield Finding("not-steered", where, route)
    elif at(cluster, "common_lb_config", "locality_weighted_lb_config") is not None:
        yield Finding("locality-weights", where)
    for source in sources or []:
        yield from _source(door, source, where)
    limit = breaker(cluster, "max_connections", "max_pending_requests", "max_requests")
    if limit < BREAKER_MIN:
        yield Finding("breaker-endpoints", where, str(limit))
    options = at(cluster, "typed_extension_protocol_options", _OPTIONS)
    if at(options, "explicit_http_config", "http2_protocol_options") is None:
        idle_s = seconds(at(options, "common_http_protocol_options", "idle_timeout"), 3600.0)
        if idle_s >= _UVICORN_S or idle_s <= 0:
            yield Finding("keep-alive", where, f"idle_timeout: {idle_s:g} s")


def _sources(cluster: Json) -> list[Json] | None:
    """Where override_host reads the endpoint from; None without override_host."""
    for policy in each(cluster, "load_balancing_policy", "policies"):
        config = at(policy, "typed_extension_config", "typed_config")
        if type_of(config) == "OverrideHost":
            return each(config, "override_host_sources")
    return None


def _source(door: Door, source: Json, where: str) -> Iterator[Finding]:
    namespace, header = at(source, "metadata", "key"), at(source, "header")
    for asking in door.askings:
        if isinstance(namespace, str) and namespace not in _received(asking):
            yield Finding("metadata-dropped", asking.where, f"{where} reads {namespace}")
        if isinstance(header, str) and not guards.may_set(asking, header.lower()):
            yield Finding("header-dropped", asking.where, f"{where} reads {header}")
    if isinstance(header, str) and not all(guards.scrubs(door, one, header.lower()) for one in door.askings):
        yield Finding("spoof", door.where, header)


def _received(asking: Asking) -> list[Any]:
    found = at(asking.value, "metadata_options", "receiving_namespaces", "untyped")
    return found if isinstance(found, list) else []
