"""Asked: the rules about the cluster of kvring processes. Called by: traps.find."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.traps.finding import Finding
from extproc.traps.reading import Json, Setup, at, each

__all__ = ["BREAKER_MIN", "breaker", "findings"]

BREAKER_MIN = 10_000
"""A breaker below this may bind in a fleet of a few hundred GPUs."""

_BREAKER_DEFAULT = 1024
_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def findings(setup: Setup) -> Iterator[Finding]:
    """What is wrong with the clusters that filters ask."""
    for name, where in sorted(_asked(setup)):
        cluster = setup.clusters.get(name)
        if cluster is not None:
            yield from _cluster(cluster, f"cluster {name}")
        elif setup.whole:
            yield Finding("no-cluster", where, name)


def breaker(cluster: Json, *keys: str) -> int:
    """The lowest of these limits for requests of default priority [count]."""
    thresholds = [
        one for one in each(cluster, "circuit_breakers", "thresholds") if at(one, "priority") != "HIGH"
    ]
    found = [at(one, key) for one in thresholds[:1] for key in keys] or [None]
    return min(value if isinstance(value, int) else _BREAKER_DEFAULT for value in found)


def _asked(setup: Setup) -> set[tuple[str, str]]:
    """(cluster name, where it is first named)."""
    named: dict[str, str] = {}
    for door in setup.doors:
        for asking in door.askings:
            name = at(asking.value, "grpc_service", "envoy_grpc", "cluster_name")
            if isinstance(name, str):
                named.setdefault(name, asking.where)
    return set(named.items())


def _cluster(cluster: Json, where: str) -> Iterator[Finding]:
    limit = breaker(cluster, "max_requests", "max_pending_requests")
    if limit < BREAKER_MIN:
        yield Finding("breaker-kvring", where, str(limit))
    http = at(cluster, "typed_extension_protocol_options", _OPTIONS) or {}
    config = at(http, "explicit_http_config") or at(http, "use_downstream_protocol_config") or {}
    http2 = at(config, "http2_protocol_options")
    if http2 is None:
        http2 = at(cluster, "http2_protocol_options")  # as before Envoy 1.17, and in Istio's dumps
    if http2 is None and at(http, "auto_config") is None:
        yield Finding("not-http2", where)
    if at(http2, "connection_keepalive", "interval"):
        yield Finding("pings", where, f"interval: {at(http2, 'connection_keepalive', 'interval')}")
    yield from _health(cluster, where)


def _health(cluster: Json, where: str) -> Iterator[Finding]:
    checks = each(cluster, "health_checks")
    if not checks:
        yield Finding("unchecked", where)
    for check in checks:
        if not any(key in check for key in ("grpc_health_check", "http_health_check")):
            yield Finding("unchecked", where, "tcp_health_check")
        if at(check, "no_traffic_interval") is None:
            yield Finding("slow-recovery", where, "no_traffic_interval: 60 s")
    panic = at(cluster, "common_lb_config", "healthy_panic_threshold")
    if checks and (panic is None or at(panic, "value")):
        yield Finding("panic", where, f"{at(panic, 'value') if panic else 50} %")
