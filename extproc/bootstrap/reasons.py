"""Reasons: why a setting of the bootstrap is as it is; the comments of the printed YAML.

Keyed by the end of a setting's path, list positions left out: "retry_policy.num_retries" speaks for that
key inside any retry policy. The longest key that fits speaks.

Invariant: every reason is printed in some bootstrap (tests/unit/test_bootstrap.py). Called by: text.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["REASONS", "reason"]

REASONS = {
    "node": "Envoy insists on a name where something comes by xDS, even from a file.",
    "admin": "Loopback only: the admin port can drain and stop Envoy.",
    "overload_manager": "Without a limit Envoy takes connections until it is out of memory.",
    "early_header_mutation_extensions": (
        "A client must not choose its endpoint: its own header is gone before kvring or an endpoint sees it."
    ),
    "use_remote_address": "An edge proxy: X-Forwarded-For is ours, x-envoy-* headers of clients are dropped.",
    "preserve_external_request_id": "Clients and engines log their own x-request-id; keep it.",
    "request_headers_timeout": "Slow headers hold no connection for long.",
    "request_timeout": "A request must have arrived within this; slow uploads of 10 MB do.",
    "stream_idle_timeout": (
        "Envoy's default of 5 min would cut a long answer that is not streamed. A peer that vanished is "
        "found by TCP keepalive, below."
    ),
    "access_log": "No bodies, no headers but the request id, no query strings.",
    "http_filters.typed_config.failure_mode_allow": (
        "kvring down, hung or wrong: true = Envoy balances by itself, false = the client gets an error."
    ),
    "status_on_error": "Clients retry a 503; Envoy's default is a 500.",
    "http_filters.typed_config.message_timeout": (
        "Longest wait for kvring, per message. kvring answers within a few milliseconds; the client's own "
        "pauses do not count (they would in STREAMED mode). Not applied in FULL_DUPLEX_STREAMED."
    ),
    "allow_content_length_header": (
        "Keeps content-length in BUFFERED_PARTIAL, else the body goes on chunked. New in Envoy 1.40: leave "
        "this line out before."
    ),
    "processing_mode": (
        "Headers must be SEND: with SKIP they leave before kvring has chosen. The end of the stream tells "
        "kvring that the request is over."
    ),
    "processing_mode.request_body_mode": (
        "BUFFERED_PARTIAL: kvring sees the body up to request_body_buffer_limit, longer ones pass with their "
        "start seen. BUFFERED answers 413 beyond it. FULL_DUPLEX_STREAMED buffers nothing, but fails open "
        "only before the first chunk."
    ),
    "processing_mode.request_trailer_mode": "Required by FULL_DUPLEX_STREAMED.",
    "processing_mode.response_trailer_mode": (
        "Keeps the stream open until the answer ends, though kvring gets no message of it: else kvring would "
        "count the request as over when its body is sent. (In BUFFERED modes Envoy keeps it open anyway.)"
    ),
    "processing_mode.response_body_mode": "The first piece of the answer tells kvring that prefill is over.",
    "forward_rules": "kvring has no use for credentials; the endpoints still get them.",
    "metadata_options": "Without this Envoy drops kvring's choice without a word.",
    "forwarding_namespaces": "With the answer's headers kvring is told which endpoint really served.",
    "mutation_rules": (
        "kvring names an endpoint in metadata and can change no header; the copy of its choice that it sets "
        "as a header, for other gateways, is dropped here."
    ),
    "mutation_rules.allow_expression": (
        "But for the hash: Envoy's hash policies read headers, and this is the one that kvring may set."
    ),
    "hash_policy": (
        "Equal prefixes, equal hashes. A request without one (no prompt; kvring down) goes to an endpoint "
        "drawn by chance. The route must not remove this header (request_headers_to_remove): it would be "
        "gone before it is read."
    ),
    "ring_hash_lb_config": (
        "The default of 1,024 points gives some of many endpoints twice as many keys as others. An endpoint "
        "more or less moves only its own keys."
    ),
    "maglev_lb_config": (
        "Slots for all endpoints, a prime: at least a hundred for each. Evener and quicker than a ring; an "
        "endpoint more or less moves a few more keys than its own."
    ),
    "lb_endpoints.metadata": "Its place on the ring is by name: a new address keeps the old one's keys.",
    "consistent_hashing_lb_config.hash_balance_factor": (
        "Per cent of the mean: an endpoint with more active requests passes its keys on, each in an order of "
        "its own. Lower spreads sooner and loses cache; 0, the default, lets a hot prefix drown its home. "
        "Each Envoy counts its own requests only."
    ),
    "health_checks.http_health_check": (
        "kvring knows no endpoints here, so Envoy must find out itself who is well; who is not loses its "
        "keys to the others until it is back."
    ),
    "outlier_detection": "Who answers only 5xx is left out for a while, though its health check is good.",
    "successful_active_health_check_uneject_host": "By default the next good check would bring it back.",
    "request_body_buffer_limit": (
        "Bytes of a body kept for kvring and for a retry (default: the connection's buffer, 1 MiB). A longer "
        "request is not retried. Memory: up to this much for each request in flight."
    ),
    "route.timeout": "Envoy's default of 15 s for a whole answer would cut most generations.",
    "retry_policy.num_retries": "Each retry is another prefill; two get past two bad endpoints.",
    "retry_host_predicate": (
        "Never the same endpoint again: it refuses the one that failed, also when kvring's choice or the "
        "fallback names it once more."
    ),
    "host_selection_retry_max_attempts": "How often the choice is made anew before a refused one is taken.",
    "load_balancing_policy": (
        "override_host takes the address kvring put into the metadata. It ignores health checks and outlier "
        "ejection: kvring itself leaves out endpoints that are not well."
    ),
    "selected_host_key": "Tells which endpoint was really used, for access logs and response processing.",
    "fallback_policy": "For requests without a choice: kvring down, or no opinion.",
    "circuit_breakers": (
        "Far above what is in flight. The default of 1024 binds under load: here requests would fail; on "
        "kvring's cluster they would go unsteered, silently (a stream is open as long as its request)."
    ),
    "circuit_breakers.thresholds.retry_budget": (
        "At most 20 % of the active requests are retries, so that a dying pool is not buried by them (the "
        "default is 3 at once)."
    ),
    "upstream_connection_options": "Finds an endpoint whose machine vanished within 90 s of a silent answer.",
    "common_http_protocol_options.idle_timeout": (
        "Below uvicorn's keep-alive of 5 s (vLLM, SGLang), so that Envoy never sends on a connection the "
        "endpoint is just closing."
    ),
    "healthy_panic_threshold": (
        "Default 50 %: with most processes unhealthy Envoy would use the unhealthy ones. At 0 it fails at "
        "once instead, that is: open, without waiting for message_timeout."
    ),
    "update_merge_window": (
        "Default 1 s: of two changes of health within it the workers hear the second late, and leave out a "
        "kvring that is back."
    ),
    "health_checks.no_traffic_interval": "Default 60 s: so late an idle Envoy notices who is gone or back.",
    "health_checks.grpc_health_check": (
        "A dead or hung kvring is bypassed after two failed checks, and a draining one gets no new streams."
    ),
    "health_checks.tcp_health_check": (
        "Finds a dead kvring; a hung one still accepts connections. The gRPC check on kvring's health port "
        "finds both."
    ),
    "explicit_http_config.http2_protocol_options": "gRPC is HTTP/2.",
    "connection_keepalive": (
        "Asks a connection that was silent for 1 s whether it lives, before a new stream: message_timeout is "
        "not applied in FULL_DUPLEX_STREAMED, and a hung kvring would hold requests for ever. No periodic "
        "pings (interval): gRPC servers close the connection over them, and with it all streams."
    ),
    "eds_cluster_config": (
        "Endpoints from a file of a running system: move a new one onto it, an edit in place is not seen."
    ),
    "clusters.transport_socket": (
        "Between Envoy and kvring go prompts: TLS, unless both are in one pod or on one trusted network."
    ),
    "transport_socket_matches": "kvring's health port is plaintext, for kubelet: its checks are, too.",
    "validation_context": "Without it any certificate would do.",
    "tls_certificates": "Read when Envoy starts; give it by SDS where it must change without a restart.",
    "require_client_certificate": "Only clients with a certificate of this CA.",
    "dns_lookup_family": (
        "kvring must name the resolved IP address: a DNS name in the metadata matches no host."
    ),
}


def reason(path: Sequence[str]) -> str:
    """The reason for the setting at `path`, "" where it needs none."""
    for start in range(len(path)):
        found = REASONS.get(".".join(path[start:]))
        if found is not None:
            return found
    return ""
