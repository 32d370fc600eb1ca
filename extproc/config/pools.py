"""Pools: every setting of one pool in kvring.yaml.

Called by: config.values (holds them), config.checks, config.derived (what the core needs of them).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from extproc.config import meta, sources

__all__ = [
    "SOURCES",
    "Endpoint",
    "Health",
    "Match",
    "Pool",
    "Signals",
]

SOURCES = ("endpoints", "file", "dns", "kubernetes_service", "inference_pool", "envoy_cluster")
"""The keys of which a pool has exactly one."""


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model server address."""

    name: Annotated[
        str, meta.text(meta.NAME, "Stable name; it keys the ring, so keep it when the address changes.")
    ]
    address: Annotated[
        str,
        msgspec.Meta(description='IP address and port as Envoy knows it: "10.0.0.1:8000", "[fd00::1]:8000".'),
    ]
    weight: Annotated[int, meta.whole(1, 100, "Share of the ring relative to the other endpoints.")] = 1
    models: Annotated[
        Annotated[list[str], meta.listed(1, 256, "")] | None,
        meta.meaning("Models and adapters it serves. Unset: it is asked (`/v1/models`)."),
    ] = None


class Health(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How an endpoint's health is known. Envoy's override_host ignores health, so kvring must know it."""

    path: Annotated[str, meta.text(r"^/", "Path asked for; any 2xx answer is good.")] = "/health"
    interval_s: Annotated[
        float, meta.number(0.05, 300, "Time from one probe to the next, with 10 % jitter.")
    ] = 1.0
    timeout_s: Annotated[
        float,
        meta.number(0.05, 60, "A probe without an answer for this long has failed; a busy engine is slow."),
    ] = 2.0
    failures: Annotated[
        int,
        meta.whole(
            1, 10, "Failed probes in a row that exclude an endpoint; a refused connection does at once."
        ),
    ] = 2
    successes: Annotated[int, meta.whole(1, 10, "Good probes in a row that bring it back.")] = 1
    eject_s: Annotated[
        float,
        meta.number(
            0,
            600,
            "An endpoint whose answers are 5xx while its probes are good is kept out this long, twice as long"
            " each further time, up to 8 times this; never more than half of the pool. 0: never.",
        ),
    ] = 10.0
    envoy: Annotated[
        sources.EnvoyCluster | None,
        meta.meaning("An Envoy whose view of these endpoints counts too: outlier detection, its own checks."),
    ] = None


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which requests belong to a pool; the pool without this block takes the others."""

    models: Annotated[
        list[str],
        meta.listed(
            0, 256, "Model names; one `*` stands for any text. Exact names come first, then the longest."
        ),
    ] = []
    adapters: Annotated[
        list[str],
        meta.listed(0, 256, "LoRA adapters, exact. Those that an engine tells itself need not be listed."),
    ] = []
    clusters: Annotated[
        list[str],
        meta.listed(
            0, 64, "Envoy clusters (attribute `xds.cluster_name`); then only their requests belong here."
        ),
    ] = []
    routes: Annotated[
        list[str], meta.listed(0, 64, "Envoy routes (attribute `xds.route_name`), in the same way.")
    ] = []


class Signals(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the engines are asked about themselves."""

    path: Annotated[str, meta.text(r"^/", "Path of the engine's Prometheus metrics.")] = "/metrics"
    interval_s: Annotated[
        float,
        meta.number(
            0, 300, "Time from one question to the next, with 10 % jitter. 0: engines are not asked."
        ),
    ] = 1.0
    timeout_s: Annotated[float, meta.number(0.05, 60, "An answer that takes longer is given up.")] = 5.0
    age_max_s: Annotated[
        float,
        meta.number(0.1, 600, "Older signals are not used; choices then go by what kvring counted itself."),
    ] = 5.0
    models_interval_s: Annotated[
        float,
        meta.number(0, 3600, "Time from one question for `/v1/models` to the next. 0: it is not asked."),
    ] = 10.0


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model group."""

    endpoints: Annotated[
        Annotated[list[Endpoint], meta.listed(1, 1024, "")] | None,
        meta.meaning("The model servers, in any order; or one of the following five; none for `hash`."),
    ] = None
    file: Annotated[sources.File | None, meta.meaning("They are listed in a file that may change.")] = None
    dns: Annotated[sources.Dns | None, meta.meaning("They are what a DNS name stands for.")] = None
    kubernetes_service: Annotated[
        sources.KubernetesService | None, meta.meaning("They are a Kubernetes Service's.")
    ] = None
    inference_pool: Annotated[
        sources.InferencePool | None, meta.meaning("They are the pods of a Gateway API InferencePool.")
    ] = None
    envoy_cluster: Annotated[
        sources.EnvoyCluster | None, meta.meaning("They are the hosts of a cluster that an Envoy knows.")
    ] = None
    name: Annotated[str, meta.text(meta.NAME, "Name in metrics and logs.")] = "default"
    match: Annotated[
        Match | None, meta.meaning("Which requests belong to it. Unset: those that no other pool matches.")
    ] = None
    steering: Annotated[
        Literal["endpoint", "hash"],
        meta.meaning(
            "`endpoint`: kvring names the endpoint. `hash`: it sets the header `x-kvring-hash` for Envoy's"
            " own ring_hash or maglev, and knows no endpoints; see docs/hash.md."
        ),
    ] = "endpoint"
    endpoint_count: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None,
        meta.meaning(
            "With `steering: hash`, and needed there: how many endpoints Envoy's cluster has, within a"
            " factor of two."
        ),
    ] = None
    policy: Annotated[
        Literal["cost", "ring", "least_load", "round_robin", "random"],
        msgspec.Meta(description="How an endpoint is chosen; see docs/routing.md."),
    ] = "cost"
    bound_factor: Annotated[
        float,
        meta.number(
            1.05,
            100,
            "An endpoint with more than this many times the mean takes no more: of work for `ring`, of open"
            " requests for `cost`. Lower spreads sooner and loses cache.",
        ),
    ] = 2.0
    bound_floor_tokens: Annotated[
        int,
        meta.whole(
            0,
            10_000_000,
            "Work below which an endpoint always takes more by `ring`: stops bouncing at low load.",
        ),
    ] = 8192
    bound_floor_requests: Annotated[
        int,
        meta.whole(
            0,
            100_000,
            "Open requests below which an endpoint always takes more by `cost`. Higher keeps prompts"
            " together, lower evens out decoding.",
        ),
    ] = 8
    ring_points: Annotated[
        int,
        meta.whole(
            16, 4096, "Ring points of an endpoint of weight 1. More is evener, and slower to rebuild."
        ),
    ] = 256
    block_bytes: Annotated[
        int,
        meta.whole(
            64, 4096, "Bytes of prompt in a block. Smaller finds more of a shared start, and costs more."
        ),
    ] = 256
    blocks_max: Annotated[int, meta.whole(16, 65_536, "Blocks of a prompt that are hashed at most.")] = 8192
    bytes_per_token: Annotated[
        Annotated[float, msgspec.Meta(ge=1, le=16)] | None,
        meta.meaning("Bytes of prompt per token of the model. Unset: learned from the engines, at first 4."),
    ] = None
    kv_tokens: Annotated[
        Annotated[int, msgspec.Meta(ge=1024, le=1_000_000_000)] | None,
        meta.meaning(
            "Tokens of KV cache of one endpoint: vLLM's `GPU KV cache size`. Unset: each engine is asked, and"
            " 400,000 where it does not tell."
        ),
    ] = None
    host_kv_tokens: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=10_000_000_000)] | None,
        meta.meaning("Tokens of its CPU tier; 0: there is none. Unset: what the engine tells, else 0."),
    ] = None
    external_kv_tokens: Annotated[
        int,
        meta.whole(0, 100_000_000_000, "Tokens of a cache that all endpoints share; 0 where there is none."),
    ] = 0
    prefill_tokens_per_s: Annotated[
        Annotated[float, msgspec.Meta(ge=10, le=10_000_000)] | None,
        meta.meaning(
            "Prompt tokens one endpoint prefills per second when nothing else runs. Unset: learned from the"
            " engines, at first 8,000."
        ),
    ] = None
    gpus: Annotated[
        float,
        meta.number(0.01, 10_000, "GPUs behind one endpoint, for metrics that tell saved GPU time."),
    ] = 1.0
    residency_idle_s: Annotated[
        float, meta.number(10, 86_400, "A block unused for this long counts as evicted.")
    ] = 1200.0
    anchor_half_life_s: Annotated[
        float, meta.number(1, 86_400, "How fast past traffic is forgotten where the ring key is chosen.")
    ] = 300.0
    answers_max: Annotated[
        int,
        meta.whole(0, 10_000_000, "Stored answers (Responses API) remembered, to route what continues them."),
    ] = 65_536
    alternates: Annotated[
        int,
        meta.whole(
            0,
            8,
            "Further endpoints named to Envoy for retries. Only for override_host: others fail on a list.",
        ),
    ] = 0
    inflight_max: Annotated[
        int,
        meta.whole(
            0,
            1_000_000,
            "Open requests that one endpoint takes. When all hold so many, a request is answered 429. 0: any"
            " number.",
        ),
    ] = 0
    on_empty: Annotated[
        Literal["pass", "refuse"] | None,
        meta.meaning(
            "When nobody is ready: `pass` leaves the request to Envoy's own balancing, `refuse` answers 503."
            " Unset: `refuse` for an `inference_pool`, whose contract asks for it, else `pass`."
        ),
    ] = None
    slow_start_s: Annotated[
        float,
        meta.number(0, 3600, "How long a new or restarted endpoint takes to reach its full share. 0: none."),
    ] = 30.0
    health: Annotated[Health, meta.meaning("How health is known.")] = Health()
    signals: Annotated[Signals, meta.meaning("What the engines are asked.")] = Signals()
