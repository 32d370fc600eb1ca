"""Listener: the door clients connect to, as Envoy's `listener.v3.Listener`, and its pieces.

Order of things on a request: a client's own destination header is removed before anything else runs;
ext_proc asks kvring, which answers with dynamic metadata only; the router picks the endpoint named there.
Steered by hash, kvring may set one header, which the route's hash policy reads.

Invariant: no part of a request can steer, only kvring's answer can. No retry policy in full duplex: Envoy
1.40 then sends the body of a request with trailers twice (envoy#46095; tests/envoy/test_duplex.py).
Called by: bootstrap. Why each setting is as it is: bootstrap.reasons, printed beside it.
Source: https://www.envoyproxy.io/docs/envoy/v1.40.0/configuration/http/http_filters/ext_proc_filter
"""

from __future__ import annotations

from typing import Any

from extproc.bootstrap import address, transport
from extproc.bootstrap.transport import typed
from extproc.bootstrap.values import Listener, Steering
from extproc.protocol import BodyMode

__all__ = ["DESTINATION", "HASH", "early_header_mutation", "ext_proc", "listener", "route", "seconds"]

DESTINATION = "x-gateway-destination-endpoint"
"""Key under which kvring names the endpoint, in metadata `envoy.lb`; the Endpoint Picker Protocol's."""

HASH = "x-kvring-hash"
"""Header by which Envoy's own hashing chooses; a gateway's consistent hashing by header can read it too."""

_BUFFERED = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
_SECRET_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie")


def seconds(value: float) -> str:
    """A `google.protobuf.Duration` in JSON form, to the millisecond."""
    return f"{value:.3f}".rstrip("0").rstrip(".") + "s"


def listener(spec: Listener) -> dict[str, Any]:
    """The listener of `spec`; its routes lead to the cluster of the same name."""
    return {
        "name": spec.name,
        "address": address.parse(spec.listen, port_min=0).envoy(),
        "filter_chains": [
            {
                "filters": [
                    {"name": "envoy.filters.network.http_connection_manager", "typed_config": _manager(spec)}
                ],
                **({"transport_socket": transport.downstream(spec.tls)} if spec.tls else {}),
            }
        ],
    }


def early_header_mutation(steering: Steering | None) -> dict[str, Any]:
    """The extension that removes a client's own steering headers before any filter runs."""
    removed = [DESTINATION, HASH] if steering and steering.hash else [DESTINATION]
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": typed(
            "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            mutations=[{"remove": header} for header in removed],
        ),
    }


def ext_proc(steering: Steering) -> dict[str, Any]:
    """The HTTP filter that asks kvring about each request."""
    fields: dict[str, Any] = {
        "stat_prefix": "kvring",
        "grpc_service": {"envoy_grpc": {"cluster_name": steering.cluster_name}},
        "failure_mode_allow": steering.fail_open,
    }
    if not steering.fail_open:
        fields["status_on_error"] = {"code": "ServiceUnavailable"}
    fields |= {
        "message_timeout": seconds(steering.message_timeout_s),
        "allow_content_length_header": True,
        "processing_mode": _processing_mode(steering),
        "request_attributes": ["xds.cluster_name", "xds.route_name", "request.id"],
        "forward_rules": {
            "disallowed_headers": {"patterns": [{"exact": header} for header in _SECRET_HEADERS]}
        },
        "metadata_options": _metadata(steering),
        "mutation_rules": {
            "disallow_all": True,
            **({"allow_expression": {"regex": HASH}} if steering.hash else {}),
        },
    }
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": typed("extensions.filters.http.ext_proc.v3.ExternalProcessor", **fields),
    }


