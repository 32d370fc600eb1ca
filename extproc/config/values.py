"""Values: every setting of kvring.yaml with its unit, range, default and meaning.

docs/configuration.md is made from these classes, and so is the text of an error.
Called by: config.reading (makes them), app, cli.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from extproc import exchange, prompt
from extproc.config import meta, sources
from extproc.config import pools as pools_
from extproc.config import store as store_

__all__ = ["Config", "Tls", "Traces", "VolatileSpan"]

_LISTEN_HELP = 'a host and a port, "0.0.0.0:9002", or "unix:/path"'


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
        int,
        meta.whole(1, 65_536, "Most characters between the two; a start without an end in reach is kept."),
    ] = 1024


class Traces(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where spans go, and how many."""

    endpoint: Annotated[
        str, meta.text(r"^https?://", 'Collector, OTLP over HTTP: "http://otel-collector:4318/v1/traces".')
    ]
    share: Annotated[
        float,
        meta.number(
            0, 1, "Share of decisions traced where no trace context came; one that came decides itself."
        ),
    ] = 0.01
    service: Annotated[str, meta.text(meta.NAME, "Name of this service in the traces.")] = "kvring"


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A second ext_proc port, with TLS. Health and the plaintext port stay as they are."""

    listen: Annotated[str, msgspec.Meta(description=f"TLS port: {_LISTEN_HELP}.")] = "0.0.0.0:9004"
    certificate_file: Annotated[
        str | None,
        meta.meaning(
            "PEM certificate chain; read again when it changes. Unset: a self-signed one is made at the"
            " start, for gateways that don't verify."
        ),
    ] = None
    key_file: Annotated[str | None, meta.meaning("PEM key of that certificate.")] = None
    client_ca_file: Annotated[
        str | None,
        meta.meaning("PEM certificates; clients must show one that these signed. Unset: none is asked for."),
    ] = None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    pools: Annotated[list[pools_.Pool], meta.listed(1, 64, "Model groups, one pool each.")]
    grpc_listen: Annotated[str, msgspec.Meta(description=f"ext_proc server: {_LISTEN_HELP}.")] = (
        "0.0.0.0:9002"
    )
    tls: Annotated[
        Tls | None, meta.meaning("A TLS port beside the plaintext one; needs the extra `tls`. Unset: none.")
    ] = None
    health_listen: Annotated[str, msgspec.Meta(description="gRPC health server, always plaintext.")] = (
        "0.0.0.0:9003"
    )
    admin_listen: Annotated[str, msgspec.Meta(description="HTTP: metrics, health, state, the page.")] = (
        "0.0.0.0:9090"
    )
    admin_token_file: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None,
        meta.meaning(
            "File with a token of at least 16 characters; `/api` then asks for `Authorization: Bearer`."
            " Unset: `/api/state` for anybody; choices, settings and explain for this machine only."
        ),
    ] = None
    prompt_bytes_max: Annotated[
        int,
        meta.whole(
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
        meta.whole(
            4096, 256 * 1024 * 1024, "In FULL_DUPLEX_STREAMED, bytes of body for which headers are held."
        ),
    ] = 4 * 1024 * 1024
    message_bytes_max: Annotated[
        int,
        meta.whole(
            65_536,
            1024 * 1024 * 1024,
            "Largest gRPC message taken; keep it above Envoy's request body buffer limit.",
        ),
    ] = 64 * 1024 * 1024
    decision_timeout_s: Annotated[
        float,
        meta.number(
            0.01,
            60,
            "In FULL_DUPLEX_STREAMED, how long a request is held for its body at most; less once its key is"
            " known. An engine can't begin before the body has come anyway.",
        ),
    ] = 1.0
    streams_max: Annotated[
        int,
        meta.whole(1, 10_000_000, "Streams open at once; one more is refused, and Envoy balances it itself."),
    ] = 100_000
    pick_header: Annotated[
        bool, msgspec.Meta(description="Send the choice as a header too; metadata is always sent.")
    ] = True
    conformance_hooks: Annotated[
        bool,
        msgspec.Meta(
            description=(
                "Obey `test-epp-endpoint-selection` and send `x-conformance-test-served-endpoint`, for the"
                " conformance tests of gateways. Never in production: clients choose their endpoint."
            )
        ),
    ] = False
    drain_notice_s: Annotated[
        float, meta.number(0, 300, "After SIGTERM, how long new streams are served with health NOT_SERVING.")
    ] = 3.0
    drain_timeout_s: Annotated[
        float, meta.number(0, 3600, "After the notice, how long open streams may take to end.")
    ] = 10.0
    kubernetes_api: Annotated[
        sources.KubernetesApi | None,
        meta.meaning("How the Kubernetes API is reached. Unset: as from any pod, by its service account."),
    ] = None
    replicas: Annotated[
        int,
        meta.whole(
            1,
            64,
            "Replicas of kvring that place requests on these pools. Counts while they do not hear each other:"
            " homes are then taken for warm, floors divided.",
        ),
    ] = 1
    store: Annotated[
        store_.Store | None,
        meta.meaning(
            "What several replicas of kvring share their view through; see docs/high-availability.md. Unset:"
            " each knows only what it sent itself."
        ),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        msgspec.Meta(description="`debug` logs every choice; prompts are never logged."),
    ] = "info"

    log_choices: Annotated[
        float,
        meta.number(
            0, 1, "Share of choices that are logged, drawn by chance: key hashes, no prompt. 0: none."
        ),
    ] = 0.0
    decision_metadata: Annotated[
        bool,
        meta.meaning(
            "Send with every choice why it was made, as metadata `envoy.lb` / `x-kvring-decision`, for a"
            " header of the answer while debugging. It tells clients what is cached."
        ),
    ] = False
    traces: Annotated[
        Traces | None, meta.meaning("OpenTelemetry spans of decisions; needs the extra `otel`. Unset: none.")
    ] = None

    def exchange_settings(self) -> exchange.Settings:
        """What the exchange needs of this."""
        spans = (prompt.Span(span.start, span.end, span.chars_max) for span in self.volatile_spans)
        return exchange.Settings(
            prompt.Settings(self.prompt_bytes_max, (*prompt.KNOWN, *spans), self.prompt_cache_key),
            self.key_header,
            self.held_bytes_max,
            self.decision_timeout_s,
            self.conformance_hooks,
            self.decision_metadata,
        )
