"""Cluster: a group of hosts Envoy connects to: the endpoints, or the kvring processes.

Endpoints of a steered listener are chosen by override_host, which takes the "ip:port" kvring left in the
metadata, and falls back to LEAST_REQUEST when there is none (kvring silent, down, or no opinion) or when
it names no host of this cluster. Where Envoy's own hashing is to choose, it takes the header kvring set, and
Envoy checks health itself. Endpoints of a plain listener are taken in turn.

Invariant: breakers never bind before the machine does; an open breaker on kvring's cluster would leave
requests unsteered without a sign. Called by: bootstrap. Why each setting is: bootstrap.reasons.
Source: https://www.envoyproxy.io/docs/envoy/v1.40.0/configuration/upstream (override_host, breakers)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from extproc.bootstrap import address, transport
from extproc.bootstrap.listener import DESTINATION
from extproc.bootstrap.transport import typed
from extproc.bootstrap.values import Listener, Sidecar, Steering
from extproc.protocol import BodyMode

__all__ = ["endpoints", "sidecars"]

_HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_HTTP_TYPE = "extensions.upstreams.http.v3.HttpProtocolOptions"
_MANY = 100_000
_RING_POINTS = 65_536
_MAGLEV_SLOTS = 65_537  # a prime, as it must be


def endpoints(spec: Listener) -> dict[str, Any]:
    """The cluster of a listener's endpoints, named like the listener."""
    parsed = [(each.name, address.parse(each.address)) for each in spec.endpoints]
    return {
        "name": spec.name,
        **(_eds(spec) if spec.endpoints_path else _discovery(where for _, where in parsed)),
        "connect_timeout": "2s",
        **_balancing(spec),
        "circuit_breakers": _breakers(retry_budget=True),
        "upstream_connection_options": {
            "tcp_keepalive": {"keepalive_time": 60, "keepalive_interval": 10, "keepalive_probes": 3}
        },
        "typed_extension_protocol_options": {
            _HTTP: typed(
                _HTTP_TYPE,
                common_http_protocol_options={"idle_timeout": "4s"},
                explicit_http_config={"http_protocol_options": {}},
            )
        },
        **({} if spec.endpoints_path else {"load_assignment": _assignment(spec, parsed)}),
    }


def sidecars(steering: Steering) -> dict[str, Any]:
    """The cluster of kvring processes, each an endpoint of its own, checked once a second."""
    parsed = [(each, address.parse(each.address)) for each in steering.sidecars]
    by_grpc = all(each.health_port for each in steering.sidecars)
    tls = transport.upstream(steering.tls) if steering.tls else {}
    return {
        "name": steering.cluster_name,
        **_discovery(where for _, where in parsed),
        "connect_timeout": "0.25s",
        "lb_policy": "ROUND_ROBIN",
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}, "update_merge_window": "0s"},
        "circuit_breakers": _breakers(retry_budget=False),
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                **(
                    {"grpc_health_check": {"service_name": "readiness"}}
                    if by_grpc
                    else {"tcp_health_check": {}}
                ),
                **(transport.PLAINTEXT_CHECK if tls else {}),
            }
        ],
        **tls,
        "typed_extension_protocol_options": {
            _HTTP: typed(_HTTP_TYPE, explicit_http_config={"http2_protocol_options": _http2(steering)})
        },
        "load_assignment": {
            "cluster_name": steering.cluster_name,
            "endpoints": [
                {"lb_endpoints": [{"endpoint": _sidecar(*pair, by_grpc=by_grpc)} for pair in parsed]}
            ],
        },
    }


def _assignment(spec: Listener, parsed: Sequence[tuple[str, address.Address]]) -> dict[str, Any]:
    hashes = spec.steering is not None and spec.steering.hash is not None
    hosts: list[dict[str, Any]] = []
    for name, where in parsed:
        hosts.append({"endpoint": {"hostname": name, "address": where.envoy()}})
        if hashes and not where.is_dns:  # several endpoints behind one name must not share its place
            hosts[-1]["metadata"] = {"filter_metadata": {"envoy.lb": {"hash_key": name}}}
    return {"cluster_name": spec.name, "endpoints": [{"lb_endpoints": hosts}]}


def _eds(spec: Listener) -> dict[str, Any]:
    directory = spec.endpoints_path.rpartition("/")[0] or "."
    source = {"path": spec.endpoints_path, "watched_directory": {"path": directory}}
    return {
        "type": "EDS",
        "eds_cluster_config": {
            "service_name": spec.name,
            "eds_config": {"path_config_source": source, "resource_api_version": "V3"},
        },
    }


def _http2(steering: Steering) -> dict[str, Any]:
    if steering.body_mode is not BodyMode.FULL_DUPLEX_STREAMED:
        return {}
    return {"connection_keepalive": {"connection_idle_interval": "1s", "timeout": "1s"}}


def _sidecar(spec: Sidecar, where: address.Address, *, by_grpc: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"address": where.envoy()}
    if by_grpc and where.path:
        found["health_check_config"] = {"address": address.Address("127.0.0.1", spec.health_port).envoy()}
    elif by_grpc:
        found["health_check_config"] = {"port_value": spec.health_port}
    return found


def _discovery(addresses: Iterable[address.Address]) -> dict[str, str]:
    if any(each.is_dns for each in addresses):
        return {"type": "STRICT_DNS", "dns_lookup_family": "V4_PREFERRED"}
    return {"type": "STATIC"}


def _breakers(*, retry_budget: bool) -> dict[str, Any]:
    threshold: dict[str, Any] = {
        "max_connections": _MANY,
        "max_pending_requests": _MANY,
        "max_requests": _MANY,
    }
    if retry_budget:
        threshold["retry_budget"] = {"budget_percent": {"value": 20}, "min_retry_concurrency": 10}
    return {"thresholds": [threshold]}


def _balancing(spec: Listener) -> dict[str, Any]:
    """Who chooses among the endpoints, and what that one must know."""
    if spec.steering is None:
        return {"lb_policy": "ROUND_ROBIN"}
    if spec.steering.hash is None:
        return {"load_balancing_policy": _override_host()}
    rings = {
        "RING_HASH": {"ring_hash_lb_config": {"minimum_ring_size": _RING_POINTS}},
        "MAGLEV": {"maglev_lb_config": {"table_size": _MAGLEV_SLOTS}},
    }
    return {
        "lb_policy": spec.steering.hash.algorithm,
        **rings[spec.steering.hash.algorithm],
        "common_lb_config": {
            "consistent_hashing_lb_config": {"hash_balance_factor": spec.steering.hash.balance_percent}
        },
        "health_checks": [
            {
                "timeout": "2s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }
        ],
        "outlier_detection": {
            "consecutive_5xx": 5,
            "interval": "1s",
            "base_ejection_time": "10s",
            "max_ejection_percent": 50,
            "successful_active_health_check_uneject_host": False,
        },
    }


def _override_host() -> dict[str, Any]:
    policies = "extensions.load_balancing_policies"
    fallback = {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": typed(f"{policies}.least_request.v3.LeastRequest"),
    }
    steered = {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": typed(
            f"{policies}.override_host.v3.OverrideHost",
            override_host_sources=[{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}],
            selected_host_key={"key": "envoy.lb", "path": [{"key": f"{DESTINATION}-served"}]},
            fallback_policy={"policies": [{"typed_extension_config": fallback}]},
        ),
    }
    return {"policies": [{"typed_extension_config": steered}]}
