"""Shapes: Envoy as a control plane would program it from the Kubernetes files in envoy/.

Not the control planes themselves: what their documentation and the files' own patches say, put around the
same routes and clusters that they make. So a patch that Envoy would refuse, or that would not steer, is found
here; a change in how a control plane names things is not.

    shapes.istio(documents, shapes.Fleet(["127.0.0.1:8000"], "127.0.0.1:9002"))  -> a bootstrap
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from extproc.bootstrap import address

__all__ = [
    "Fleet",
    "bare",
    "bootstrap",
    "cluster",
    "envoy_gateway",
    "istio",
    "manager",
    "only",
    "override_host",
    "scrub",
]

_ENVOY = "type.googleapis.com/envoy"
_HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_MANY = 4294967295
_BODY_MODES = {"BufferedPartial": "BUFFERED_PARTIAL", "Buffered": "BUFFERED", "Streamed": "STREAMED"}


@dataclass(frozen=True)
class Fleet:
    """Addresses of the endpoints, of kvring processes, and of the health port they share, "" for none."""

    endpoints: list[str]
    kvring: list[str]
    health: str = ""


def only(documents, kind, name=None):
    """The one document of this kind (and name)."""
    (found,) = [
        one for one in documents if one["kind"] == kind and name in {None, one["metadata"]["name"]}
    ]  # fmt: skip
    return found


# ---- Istio ----


def istio(documents: list[dict[str, Any]], fleet: Fleet) -> dict[str, Any]:
    """The gateway (or sidecar) whose EnvoyFilter, VirtualService and DestinationRules these are."""
    (rule,) = only(documents, "VirtualService")["spec"]["http"]
    host = rule["route"][0]["destination"]["host"]
    model, picker = (
        only(documents, "DestinationRule", name)["spec"]["trafficPolicy"] for name in ("vllm", "kvring")
    )
    serving = cluster(f"outbound|8000||{host}", fleet.endpoints)
    serving |= {"lb_policy": model["loadBalancer"]["simple"], "connect_timeout": "10s"}
    if model["loadBalancer"].get("localityLbSetting", {}).get("enabled", True):
        serving["common_lb_config"] = {"locality_weighted_lb_config": {}}
    serving["typed_extension_protocol_options"][_HTTP]["common_http_protocol_options"] = {
        "idle_timeout": model["connectionPool"]["http"]["idleTimeout"]
    }
    asked = cluster("outbound|9002||kvring.llm.svc.cluster.local", fleet.kvring, http2=True)
    asked["circuit_breakers"]["thresholds"][0] |= {
        "max_requests": picker["connectionPool"]["http"]["http2MaxRequests"],
        "max_pending_requests": picker["connectionPool"]["http"]["http1MaxPendingRequests"],
    }
    retries = rule["retries"]
    route = {
        "name": rule["name"],
        "match": {"prefix": "/"},
        "route": {
            "cluster": serving["name"],
            "timeout": rule.get("timeout", "0s"),
            "retry_policy": {
                "retry_on": retries["retryOn"],
                "num_retries": retries["attempts"],
                "retry_host_predicate": [{
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {
                        "@type": f"{_ENVOY}.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
                }],
                "host_selection_retry_max_attempts": "5",
            },
        },
    }  # fmt: skip
    other = {"name": "other", "match": {"path": "/other"}, "direct_response": {"status": 204}}
    config = bootstrap([other, route], [serving, asked])
    for patch in only(documents, "EnvoyFilter")["spec"]["configPatches"]:
        _patch(config, patch)
    return config


def _patch(config: dict[str, Any], patch: dict[str, Any]) -> None:
    match, value = patch["match"], patch["patch"]["value"]
    found = manager(config)
    match patch["applyTo"], patch["patch"]["operation"]:
        case "HTTP_FILTER", "INSERT_BEFORE":
            before = match["listener"]["filterChain"]["filter"]["subFilter"]["name"]
            names = [one["name"] for one in found["http_filters"]]
            found["http_filters"].insert(names.index(before), copy.deepcopy(value))
        case "HTTP_ROUTE", "MERGE":
            wanted = match["routeConfiguration"]["vhost"]["route"]["name"]
            routes = found["route_config"]["virtual_hosts"][0]["routes"]
            _merge_into(next(one for one in routes if one["name"] == wanted), value)
        case "CLUSTER", "MERGE":
            wanted = f"outbound|{match['cluster']['portNumber']}||{match['cluster']['service']}"
            clusters = config["static_resources"]["clusters"]
            _merge_into(next(one for one in clusters if one["name"] == wanted), value)
        case unknown:
            raise AssertionError(f"no such patch here: {unknown}")


def _merge_into(target: dict[str, Any], value: dict[str, Any]) -> None:
    """As protobuf merges: blocks key by key, lists end to end."""
    for key, inner in value.items():
        if isinstance(inner, dict) and isinstance(target.get(key), dict):
            _merge_into(target[key], inner)
        elif isinstance(inner, list) and isinstance(target.get(key), list):
            target[key] += copy.deepcopy(inner)
        else:
            target[key] = copy.deepcopy(inner)


# ---- Envoy Gateway ----


def envoy_gateway(documents: list[dict[str, Any]], fleet: Fleet) -> dict[str, Any]:
    """The proxy of a Gateway with these policies, and EnvoyPatchPolicy if there is one."""
    extension = only(documents, "EnvoyExtensionPolicy")["spec"]["extProc"][0]
    traffic = only(documents, "BackendTrafficPolicy")["spec"]
    client = only(documents, "ClientTrafficPolicy")["spec"]
    serving = cluster("httproute/llm/llm/rule/0", fleet.endpoints)
    serving["circuit_breakers"] = _breakers(traffic["circuitBreaker"])
    idle = {"idle_timeout": traffic["timeout"]["http"]["connectionIdleTimeout"]}
    serving["typed_extension_protocol_options"][_HTTP]["common_http_protocol_options"] = idle
    sources = [
        {"header": one["header"]} for one in traffic["loadBalancer"]["endpointOverride"]["extractFrom"]
    ]
    serving["load_balancing_policy"] = override_host(sources)
    asked = cluster("envoyextensionpolicy/llm/kvring/extproc/0", fleet.kvring, http2=True)
    asked["circuit_breakers"] = _breakers(extension["backendSettings"]["circuitBreaker"])
    name = "envoy.filters.http.ext_proc/envoyextensionpolicy/llm/kvring/extproc/0"
    on = {"@type": f"{_ENVOY}.config.route.v3.FilterConfig", "config": {}}
    route = {
        "name": "httproute/llm/llm/rule/0/match/0/*",
        "match": {"path_separated_prefix": "/v1"},
        "route": {
            "cluster": serving["name"],
            "timeout": traffic["timeout"]["http"]["requestTimeout"],
            "retry_policy": {
                "num_retries": traffic["retry"]["numRetries"],
                "retry_on": ",".join(traffic["retry"]["retryOn"]["triggers"]),
            },
        },
        "typed_per_filter_config": {name: on},
    }
    config = bootstrap([route], [serving, asked])
    scrub(config, client)
    asking = {"name": name, "disabled": True, "typed_config": _asking(extension)}
    manager(config)["http_filters"].insert(0, asking)
    for one in documents:
        if one["kind"] == "EnvoyPatchPolicy":
            for patch in one["spec"]["jsonPatches"]:
                target = next(c for c in (serving, asked) if c["name"] == patch["name"])
                assert patch["operation"]["op"] == "add"
                target[patch["operation"]["path"].removeprefix("/")] = patch["operation"]["value"]
    return config


def scrub(config: dict[str, Any], client: dict[str, Any]) -> None:
    """What the `spec` of a ClientTrafficPolicy does: limits, and headers of clients that are removed."""
    limit = client["connection"]["bufferLimit"]
    config["static_resources"]["listeners"][0]["per_connection_buffer_limit_bytes"] = (
        int(limit.removesuffix("Mi")) << 20
    )
    found = manager(config)
    found["stream_idle_timeout"] = _seconds(client["timeout"]["http"]["streamIdleTimeout"])
    removed = client.get("headers", {}).get("earlyRequestHeaders", {}).get("remove", [])
    if removed:
        found["early_header_mutation_extensions"] = [{
            "name": "envoy.http.early_header_mutation.header_mutation",
            "typed_config": {
                "@type": f"{_ENVOY}.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                "mutations": [{"remove": header} for header in removed],
            },
        }]  # fmt: skip


def _asking(extension: dict[str, Any]) -> dict[str, Any]:
    request = extension["processingMode"]["request"]
    metadata = extension.get("metadata", {})
    return {
        "@type": f"{_ENVOY}.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {
            "envoy_grpc": {"cluster_name": "envoyextensionpolicy/llm/kvring/extproc/0"},
            "timeout": "10s",
        },
        "failure_mode_allow": extension.get("failOpen", False),
        "message_timeout": _seconds(extension.get("messageTimeout", "200ms")),
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SKIP",
            "request_body_mode": _BODY_MODES[request["body"]],
        },
        "request_attributes": request["attributes"],
        "metadata_options": {"receiving_namespaces": {"untyped": metadata.get("writableNamespaces", [])}},
    }


def _breakers(limits: dict[str, int]) -> dict[str, Any]:
    return {"thresholds": [{
        "max_connections": limits["maxConnections"],
        "max_pending_requests": limits["maxPendingRequests"],
        "max_requests": limits["maxParallelRequests"],
    }]}  # fmt: skip


def _seconds(text: str) -> str:
    """A Gateway API duration in Envoy's form."""
    for unit, factor in (("ms", 0.001), ("h", 3600), ("m", 60), ("s", 1)):
        if text.endswith(unit):
            return f"{float(text.removesuffix(unit)) * factor:g}s"
    raise AssertionError(text)


