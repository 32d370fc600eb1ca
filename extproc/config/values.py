"""Values: every setting of kvring.yaml with its unit, range, default and meaning.

docs/configuration.md is made from these classes, and so is the text of an error.
Called by: config.reading (makes them), app, cli.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from extproc import exchange, policy, pool, prompt, router

__all__ = ["Config", "Endpoint", "Health", "Pool", "VolatileSpan", "router_settings", "static_pool"]

_LISTEN_HELP = 'a host and a port, "0.0.0.0:9002", or "unix:/path"'


def _int(least: int, most: int, text: str) -> Any:
    return msgspec.Meta(ge=least, le=most, description=text)


def _float(least: float, most: float, text: str) -> Any:
    return msgspec.Meta(ge=least, le=most, description=text)


def _text(pattern: str, text: str) -> Any:
    return msgspec.Meta(pattern=pattern, min_length=1, max_length=253, description=text)


_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$"


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model server address."""

    name: Annotated[str, _text(_NAME, "Stable name; it keys the ring, so keep it when the address changes.")]
    address: Annotated[
        str,
        msgspec.Meta(description='IP address and port as Envoy knows it: "10.0.0.1:8000", "[fd00::1]:8000".'),
    ]
    weight: Annotated[int, _int(1, 100, "Share of the ring relative to the other endpoints.")] = 1


