"""Engines: what vLLM, SGLang, llama.cpp and TGI call the things a router wants to know.

A table, engine by engine: of each quantity the names it has had, the newest first; the first that is in the
exposition counts. So a name that changes with a version is one more entry here.

Called by: signals.reading. Source: vLLM 0.32 as scraped (its older names: 0.6 to 0.10), SGLang 0.5,
llama.cpp's server, TGI 3, by their source and documentation.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from extproc.signals import text

__all__ = ["NAMES", "Engine", "Names", "Table"]


class Engine(enum.StrEnum):
    """Whose metrics they are. A closed set: it labels metrics."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    TGI = "tgi"
    UNKNOWN = "unknown"


Names = tuple[text.Name, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """The names of one engine's quantities; () where it does not tell.

    `mark`: how its metrics begin. Gauges: `running`, `waiting` [requests], `kv_usage` [0..1, held by live
    requests], `kv_tokens`. Counters: `queries` and `hits` [prompt tokens looked up and found on the GPU],
    `cold_queries` and `cold_hits` [in other tiers], `requests` and `prompt_tokens` [of them], `computed`
    [prompt tokens prefilled], `prefill_s`, `answers` and `faults` [HTTP answers, and those with 5xx],
    `rejections` [by a full queue]. `ttft`: histogram.
    """

    mark: bytes
    running: Names = ()
    waiting: Names = ()
    kv_usage: Names = ()
    kv_tokens: Names = ()
    queries: Names = ()
    hits: Names = ()
    cold_queries: Names = ()
    cold_hits: Names = ()
    requests: Names = ()
    prompt_tokens: Names = ()
    computed: Names = ()
    prefill_s: Names = ()
    answers: Names = ()
    faults: Names = ()
    rejections: Names = ()
    ttft: Names = ()


def _names(*names: str) -> Names:
    return tuple(text.Name(name) for name in names)


def _where(name: str, **where: str) -> text.Name:
    """Args: where: label -> allowed values, apart by blanks."""
    return text.Name(name, {key: values.split() for key, values in where.items()})


_POSTS = (_where("http_requests_total", method="POST"),)
_POSTS_5XX = (_where("http_requests_total", method="POST", status="5xx"),)

NAMES: Mapping[Engine, Table] = {
    Engine.VLLM: Table(
        mark=b"\nvllm:",
        running=_names("vllm:num_requests_running"),
        waiting=_names("vllm:num_requests_waiting"),
        kv_usage=_names("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        queries=_names(
            "vllm:prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries_total",
        ),
        hits=_names("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        cold_queries=_names("vllm:external_prefix_cache_queries_total"),
        cold_hits=_names("vllm:external_prefix_cache_hits_total"),
        requests=_names("vllm:request_prompt_tokens_count"),
        prompt_tokens=_names("vllm:request_prompt_tokens_sum"),
        computed=(
            _where("vllm:prompt_tokens_by_source_total", source="local_compute"),
            *_names("vllm:request_prefill_kv_computed_tokens_sum"),
        ),
        prefill_s=_names("vllm:request_prefill_time_seconds_sum"),
        answers=_POSTS,
        faults=_POSTS_5XX,
        rejections=_names("vllm:admission_rejections_total"),
        ttft=_names("vllm:time_to_first_token_seconds_bucket"),
    ),
    Engine.SGLANG: Table(
        mark=b"\nsglang:",
        running=_names("sglang:num_running_reqs"),
        waiting=_names("sglang:num_queue_reqs"),
        kv_usage=_names("sglang:token_usage"),
        kv_tokens=_names("sglang:max_total_num_tokens"),
        queries=_names("sglang:prompt_tokens_total"),
        hits=(
            _where("sglang:cached_tokens_total", cache_source="device"),
            *_names("sglang:cached_tokens_total"),
        ),
        cold_hits=(_where("sglang:cached_tokens_total", cache_source="host storage"),),
        requests=_names("sglang:num_requests_total"),
        prompt_tokens=_names("sglang:prompt_tokens_total"),
        answers=_POSTS,
        faults=_POSTS_5XX,
        ttft=_names("sglang:time_to_first_token_seconds_bucket"),
    ),
    Engine.LLAMACPP: Table(
        mark=b"\nllamacpp:",
        running=_names("llamacpp:requests_processing"),
        waiting=_names("llamacpp:requests_deferred"),
        kv_usage=_names("llamacpp:kv_cache_usage_ratio"),
        hits=_names("llamacpp:prompt_tokens_cached_total"),
        computed=_names("llamacpp:prompt_tokens_total"),  # leaves cached ones out
        prefill_s=_names("llamacpp:prompt_seconds_total"),
    ),
    Engine.TGI: Table(
        mark=b"\ntgi_",
        running=_names("tgi_batch_current_size"),
        waiting=_names("tgi_queue_size"),
        requests=_names("tgi_request_input_length_count"),
        prompt_tokens=_names("tgi_request_input_length_sum"),
        answers=_names("tgi_request_count"),
        faults=_names("tgi_request_failure"),
    ),
}
