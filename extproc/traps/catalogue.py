"""Catalogue: the known traps of an Envoy configuration around kvring: what each does, and what mends it.

Data only. A trap's `severity`: "error" = it can't work, or a client may steer; "warning" = it works until
load, a long answer or a fault comes; "note" = fine for some, worth a look.

Invariant: every trap has a rule that finds it and a test that mends it (tests/unit/test_traps.py).
Called by: asking, asked, serving (the rules), docs/generate.py.
Source: Envoy 1.40, run (tests/envoy); issues of envoyproxy/envoy where one is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["TRAPS", "Severity", "Trap"]

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Trap:
    """`happens`: what a user would see. `mend`: the setting that cures it."""

    severity: Severity
    happens: str
    mend: str


TRAPS = {
    # ---- the filter that asks ----
    "no-filter": Trap("error", "nothing asks kvring", "add the ext_proc filter before the router"),
    "observing": Trap("error", "Envoy ignores what kvring answers", "remove observability_mode"),
    "headers-skipped": Trap(
        "error", "headers leave for an endpoint before kvring has chosen", "request_header_mode: SEND"
    ),
    "metadata-dropped": Trap(
        "error",
        "Envoy drops the choice without a word: override_host finds no metadata",
        "metadata_options: {receiving_namespaces: {untyped: [envoy.lb]}}",
    ),
    "header-dropped": Trap(
        "error",
        "Envoy drops the choice without a word: the endpoint is read from a header, which kvring may not set",
        "remove mutation_rules.disallow_all, or read the endpoint from metadata",
    ),
    "fail-closed": Trap(
        "warning", "with kvring down, clients get 500 (or status_on_error)", "failure_mode_allow: true"
    ),
    "message-timeout": Trap(
        "warning",
        "kvring has 200 ms a message: on a busy CPU that is exceeded, and the request goes unsteered",
        "message_timeout: 0.25s or more",
    ),
    "message-timeout-long": Trap(
        "note", "a hung kvring delays each request by this long", "message_timeout: 0.25s"
    ),
    "streamed": Trap(
        "warning",
        "STREAMED: headers may leave before kvring has read the prompt, and a retry may send a body twice "
        "(envoy#36119, envoy#46095)",
        "request_body_mode: BUFFERED_PARTIAL",
    ),
    "duplex-open": Trap(
        "note",
        "FULL_DUPLEX_STREAMED: fails open only before the first chunk, and message_timeout is not applied "
        "(envoy#41276)",
        "request_body_mode: BUFFERED_PARTIAL, unless the gateway demands duplex",
    ),
    "two-duplex": Trap(
        "warning",
        "two FULL_DUPLEX_STREAMED filters: before Envoy 1.40 bodies over 6.2 KB were cut (envoy#41654)",
        "another body mode for one of them",
    ),
    "body-limit": Trap(
        "warning",
        "BUFFERED: longer bodies get 413",
        "a larger request_body_buffer_limit, or BUFFERED_PARTIAL",
    ),
    "body-start": Trap(
        "warning",
        "BUFFERED_PARTIAL: of longer bodies kvring sees only the start, and they are not retried",
        "request_body_buffer_limit: 8388608 on the route",
    ),
    "stream-short": Trap(
        "warning",
        "the ext_proc stream ends when the request is sent, so kvring takes it for finished: load looks low",
        "response_trailer_mode: SEND",
    ),
    "answer-buffered": Trap(
        "error", "the whole answer is held back: no token streams", "response_body_mode: NONE"
    ),
    "content-length": Trap(
        "note",
        "bodies go on chunked, which some servers dislike",
        "allow_content_length_header: true (Envoy >= 1.40)",
    ),
    # ---- kvring's cluster ----
    "no-cluster": Trap("error", "the filter asks a cluster that is not there", "add kvring's cluster"),
    "not-http2": Trap(
        "error",
        "gRPC needs HTTP/2: every request goes unsteered, or fails",
        "explicit_http_config: {http2_protocol_options: {}}",
    ),
    "breaker-kvring": Trap(
        "warning",
        "streams are open as long as requests: over this many (default 1024) they go unsteered, silently",
        "circuit_breakers: max_requests and max_pending_requests: 100000",
    ),
    "unchecked": Trap(
        "warning",
        "a hung kvring is never noticed: each request waits for message_timeout, in duplex for ever",
        "health_checks: grpc_health_check on port 9003, service readiness",
    ),
    "slow-recovery": Trap(
        "note",
        "an idle Envoy notices only after 60 s that kvring is back",
        "health_checks.no_traffic_interval: 1s",
    ),
    "panic": Trap(
        "note",
        "with half of the kvring processes unhealthy, Envoy goes on asking those too",
        "common_lb_config: {healthy_panic_threshold: {value: 0}}",
    ),
    "pings": Trap(
        "warning",
        "gRPC servers answer periodic pings on a quiet connection with GOAWAY, which ends every open stream",
        "connection_keepalive.connection_idle_interval instead of interval",
    ),
    # ---- routes and endpoints ----
    "not-steered": Trap(
        "error",
        "nothing obeys kvring: the cluster is balanced as without it",
        "load_balancing_policy: override_host",
    ),
    "spoof": Trap(
        "error",
        "the endpoint is read from a header that clients can send",
        "remove x-gateway-destination-endpoint in early_header_mutation_extensions, or read metadata",
    ),
    "original-dst": Trap(
        "warning",
        "without an answer from kvring ORIGINAL_DST gives 503 instead of balancing, and it follows a list of "
        "endpoints nowhere",
        "override_host over a cluster that knows its endpoints",
    ),
    "locality-weights": Trap(
        "error",
        "Envoy refuses override_host together with locality_weighted_lb_config",
        "remove locality_weighted_lb_config (Istio: localityLbSetting.enabled: false)",
    ),
    # ---- steering by hash ----
    "hash-unread": Trap(
        "error",
        "endpoints are hashed, but by no hash of kvring's: they are drawn by chance, or by another value",
        "hash_policy: [{header: {header_name: x-kvring-hash}, terminal: true}] on the route",
    ),
    "hash-ignored": Trap(
        "error",
        "the route hashes by kvring's header, but the cluster's balancing takes no hash",
        "lb_policy: RING_HASH or MAGLEV on the cluster",
    ),
    "hash-removed": Trap(
        "error",
        "the route removes the header before it is hashed: every request goes to an endpoint drawn by chance",
        "x-kvring-hash out of request_headers_to_remove",
    ),
    "hash-dropped": Trap(
        "error",
        "Envoy drops the hash without a word: kvring may not set its header",
        "mutation_rules.allow_expression: {regex: x-kvring-hash}",
    ),
    "hash-mixed": Trap(
        "error",
        "another hash policy is mixed into the hash: equal prefixes go to different endpoints",
        "x-kvring-hash as the first policy, with terminal: true",
    ),
    "hash-one-name": Trap(
        "error",
        "all addresses of one DNS name share one place on the ring: one of them gets everything",
        "remove use_hostname_for_hashing",
    ),
    "hash-unbound": Trap(
        "warning",
        "nothing bounds the load: a hot prefix drowns its home",
        "consistent_hashing_lb_config: {hash_balance_factor: 150}",
    ),
    "hash-unchecked": Trap(
        "warning",
        "nobody checks the endpoints, kvring knows none: a dead one keeps its keys",
        "health_checks and outlier_detection on the cluster",
    ),
    "hash-ring": Trap(
        "note",
        "a ring this small gives some of many endpoints twice as many keys as others",
        "ring_hash_lb_config: {minimum_ring_size: 65536}",
    ),
    "hash-spoof": Trap(
        "note",
        "while kvring is down, a client's own x-kvring-hash decides: no harm but to its cache hits",
        "remove x-kvring-hash in early_header_mutation_extensions",
    ),
    "breaker-endpoints": Trap(
        "warning",
        "over this many requests in flight (default 1024) clients get 503",
        "circuit_breakers: max_connections, max_pending_requests and max_requests: 100000",
    ),
    "route-timeout": Trap(
        "warning", "an answer that takes longer (default 15 s) is cut with 504", "timeout: 0s on the route"
    ),
    "idle-timeout": Trap(
        "note",
        "an answer that is silent for longer (default 5 min), as when it is not streamed, is cut",
        "stream_idle_timeout: 3600s",
    ),
    "retry-same": Trap(
        "note",
        "a retry may go to the endpoint that just failed",
        "retry_host_predicate: previous_hosts, host_selection_retry_max_attempts: 20",
    ),
    "keep-alive": Trap(
        "note",
        "uvicorn (vLLM, SGLang) closes idle connections after 5 s: Envoy may send on a closing one",
        "common_http_protocol_options.idle_timeout: 4s",
    ),
}
