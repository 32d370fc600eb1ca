"""Quantity: everything the doctor reads of an engine, and what each engine calls it.

One row a quantity, with its names by engine, the newest first, as in `signals.engines`, which gives the names
that the router reads too. A histogram's name has no suffix. What an engine does not tell has no name there,
and no figure.

Called by: sample (reads by it), series (asks Prometheus for it), promql, cli.doctor (what a saved file
keeps). Source: vLLM 0.32 as scraped; SGLang 0.5 by its source; see `signals.engines`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from extproc.signals import NAMES, Engine
from extproc.signals.text import Name

__all__ = ["CONFIG", "QUANTITIES", "STARTED", "Kind", "Quantity", "families", "name_pattern"]

STARTED = "process_start_time_seconds"
CONFIG = "vllm:cache_config_info"


class Kind(enum.StrEnum):
    """What sort of metric it is."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Quantity:
    """`names`: by engine, the first that an exposition has counts."""

    kind: Kind
    names: Mapping[Engine, tuple[Name, ...]]


def _told(field: str) -> Mapping[Engine, tuple[Name, ...]]:
    """The names that the router reads."""
    return {engine: getattr(table, field) for engine, table in NAMES.items() if getattr(table, field)}


def _own(vllm: str = "", sglang: str = "", **where: str) -> Mapping[Engine, tuple[Name, ...]]:
    """Names apart by blanks; `where`: label -> allowed values, apart by blanks."""
    allowed = {key: values.split() for key, values in where.items()}
    found = {Engine.VLLM: vllm, Engine.SGLANG: sglang}
    return {
        engine: tuple(Name(name, allowed) for name in names.split())
        for engine, names in found.items()
        if names
    }


_BY_TIER = "vllm:prompt_tokens_cached_by_source_total"
_TIERS = "sglang:cached_tokens_total"

QUANTITIES: Mapping[str, Quantity] = MappingProxyType(
    {
        "running": Quantity(Kind.GAUGE, _told("running")),
        "waiting": Quantity(Kind.GAUGE, _told("waiting")),
        "kv_usage": Quantity(Kind.GAUGE, _told("kv_usage")),
        "kv_tokens": Quantity(Kind.GAUGE, _told("kv_tokens")),
        "queries": Quantity(Kind.COUNTER, _told("queries")),
        "hits": Quantity(Kind.COUNTER, _told("hits")),
        "cold_hits": Quantity(Kind.COUNTER, _told("cold_hits")),
        "host_hits": Quantity(
            Kind.COUNTER,
            {
                **_own(_BY_TIER, source="host"),
                **_own(sglang=_TIERS, cache_source="host"),
            },
        ),
        "prompt_tokens": Quantity(
            Kind.COUNTER,
            _own("vllm:prompt_tokens_total vllm:request_prompt_tokens_sum", "sglang:prompt_tokens_total"),
        ),
        "computed": Quantity(Kind.COUNTER, _told("computed")),
        "output_tokens": Quantity(
            Kind.COUNTER, _own("vllm:generation_tokens_total", "sglang:generation_tokens_total")
        ),
        "preemptions": Quantity(
            Kind.COUNTER, _own("vllm:num_preemptions_total", "sglang:num_retracted_requests_total")
        ),
        "rejections": Quantity(Kind.COUNTER, _told("rejections")),
        "answers": Quantity(Kind.COUNTER, _told("answers")),
        "faults": Quantity(Kind.COUNTER, _told("faults")),
        "ttft_s": Quantity(
            Kind.HISTOGRAM, _own("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds")
        ),
        "e2e_s": Quantity(
            Kind.HISTOGRAM, _own("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds")
        ),
        "queue_s": Quantity(
            Kind.HISTOGRAM, _own("vllm:request_queue_time_seconds", "sglang:queue_time_seconds")
        ),
        "prefill_s": Quantity(Kind.HISTOGRAM, _own("vllm:request_prefill_time_seconds")),
        "token_s": Quantity(
            Kind.HISTOGRAM,
            _own(
                "vllm:inter_token_latency_seconds vllm:time_per_output_token_seconds",
                "sglang:inter_token_latency_seconds sglang:time_per_output_token_seconds",
            ),
        ),
        "prompt": Quantity(
            Kind.HISTOGRAM, _own("vllm:request_prompt_tokens", "sglang:prompt_tokens_histogram")
        ),
        "uncached": Quantity(
            Kind.HISTOGRAM,
            _own("vllm:request_prefill_kv_computed_tokens", "sglang:uncached_prompt_tokens_histogram"),
        ),
        "output": Quantity(
            Kind.HISTOGRAM, _own("vllm:request_generation_tokens", "sglang:generation_tokens_histogram")
        ),
        "step_tokens": Quantity(Kind.HISTOGRAM, _own("vllm:iteration_tokens_total")),
    }
)


def families() -> Iterator[str]:
    """Every name of a sample that is read, each once: what a saved exposition has to keep."""
    seen: set[str] = set()
    for quantity in QUANTITIES.values():
        for names in quantity.names.values():
            for name in names:
                text = name.name.decode()
                seen |= {f"{text}{suffix}" for suffix in _suffixes(quantity.kind)}
    yield from sorted(seen | {CONFIG, STARTED})


def name_pattern() -> str:
    """A regular expression of all names but that of the process, for a selector on `__name__`."""
    return "|".join(re.escape(name) for name in families() if name != STARTED)


def _suffixes(kind: Kind) -> tuple[str, ...]:
    return ("_bucket", "_sum", "_count") if kind is Kind.HISTOGRAM else ("",)