# ---- both ----


def bootstrap(routes: list[dict[str, Any]], clusters: list[dict[str, Any]]) -> dict[str, Any]:
    manager = {
        "@type": f"{_ENVOY}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "llm",
        "use_remote_address": True,
        "http_filters": [{
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": f"{_ENVOY}.extensions.filters.http.router.v3.Router"},
        }],
        "route_config": {"name": "llm", "virtual_hosts": [{
            "name": "llm", "domains": ["*"], "routes": routes,
            "response_headers_to_add": [
                {"header": {"key": "x-kvring-endpoint", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}],
        }]},
    }  # fmt: skip
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {
        "admin": {"address": address.parse("127.0.0.1:0", port_min=0).envoy()},
        "static_resources": {
            "listeners": [{
                "name": "llm",
                "address": address.parse("127.0.0.1:0", port_min=0).envoy(),
                "filter_chains": [chain],
            }],
            "clusters": clusters,
        },
    }  # fmt: skip


def manager(config: dict[str, Any]) -> dict[str, Any]:
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
    return chain["filters"][0]["typed_config"]


def cluster(name: str, addresses: list[str], *, http2: bool = False) -> dict[str, Any]:
    protocol = {"http2_protocol_options": {}} if http2 else {"http_protocol_options": {}}
    hosts = [{"endpoint": {"address": address.parse(one).envoy()}} for one in addresses]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [{
            "max_connections": _MANY, "max_pending_requests": _MANY, "max_requests": _MANY}]},
        "typed_extension_protocol_options": {_HTTP: {
            "@type": f"{_ENVOY}.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": protocol}},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]},
    }  # fmt: skip


