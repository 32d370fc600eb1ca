"""Conformance: what an endpoint picker must and should do, asked of a running one over plain gRPC.

It plays the gateway's side of ext_proc streams against any picker and judges what comes back; it knows
nothing of how kvring decides, and shares no code with the server it tests but the schema and names of keys.

    catalogue -> run -> outcomes -> report (table), document (JSON, JUnit XML)

Never: a wait without an end; an exception for what a picker sends. Only `kvring conformance` imports it.
Source: Gateway API Inference Extension proposal 004; Envoy's ext_proc v3 API.
"""
