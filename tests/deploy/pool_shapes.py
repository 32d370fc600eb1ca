"""Pool shapes: Envoy as gateways program it around an InferencePool, from the files in envoy/inferencepool/.

    pool_shapes.ai_gateway(documents, fleet)    choice by header, ORIGINAL_DST; TLS to the picker, unverified
    pool_shapes.agentgateway(documents, fleet)  choice by header, of the pool's own; TLS, unverified
    pool_shapes.istio(documents, fleet)         choice by metadata; plaintext

As in `shapes`, no control plane runs: what each makes of a pool was read in its source and documentation
(Istio 1.30, Envoy AI Gateway 1.1, agentgateway 1.4). agentgateway is no Envoy at all; its shape is an Envoy
told to do what it does: ask in full duplex, take one address from the header, and no other.
"""

from __future__ import annotations

from typing import Any

from tests.deploy import shapes

__all__ = ["agentgateway", "ai_gateway", "istio"]

_HEADER = "x-gateway-destination-endpoint"
_ENVOY = "type.googleapis.com/envoy"
_DUPLEX = {
    "request_header_mode": "SEND",
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_header_mode": "SEND",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "response_trailer_mode": "SEND",
}
_UNVERIFIED = {
    "name": "envoy.transport_sockets.tls",
    "typed_config": {
        "@type": f"{_ENVOY}.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {"validation_context": {}},
    },
}


def ai_gateway(documents: list[dict[str, Any]], fleet: shapes.Fleet) -> dict[str, Any]:
    """Envoy AI Gateway on Envoy Gateway: it connects wherever the header says, and fails closed."""
    serving = {
        "name": "httproute/llm/llm/rule/0",
        "type": "ORIGINAL_DST",
        "connect_timeout": "10s",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": _HEADER},
    }
    asked = _picker(documents, fleet, tls=True) | {"lb_policy": "LEAST_REQUEST", "connect_timeout": "10s"}
    del asked["circuit_breakers"]  # it sets none: Envoy's default of 1024 holds
    config = _config(documents, serving, asked, fail_open=False)
    shapes.scrub(config, shapes.only(documents, "ClientTrafficPolicy")["spec"])
    return config


def agentgateway(documents: list[dict[str, Any]], fleet: shapes.Fleet) -> dict[str, Any]:
    """agentgateway: of the pool's endpoints the one in the header."""
    serving = shapes.cluster("vllm.llm", fleet.endpoints)
    serving["load_balancing_policy"] = shapes.override_host([{"header": _HEADER}])
    asked = _picker(documents, fleet, tls=True)
    return _config(documents, serving, asked, fail_open=_fails_open(documents))


def istio(documents: list[dict[str, Any]], fleet: shapes.Fleet) -> dict[str, Any]:
    """Istio's gateway: of the pool's endpoints the one in the metadata."""
    serving = shapes.cluster("outbound|54321||vllm-ip.llm.svc.cluster.local", fleet.endpoints)
    path = [{"key": _HEADER}]
    serving["load_balancing_policy"] = shapes.override_host([{"metadata": {"key": "envoy.lb", "path": path}}])
    asked = _picker(documents, fleet, tls=False)
    limits = shapes.only(documents, "DestinationRule")["spec"]["trafficPolicy"]["connectionPool"]["http"]
    asked["circuit_breakers"]["thresholds"][0] |= {
        "max_requests": limits["http2MaxRequests"],
        "max_pending_requests": limits["http1MaxPendingRequests"],
    }
    config = _config(documents, serving, asked, fail_open=_fails_open(documents))
    _filter(config)["metadata_options"] = {
        "forwarding_namespaces": {"untyped": ["envoy.lb"]},
        "receiving_namespaces": {"untyped": ["envoy.lb"]},
    }
    return config


def _fails_open(documents: list[dict[str, Any]]) -> bool:
    reference = shapes.only(documents, "InferencePool")["spec"]["endpointPickerRef"]
    return reference["failureMode"] == "FailOpen"


def _picker(documents: list[dict[str, Any]], fleet: shapes.Fleet, *, tls: bool) -> dict[str, Any]:
    name = shapes.only(documents, "InferencePool")["spec"]["endpointPickerRef"]["name"]
    found = shapes.cluster(f"picker/{name}", fleet.kvring, http2=True)
    return found | ({"transport_socket": _UNVERIFIED} if tls else {})


def _config(
    documents: list[dict[str, Any]], serving: dict[str, Any], asked: dict[str, Any], *, fail_open: bool
) -> dict[str, Any]:
    (rule,) = shapes.only(documents, "HTTPRoute")["spec"]["rules"]
    route = {
        "name": "llm",
        "match": {"path_separated_prefix": rule["matches"][0]["path"]["value"].rstrip("/")},
        "route": {"cluster": serving["name"], "timeout": rule["timeouts"]["request"]},
    }
    config = shapes.bootstrap([route], [serving, asked])
    shapes.manager(config)["http_filters"].insert(0, {
        "name": "envoy.filters.http.ext_proc/picker",
        "typed_config": {
            "@type": f"{_ENVOY}.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": asked["name"]}},
            "processing_mode": _DUPLEX,
            "message_timeout": "300s",
            "failure_mode_allow": fail_open,
        },
    })  # fmt: skip
    return config


def _filter(config: dict[str, Any]) -> dict[str, Any]:
    return shapes.manager(config)["http_filters"][0]["typed_config"]