def override_host(sources: list[dict[str, Any]]) -> dict[str, Any]:
    policies = f"{_ENVOY}.extensions.load_balancing_policies"
    fallback = {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {"@type": f"{policies}.least_request.v3.LeastRequest"},
    }
    return {"policies": [{"typed_extension_config": {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": f"{policies}.override_host.v3.OverrideHost",
            "override_host_sources": sources,
            "fallback_policy": {"policies": [{"typed_extension_config": fallback}]},
        },
    }}]}  # fmt: skip


# ---- bare Envoy ----


def bare(text: str, fleet: Fleet, folder: Path) -> dict[str, Any]:
    """A file of envoy/ with addresses of a test: nothing else in it changes, but that it tells who served."""
    config = yaml.safe_load(text)
    config["admin"]["address"]["socket_address"]["port_value"] = 0
    listener = config["static_resources"]["listeners"][0]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    manager(config)["route_config"]["virtual_hosts"][0]["response_headers_to_add"] = [
        {"header": {"key": "x-kvring-endpoint", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}
    ]
    serving, asked = config["static_resources"]["clusters"]
    hosts = [{"endpoint": {"address": address.parse(one).envoy()}} for one in fleet.endpoints]
    if serving["type"] == "EDS":
        resource = {"@type": f"{_ENVOY}.config.endpoint.v3.ClusterLoadAssignment", "cluster_name": "llm",
                    "endpoints": [{"lb_endpoints": hosts}]}  # fmt: skip
        path = folder / "endpoints.yaml"
        path.write_text(yaml.safe_dump({"version_info": "1", "resources": [resource]}))
        serving["eds_cluster_config"]["eds_config"]["path_config_source"] = {"path": str(path)}
    else:
        serving["load_assignment"]["endpoints"] = [{"lb_endpoints": hosts}]
    health = {"address": address.parse(fleet.health).envoy()} if fleet.health else {}
    asked["load_assignment"]["endpoints"] = [{"lb_endpoints": [
        {"endpoint": {"address": address.parse(one).envoy(), "health_check_config": health}}
        for one in fleet.kvring
    ]}]  # fmt: skip
    return config