def route(spec: Listener) -> dict[str, Any]:
    """The only route: everything goes to the endpoints, retried elsewhere when that is safe."""
    action: dict[str, Any] = {"cluster": spec.name, "timeout": "0s"}
    if spec.steering and spec.steering.hash:
        action["hash_policy"] = [{"header": {"header_name": HASH}, "terminal": True}]
    if not (spec.steering and spec.steering.is_duplex):
        action["retry_policy"] = _retry_policy()
    return {
        "name": spec.name,
        "match": {"prefix": "/"},
        "request_body_buffer_limit": spec.body_bytes_max,
        "route": action,
    }


def _retry_policy() -> dict[str, Any]:
    return {
        "retry_on": "5xx,reset,connect-failure,refused-stream",
        "num_retries": 2,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": typed("extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"),
            }
        ],
        "host_selection_retry_max_attempts": 20,
    }


def _manager(spec: Listener) -> dict[str, Any]:
    virtual_host: dict[str, Any] = {"name": spec.name, "domains": ["*"], "routes": [route(spec)]}
    told = {}
    if spec.expose_endpoint:
        told["x-kvring-endpoint"] = "%UPSTREAM_REMOTE_ADDRESS%"
    if spec.expose_decision:
        told["x-kvring-decision"] = "%DYNAMIC_METADATA(envoy.lb:x-kvring-decision)%"
    if told:
        virtual_host["response_headers_to_add"] = [
            {"header": {"key": name, "value": value}} for name, value in told.items()
        ]
    filters = [ext_proc(spec.steering)] if spec.steering else []
    filters.append(
        {
            "name": "envoy.filters.http.router",
            "typed_config": typed("extensions.filters.http.router.v3.Router"),
        }
    )
    fields: dict[str, Any] = {
        "stat_prefix": spec.name,
        "use_remote_address": True,
        "preserve_external_request_id": True,
        "request_headers_timeout": "30s",
        "request_timeout": "600s",
        "stream_idle_timeout": "3600s",
        "early_header_mutation_extensions": [early_header_mutation(spec.steering)],
        "http_filters": filters,
        "route_config": {"name": spec.name, "virtual_hosts": [virtual_host]},
    }
    if spec.access_log_path:
        key = HASH if spec.steering and spec.steering.hash else DESTINATION
        fields["access_log"] = [_access_log(spec.access_log_path, key)]
    return typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        **fields,
    )


def _processing_mode(steering: Steering) -> dict[str, str]:
    request, response = steering.body_mode, steering.response_body_mode
    mode = {
        "request_header_mode": "SEND",
        "response_header_mode": "SKIP",
        "request_body_mode": request.name,
    }
    if request is BodyMode.FULL_DUPLEX_STREAMED:
        mode["request_trailer_mode"] = "SEND"
    if response is not BodyMode.NONE:
        mode["response_header_mode"] = "SEND"
        mode["response_body_mode"] = response.name
    counts = steering.hash is None and request not in _BUFFERED
    if counts or response is BodyMode.FULL_DUPLEX_STREAMED:
        mode["response_trailer_mode"] = "SEND"
    return mode


def _metadata(steering: Steering) -> dict[str, Any]:
    spaces: dict[str, Any] = {"receiving_namespaces": {"untyped": ["envoy.lb"]}}
    if steering.response_body_mode is not BodyMode.NONE:
        spaces["forwarding_namespaces"] = {"untyped": ["envoy.lb"]}
    return spaces


def _access_log(path: str, key: str) -> dict[str, Any]:
    line = {
        "time": "%START_TIME%",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "status": "%RESPONSE_CODE%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "flags": "%RESPONSE_FLAGS%",
        "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "picked": f"%DYNAMIC_METADATA(envoy.lb:{key})%",
        "served": "%UPSTREAM_REMOTE_ADDRESS%",
        "bytes_received": "%BYTES_RECEIVED%",
        "bytes_sent": "%BYTES_SENT%",
        "duration_ms": "%DURATION%",
    }
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": typed(
            "extensions.access_loggers.file.v3.FileAccessLog",
            path=path,
            log_format={"json_format": line},
        ),
    }
