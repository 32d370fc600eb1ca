"""Exposition: an engine's tally as the text a vLLM server answers `/metrics` with.

Names, types and labels are vLLM 0.32's, so scrapers, dashboards and `kvring doctor` see what production
shows them. Of the process metrics only the start time is given: a router notices a restart by it.

Invariant: every family has one TYPE line before its samples; histogram buckets are cumulative.
Called by: replica. Source: Prometheus text format 0.0.4; families as exposed by vLLM 0.32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from extproc.sim import job

if TYPE_CHECKING:
    from collections.abc import Iterable

    from extproc.sim import engine as engines
    from extproc.sim import tally

__all__ = ["CONTENT_TYPE", "Identity", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Sample = tuple[str, float]  # label pairs in exposition form, value


@dataclass(frozen=True, slots=True)
class Identity:
    """What the samples are labelled with. `started_at` [s since the epoch]."""

    model: str
    started_at: float


def render(engine: engines.Engine, identity: Identity) -> bytes:
    """The whole exposition of one engine."""
    page = _Page(identity)
    _gauges(page, engine)
    _counters(page, engine.tally)
    _histograms(page, engine.tally)
    page.config("vllm:cache_config_info", "Configuration of the KV cache.", _cache_labels(engine))
    return page.text()


class _Page:
    """Lines of text; knows the labels every vLLM sample carries."""

    def __init__(self, identity: Identity) -> None:
        model = identity.model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._model = f'model_name="{model}"'
        self._created = repr(identity.started_at)
        self._lines: list[str] = []
        self.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch.")
        self._lines.append(f"process_start_time_seconds {self._created}")

    def family(self, name: str, kind: str, text: str) -> None:
        self._lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}")

    def gauge(self, name: str, text: str, samples: Iterable[_Sample]) -> None:
        self.family(name, "gauge", text)
        self._lines.extend(f"{name}{{{self._labels(extra)}}} {float(value)}" for extra, value in samples)

    def config(self, name: str, text: str, labels: str) -> None:
        self.family(name, "gauge", text)
        # alone among vLLM's families without the model's name
        self._lines.append(f'{name}{{engine="0",{labels}}} 1.0')

    def counter(self, name: str, text: str, samples: Iterable[_Sample], *, engine: bool = True) -> None:
        samples = list(samples)
        self.family(f"{name}_total", "counter", text)
        for extra, value in samples:
            self._lines.append(f"{name}_total{{{self._labels(extra, engine=engine)}}} {float(value)}")
        self.family(f"{name}_created", "gauge", text)
        for extra, _ in samples:
            self._lines.append(f"{name}_created{{{self._labels(extra, engine=engine)}}} {self._created}")

    def histogram(self, name: str, text: str, histogram: tally.Histogram) -> None:
        self.family(name, "histogram", text)
        labels, count = self._labels(), 0
        bounds = (*(str(bound) for bound in histogram.bounds), "+Inf")
        for bound, observed in zip(bounds, histogram.counts, strict=True):
            count += observed
            self._lines.append(f'{name}_bucket{{engine="0",le="{bound}",{self._model}}} {float(count)}')
        self._lines.append(f"{name}_count{{{labels}}} {float(count)}")
        self._lines.append(f"{name}_sum{{{labels}}} {float(histogram.total)}")
        self.family(f"{name}_created", "gauge", text)
        self._lines.append(f"{name}_created{{{labels}}} {self._created}")

    def text(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()

    def _labels(self, extra: str = "", *, engine: bool = True) -> str:
        own = f'engine="0",{self._model}' if engine else self._model
        return f"{own},{extra}" if extra else own


def _gauges(page: _Page, engine: engines.Engine) -> None:
    page.gauge("vllm:num_requests_running", "Requests in the batch.", [("", engine.running)])
    page.gauge("vllm:num_requests_waiting", "Requests in the queue.", [("", engine.waiting)])
    page.gauge(
        "vllm:num_requests_waiting_by_reason",
        "Requests in the queue by what they wait for.",
        [('reason="capacity"', engine.waiting), ('reason="deferred"', 0)],
    )
    page.gauge(
        "vllm:engine_sleep_state",
        "1 for the state the engine is in.",
        [
            ('sleep_state="awake"', 1),
            ('sleep_state="weights_offloaded"', 0),
            ('sleep_state="discard_all"', 0),
        ],
    )
    page.gauge("vllm:kv_cache_usage_perc", "KV cache held by requests, 1 is all.", [("", engine.kv_usage)])


def _counters(page: _Page, counts: tally.Tally) -> None:
    cached = counts.device_tokens + counts.host_tokens
    for name, text, value in (
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", counts.prefix_queries),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", counts.prefix_hits),
        ("external_prefix_cache_queries", "Prompt tokens looked up in other tiers.", counts.host_queries),
        ("external_prefix_cache_hits", "Prompt tokens found in other tiers.", counts.host_hits),
        ("mm_cache_queries", "Items looked up in the multi-modal cache.", 0),
        ("mm_cache_hits", "Items found in the multi-modal cache.", 0),
        ("num_preemptions", "Requests preempted.", 0),
        ("prompt_tokens", "Prompt tokens of prefilled requests.", counts.prompt_tokens),
        ("prompt_tokens_cached", "Prompt tokens that needed no computing.", cached),
        ("generation_tokens", "Output tokens.", counts.generation_tokens),
    ):
        page.counter(f"vllm:{name}", text, [("", value)])
    page.counter(
        "vllm:prompt_tokens_by_source",
        "Prompt tokens by where their KV came from.",
        [
            ('source="local_compute"', counts.computed_tokens),
            ('source="local_cache_hit"', counts.device_tokens),
            ('source="external_kv_transfer"', counts.host_tokens),
        ],
    )
    tiers = {"device": counts.prefix_hits, "host": counts.host_hits}
    page.counter(
        "vllm:prompt_tokens_cached_by_source",
        "Prefix cache hits by tier, counted at admission.",
        [
            (f'source="{tier}"', tiers.get(tier, 0))
            for tier in ("device", "host", "p2p", "disk", "external_unspecified")
        ],
    )
    # an abort is not counted, nor is it by vLLM
    page.counter(
        "vllm:request_success",
        "Requests that reached their end.",
        [
            (f'finished_reason="{reason}"', counts.finished if reason == "length" else 0)
            for reason in ("stop", "length", "abort", "error", "repetition")
        ],
    )
    page.counter(
        "vllm:admission_rejections",
        "Requests rejected by a limit of the queue.",
        [
            (f'reason="{limit.value}"', counts.rejected.get(limit.value, 0))
            for limit in (job.Rejection.QUEUED_REQUESTS, job.Rejection.QUEUED_TOKENS)
        ],
        engine=False,
    )


def _histograms(page: _Page, counts: tally.Tally) -> None:
    for name, text, histogram in (
        ("request_prompt_tokens", "Prompt tokens of a request.", counts.request_prompt_tokens),
        ("request_generation_tokens", "Output tokens of a request.", counts.request_generation_tokens),
        ("iteration_tokens_total", "Tokens of an engine step.", counts.step_tokens),
        (
            "request_max_num_generation_tokens",
            "Most output tokens of a request.",
            counts.request_max_generation_tokens,
        ),
        ("request_params_n", "Answers asked for.", counts.request_n),
        ("request_params_max_tokens", "Output tokens asked for.", counts.request_max_tokens),
        ("time_to_first_token_seconds", "Arrival to first token.", counts.ttft_s),
        ("inter_token_latency_seconds", "Token to token.", counts.inter_token_s),
        ("request_time_per_output_token_seconds", "Mean token to token.", counts.per_output_token_s),
        ("e2e_request_latency_seconds", "Arrival to last token.", counts.e2e_s),
        ("request_queue_time_seconds", "Arrival to admission.", counts.queue_s),
        ("request_inference_time_seconds", "Admission to last token.", counts.inference_s),
        ("request_prefill_time_seconds", "Admission to first token.", counts.prefill_s),
        ("request_decode_time_seconds", "First to last token.", counts.decode_s),
        ("request_num_preemptions", "Preemptions of a request.", counts.request_preemptions),
        (
            "request_prefill_kv_computed_tokens",
            "Prompt tokens of a request that were computed.",
            counts.request_computed_tokens,
        ),
    ):
        page.histogram(f"vllm:{name}", text, histogram)


def _cache_labels(engine: engines.Engine) -> str:
    model = engine.model
    host_blocks = str(model.host_blocks) if model.host_kv_tokens else "None"
    labels = {
        "block_size": str(model.block_tokens),
        "cache_dtype": "auto",
        "enable_prefix_caching": str(model.prefix_caching),
        "gpu_memory_utilization": "0.92",
        "kv_cache_size_tokens": str(model.blocks * model.block_tokens),
        "kv_offloading_backend": "native",
        "kv_offloading_size": "None",
        "num_cpu_blocks": host_blocks,
        "num_gpu_blocks": str(model.blocks),
        "prefix_caching_hash_algo": "sha256",
    }
    return ",".join(f'{name}="{value}"' for name, value in labels.items())
