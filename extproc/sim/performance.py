"""Performance: how long an engine's steps take, and the limits it schedules under.

    t_step = overhead + max(weights, a * (P + D)) + b * sum(ctx of decodes)
             + q * sum(chunk * ctx of chunk) + loaded / R_load

P prompt tokens and D decodes share one forward pass; below a * (P + D) = weights the pass is bound by reading
the weights, above by arithmetic. A decode reads the KV cache of its whole context, a chunk attends to what
precedes it; a chunk's context is its start plus half its length. Of several loads from host memory in a step
the largest counts: they run side by side.

Invariant: a step's time never falls when work is added to it. Called by: engine, replica, cli.
Source: fitted to the published figures of two articles on prefix routing; constants in `PRESETS`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PRESETS", "Performance", "scaled"]


@dataclass(frozen=True, slots=True)
class Performance:
    """Speed and limits of one engine: a model on its accelerators.

    `weights_s`, `overhead_s`: reading all weights once, scheduling one step [s]. `token_s`: a [s per token],
    1 / a is the peak prefill rate. `context_s`: b [s per context token of a decode]. `attention_s`: q [s per
    token and context token of a chunk]. `kv_tokens`: KV cache on the device. `budget_tokens`: of one step,
    decodes included; at least `seqs_max`. `host_kv_tokens`: second tier in host memory, 0 for none.
    `load_tokens_per_s`: from that tier back to the device; `external_tokens_per_s`: from an external store.
    `block_tokens`: tokens of a KV block.
    `seqs_max`: requests in one batch. `queued_requests_max`, `queued_tokens_max`: waiting ones beyond which
    a request is rejected, 0 for no limit. `prefix_caching`: False for an engine that reuses nothing.

    Errors: ValueError naming the field, its value and its range.
    """

    weights_s: float
    overhead_s: float
    token_s: float
    context_s: float
    attention_s: float
    kv_tokens: int
    budget_tokens: int
    host_kv_tokens: int = 0
    load_tokens_per_s: float = 90_000.0
    external_tokens_per_s: float = 90_000.0
    block_tokens: int = 16
    seqs_max: int = 256
    queued_requests_max: int = 0
    queued_tokens_max: int = 0
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name in ("weights_s", "overhead_s", "token_s", "context_s", "attention_s"):
            _check(self, name, 0)
        # a step without any duration would let time stand still
        if self.weights_s + self.overhead_s <= 0:
            raise ValueError("weights_s + overhead_s must be > 0")
        for name in ("host_kv_tokens", "queued_requests_max", "queued_tokens_max"):
            _check(self, name, 0)
        for name in ("block_tokens", "seqs_max"):
            _check(self, name, 1)
        _check(self, "kv_tokens", self.block_tokens)
        # every decode has its token in every step, so that none starves
        _check(self, "budget_tokens", self.seqs_max)
        for name in ("load_tokens_per_s", "external_tokens_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be > 0")

    @property
    def blocks(self) -> int:
        """KV blocks on the device: a started block does not count."""
        return self.kv_tokens // self.block_tokens

    @property
    def host_blocks(self) -> int:
        """KV blocks of the host tier."""
        return self.host_kv_tokens // self.block_tokens

    def step_s(
        self,
        prefill_tokens: int,
        decodes: int,
        decode_context: int = 0,
        chunk_work: float = 0.0,
        loaded_tokens: int = 0,
    ) -> float:
        """How long one step takes [s]; see the module for the formula.

        Args: prefill_tokens, decodes [count]; decode_context, sum over decodes [tokens]; chunk_work, sum over
        chunks of length times context [tokens^2]; loaded_tokens, the largest load [tokens].
        """
        return (
            self.overhead_s
            + max(self.weights_s, self.token_s * (prefill_tokens + decodes))
            + self.context_s * decode_context
            + self.attention_s * chunk_work
            + loaded_tokens / self.load_tokens_per_s
        )


def scaled(performance: Performance, speed: float) -> Performance:
    """`performance` on hardware `speed` [> 0] times as fast, with the same memory."""
    if speed == 1:
        return performance
    times = ("weights_s", "overhead_s", "token_s", "context_s", "attention_s")
    slower = {name: getattr(performance, name) / speed for name in times}
    return replace(performance, **slower)


def _check(performance: Performance, name: str, least: float) -> None:
    value = getattr(performance, name)
    if not value >= least:
        raise ValueError(f"{name} is {value}, must be >= {least:g}")


PRESETS: Mapping[str, Performance] = MappingProxyType(
    {
        # CodeLlama-13B in 16 bit: .82 MB of KV per token leave room for about 11,200 tokens in 40 GB
        "codellama-13b-a100-40": Performance(
            weights_s=0.0167,
            overhead_s=0.002,
            token_s=80e-6,
            context_s=0.53e-6,
            attention_s=0.0,
            kv_tokens=11_200,
            budget_tokens=2048,
        ),
        "8b-h100": Performance(
            weights_s=0.005,
            overhead_s=0.002,
            token_s=25e-6,
            context_s=0.04e-6,
            attention_s=0.25e-9,
            kv_tokens=430_000,
            budget_tokens=8192,
        ),
        # the second article's: one fp8 model on an H100; 450,000 tokens of KV, 1,100,000 in its coding test
        "second-article": Performance(
            weights_s=0.012,
            overhead_s=0.002,
            token_s=95e-6,
            context_s=0.05e-6,
            attention_s=0.25e-9,
            kv_tokens=450_000,
            budget_tokens=8192,
            load_tokens_per_s=290_000.0,
            external_tokens_per_s=550_000.0,
        ),
        # measured with and without a host tier of 1,000,000 tokens: set host_kv_tokens for the former
        "32b-fp8-h100": Performance(
            weights_s=0.011,
            overhead_s=0.002,
            token_s=80e-6,
            context_s=0.08e-6,
            attention_s=0.6e-9,
            kv_tokens=140_000,
            budget_tokens=8192,
        ),
    }
)
