"""Transport: TLS as Envoy's transport sockets, towards clients and towards kvring.

kvring's health port is plaintext whatever its ext_proc port is, so a cluster with TLS has a second, plaintext
socket for health checks alone.

Invariant: a certificate is checked only where there is something to check it by, and then always.
Called by: listener, cluster. Why each setting is: bootstrap.reasons.
Source: https://www.envoyproxy.io/docs/envoy/v1.40.0/api-v3/extensions/transport_sockets/tls/v3/tls.proto
"""

from __future__ import annotations

from typing import Any

from extproc.bootstrap.values import Tls

__all__ = ["PLAINTEXT_CHECK", "downstream", "typed", "upstream"]

PLAINTEXT_CHECK: dict[str, Any] = {"transport_socket_match_criteria": {"plaintext": True}}
"""Makes a health check take the plaintext socket of `upstream`."""


def typed(type_name: str, **fields: Any) -> dict[str, Any]:
    """A `google.protobuf.Any` in JSON form: the message `type_name` below `envoy.`, with `fields`."""
    return {"@type": f"type.googleapis.com/envoy.{type_name}", **fields}


def downstream(tls: Tls) -> dict[str, Any]:
    """The socket for clients; with `ca_path` they need certificates too."""
    fields: dict[str, Any] = {"common_tls_context": _context(tls, ["h2", "http/1.1"])}
    if tls.ca_path:
        fields["require_client_certificate"] = True
    return _socket("DownstreamTlsContext", fields)


def upstream(tls: Tls) -> dict[str, Any]:
    """The cluster's fields: TLS for streams, plaintext for health checks."""
    fields: dict[str, Any] = {"common_tls_context": _context(tls, ["h2"])}
    if tls.server_name:
        fields["sni"] = tls.server_name
    plaintext = {
        "name": "envoy.transport_sockets.raw_buffer",
        "typed_config": typed("extensions.transport_sockets.raw_buffer.v3.RawBuffer"),
    }
    return {
        "transport_socket": _socket("UpstreamTlsContext", fields),
        "transport_socket_matches": [
            {"name": "health", "match": {"plaintext": True}, "transport_socket": plaintext}
        ],
    }


def _socket(type_name: str, fields: dict[str, Any]) -> dict[str, Any]:
    config = typed(f"extensions.transport_sockets.tls.v3.{type_name}", **fields)
    return {"name": "envoy.transport_sockets.tls", "typed_config": config}


def _context(tls: Tls, alpn: list[str]) -> dict[str, Any]:
    context: dict[str, Any] = {
        "alpn_protocols": alpn,
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
    }
    if tls.cert_path:
        pair = {"certificate_chain": {"filename": tls.cert_path}, "private_key": {"filename": tls.key_path}}
        context["tls_certificates"] = [pair]
    if tls.ca_path:
        check: dict[str, Any] = {"trusted_ca": {"filename": tls.ca_path}}
        if tls.server_name:
            name = {"san_type": "DNS", "matcher": {"exact": tls.server_name}}
            check["match_typed_subject_alt_names"] = [name]
        context["validation_context"] = check
    return context