class Health(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Active probes of each endpoint. Envoy's override_host ignores health, so kvring must know it."""

    path: Annotated[str, _text(r"^/", "Path asked for; any 2xx answer is good.")] = "/health"
    interval_s: Annotated[float, _float(0.05, 300, "Time from one probe to the next, with 10 % jitter.")] = (
        1.0
    )
    timeout_s: Annotated[
        float, _float(0.05, 60, "A probe without an answer for this long has failed; a busy engine is slow.")
    ] = 2.0
    failures: Annotated[
        int,
        _int(1, 10, "Failed probes in a row that exclude an endpoint; a refused connection does at once."),
    ] = 2
    successes: Annotated[int, _int(1, 10, "Good probes in a row that bring it back.")] = 1


class VolatileSpan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Text that changes with every request; hashing leaves it out, from `start` to the next `end`."""

    start: Annotated[
        str, msgspec.Meta(min_length=4, max_length=256, description="Literal text that begins it.")
    ]
    end: Annotated[
        str,
        msgspec.Meta(max_length=256, description="Literal text that ends it; empty: the end of the text."),
    ] = "\n"
    chars_max: Annotated[
        int, _int(1, 65_536, "Most characters between the two; a start without an end in reach is kept.")
    ] = 1024


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model group."""

    endpoints: Annotated[
        list[Endpoint],
        msgspec.Meta(min_length=1, max_length=1024, description="The model servers, in any order."),
    ]
    name: Annotated[str, _text(_NAME, "Name in metrics and logs.")] = "default"
    policy: Annotated[
        Literal["cost", "ring", "least_load", "round_robin", "random"],
        msgspec.Meta(description="How an endpoint is chosen; see docs/routing.md."),
    ] = "cost"
    bound_factor: Annotated[
        Annotated[float, msgspec.Meta(ge=1.05, le=100)] | None,
        msgspec.Meta(
            description=(
                "An endpoint whose work is over this many times the mean takes no more. Lower spreads"
                " sooner and loses cache. Unset: 2 for `ring`, 3 for `cost`."
            ),
        ),
    ] = None
    bound_floor_tokens: Annotated[
        int,
        _int(0, 10_000_000, "Work below which an endpoint always takes more: stops bouncing at low load."),
    ] = 8192
    ring_points: Annotated[
        int, _int(16, 4096, "Ring points of an endpoint of weight 1. More is evener, and slower to rebuild.")
    ] = 256
    block_bytes: Annotated[
        int,
        _int(64, 4096, "Bytes of prompt in a block. Smaller finds more of a shared start, and costs more."),
    ] = 256
    blocks_max: Annotated[int, _int(16, 65_536, "Blocks of a prompt that are hashed at most.")] = 8192
    bytes_per_token: Annotated[
        float, _float(1, 16, "Bytes of prompt per token of the model; English text has about 4.")
    ] = 4.0
    kv_tokens: Annotated[
        int, _int(1024, 1_000_000_000, "Tokens of KV cache of one endpoint: vLLM's `GPU KV cache size`.")
    ] = 400_000
    host_kv_tokens: Annotated[
        int, _int(0, 10_000_000_000, "Tokens of its CPU tier; 0 where there is none.")
    ] = 0
    external_kv_tokens: Annotated[
        int, _int(0, 100_000_000_000, "Tokens of a cache that all endpoints share; 0 where there is none.")
    ] = 0
    prefill_tokens_per_s: Annotated[
        float,
        _float(10, 10_000_000, "Prompt tokens one endpoint prefills per second when nothing else runs."),
    ] = 8000.0
    residency_idle_s: Annotated[
        float, _float(10, 86_400, "A block unused for this long counts as evicted.")
    ] = 1200.0
    anchor_half_life_s: Annotated[
        float, _float(1, 86_400, "How fast past traffic is forgotten where the ring key is chosen.")
    ] = 300.0
    answers_max: Annotated[
        int,
        _int(0, 10_000_000, "Stored answers (Responses API) remembered, to route what continues them."),
    ] = 65_536
    alternates: Annotated[
        int,
        _int(
            0,
            8,
            "Further endpoints named to Envoy for retries. Only for override_host: others fail on a list.",
        ),
    ] = 0
    health: Annotated[Health, msgspec.Meta(description="Active probes.")] = Health()


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    pools: Annotated[
        list[Pool], msgspec.Meta(min_length=1, max_length=1, description="Model groups; one in this version.")
    ]
    grpc_listen: Annotated[str, msgspec.Meta(description=f"ext_proc server: {_LISTEN_HELP}.")] = (
        "0.0.0.0:9002"
    )
    health_listen: Annotated[str, msgspec.Meta(description="gRPC health server, always plaintext.")] = (
        "0.0.0.0:9003"
    )
    admin_listen: Annotated[str, msgspec.Meta(description="HTTP: metrics, health, state.")] = "0.0.0.0:9090"
    prompt_bytes_max: Annotated[
        int,
        _int(
            4096,
            256 * 1024 * 1024,
            "Bytes read from a body's start; of the rest, the last 128 KiB are searched for keys.",
        ),
    ] = 512 * 1024
    key_header: Annotated[
        Annotated[str, msgspec.Meta(pattern="^[a-z0-9-]{1,64}$")] | None,
        msgspec.Meta(
            description=(
                "Request header whose value keys the ring instead of the prompt, in lower case. Equal"
                " values stay together up to the bound."
            ),
        ),
    ] = None
    prompt_cache_key: Annotated[
        bool, msgspec.Meta(description="Obey the `prompt_cache_key` of a body in the same way.")
    ] = True
    volatile_spans: Annotated[
        list[VolatileSpan],
        msgspec.Meta(
            min_length=0,
            max_length=16,
            description="More text that hashing leaves out, beside what is known.",
        ),
    ] = []
    held_bytes_max: Annotated[
        int,
        _int(4096, 256 * 1024 * 1024, "In FULL_DUPLEX_STREAMED, bytes of body for which headers are held."),
    ] = 4 * 1024 * 1024
    message_bytes_max: Annotated[
        int,
        _int(
            65_536,
            1024 * 1024 * 1024,
            "Largest gRPC message taken; keep it above Envoy's request body buffer limit.",
        ),
    ] = 64 * 1024 * 1024
    decision_timeout_s: Annotated[
        float, _float(0.01, 60, "In FULL_DUPLEX_STREAMED, how long a request is held for its body.")
    ] = 0.2
    streams_max: Annotated[
        int, _int(1, 10_000_000, "Streams open at once; one more is refused, and Envoy balances it itself.")
    ] = 100_000
    pick_header: Annotated[
        bool, msgspec.Meta(description="Send the choice as a header too; metadata is always sent.")
    ] = True
    drain_notice_s: Annotated[
        float, _float(0, 300, "After SIGTERM, how long new streams are served with health NOT_SERVING.")
    ] = 3.0
    drain_timeout_s: Annotated[
        float, _float(0, 3600, "After the notice, how long open streams may take to end.")
    ] = 10.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        msgspec.Meta(description="`debug` logs every choice; prompts are never logged."),
    ] = "info"

    def exchange_settings(self) -> exchange.Settings:
        """What the exchange needs of this."""
        spans = (prompt.Span(span.start, span.end, span.chars_max) for span in self.volatile_spans)
        return exchange.Settings(
            prompt.Settings(self.prompt_bytes_max, (*prompt.KNOWN, *spans), self.prompt_cache_key),
            self.key_header,
            self.held_bytes_max,
            self.decision_timeout_s,
        )


def router_settings(group: Pool) -> router.Settings:
    """What the router needs of a pool's block."""
    factor = group.bound_factor or (2.0 if group.policy == "ring" else 3.0)
    return router.Settings(
        policy=group.policy,
        limits=policy.Limits(factor, group.bound_floor_tokens),
        ring_points=group.ring_points,
        block_bytes=group.block_bytes,
        blocks_max=group.blocks_max,
        bytes_per_token=group.bytes_per_token,
        prefill_tokens_per_s=group.prefill_tokens_per_s,
        kv_tokens=group.kv_tokens,
        host_kv_tokens=group.host_kv_tokens,
        external_kv_tokens=group.external_kv_tokens,
        residency_idle_s=group.residency_idle_s,
        anchor_half_life_s=group.anchor_half_life_s,
        answers_max=group.answers_max,
        alternates=group.alternates,
    )


def static_pool(group: Pool) -> pool.Pool:
    """The pool of the endpoints listed in the file."""
    return pool.make(
        group.name,
        (pool.Endpoint(pool.EndpointId(e.name), e.address, e.weight) for e in group.endpoints),
    )
