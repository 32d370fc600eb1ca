"""Names: of the gRPC method, and the keys under which a picker and a gateway tell each other addresses.

Called by: wire, server, conformance. Source: Envoy's external_processor.proto v3; Gateway API Inference
Extension proposal 004.
"""

from __future__ import annotations

__all__ = [
    "HASH",
    "METHOD",
    "REFUSED",
    "SERVED",
    "SERVICE",
    "STEER",
    "STEER_NAMESPACE",
    "SUBSET",
    "SUBSET_NAMESPACE",
    "WHY",
]

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD = "Process"

STEER_NAMESPACE = "envoy.lb"
STEER = "x-gateway-destination-endpoint"  # the header's name and the metadata's key
SERVED = f"{STEER}-served"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET = f"{STEER}-subset"

HASH = "x-kvring-hash"
"""Header, and metadata of the same value, by which Envoy's own consistent hashing chooses."""

WHY = "x-kvring-decision"
"""Metadata beside the steer, where asked for; Envoy can put it into the answer's headers."""

REFUSED = "x-kvring-refused"
"""Header of an answer that kvring gave itself: why."""
