"""Reading: one endpoint's metrics at one moment, under the same words whatever the engine.

None stands for what the engine does not tell, never 0. Several ranks or models behind one port are added up;
of KV usage the fullest counts. A restart shows as another `started_s`, or as counters that fell.

Never: an exception, whatever the text is; a negative or infinite number. Called by: scrape, vitals, router.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from extproc.signals import engines, text
from extproc.signals.engines import Engine

__all__ = ["Reader", "Reading", "quantile"]

Buckets = tuple[tuple[float, float], ...]
"""A histogram: upper bounds in order, each with the number of observations up to it."""

_ADAPTERS_MAX = 256
_BUCKETS_MAX = 128
_START = b"process_start_time_seconds"
_CONFIG = b"vllm:cache_config_info"
_SLEEP = b"vllm:engine_sleep_state"
_LORA = b"vllm:lora_requests_info"


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine told.

    Gauges: `running`, `waiting` [requests]; `kv_usage`: share of the KV cache held by live requests [0..1];
    `kv_tokens`, `host_kv_tokens`: capacity [tokens]; `asleep`: it sleeps and answers nothing;
    `adapters`: LoRA adapters at work or waited for. Counters since `started_s` [Unix time]: see
    `engines.Table`. `ttft_lines`: the histogram of the time to first token, unread.
    """

    engine: Engine = Engine.UNKNOWN
    started_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    kv_tokens: int | None = None
    host_kv_tokens: int | None = None
    queries: float | None = None
    hits: float | None = None
    cold_queries: float | None = None
    cold_hits: float | None = None
    requests: float | None = None
    prompt_tokens: float | None = None
    computed: float | None = None
    prefill_s: float | None = None
    answers: float | None = None
    faults: float | None = None
    rejections: float | None = None
    asleep: bool = False
    adapters: frozenset[str] = frozenset()
    ttft_lines: bytes = b""

    @property
    def ttft(self) -> Buckets:
        """The histogram of the time to first token [s]; read only when asked for, since that takes long."""
        return _buckets(self.engine, self.ttft_lines)

    @property
    def in_engine(self) -> float | None:
        """Requests the engine holds, running or waiting; None if it does not tell."""
        if self.running is None and self.waiting is None:
            return None
        return (self.running or 0.0) + (self.waiting or 0.0)


class Reader:
    """Reads one endpoint's expositions; knows its engine once it has seen it."""

    __slots__ = ("_capacity", "_config", "_engine", "_finder")

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._finder = text.Finder()
        self._engine = Engine.UNKNOWN
        self._config: list[text.Sample] = []  # as read last, and what it said
        self._capacity: tuple[int | None, int | None] = (None, None)

    def read(self, exposition: bytes) -> Reading:
        """The reading in an exposition; an empty one if nothing in it is known."""
        whole = b"\n" + exposition.replace(b"\r", b"") if b"\r" in exposition else b"\n" + exposition
        engine = self._engine_of(whole)
        self._finder.next()
        started_s = self._total(whole, (engines.Name(_START),))
        if engine is Engine.UNKNOWN:
            return Reading(started_s=started_s)
        table = engines.NAMES[engine]

        def total(names: engines.Names) -> float | None:
            return self._total(whole, names)

        hits, computed, answers = total(table.hits), total(table.computed), total(table.answers)
        queries = total(table.queries)
        if queries is None and hits is not None and computed is not None:
            queries = hits + computed
        usage = self._values(whole, table.kv_usage)
        kv_tokens, host_kv_tokens = self._capacity_of(whole, table)
        return Reading(
            engine=engine,
            started_s=started_s,
            running=total(table.running),
            waiting=total(table.waiting),
            kv_usage=min(max(usage), 1.0) if usage else None,
            kv_tokens=kv_tokens,
            host_kv_tokens=host_kv_tokens,
            queries=queries,
            hits=hits,
            cold_queries=total(table.cold_queries),
            cold_hits=total(table.cold_hits),
            requests=total(table.requests),
            prompt_tokens=total(table.prompt_tokens),
            computed=computed,
            prefill_s=total(table.prefill_s),
            answers=answers,
            # Who counts answers and has no sample with this status has not given such an answer.
            faults=None if answers is None else total(table.faults) or 0.0,
            rejections=total(table.rejections),
            asleep=self._asleep(whole),
            adapters=self._adapters(whole),
            ttft_lines=b"".join(self._finder.lines(whole, name.name) for name in table.ttft),
        )

    def _engine_of(self, whole: bytes) -> Engine:
        known = engines.NAMES.get(self._engine)
        if known is None or known.mark not in whole:  # another image under the same address
            found = (engine for engine, table in engines.NAMES.items() if table.mark in whole)
            self._engine = next(found, Engine.UNKNOWN)
        return self._engine

    def _samples(self, whole: bytes, names: engines.Names) -> list[text.Sample]:
        """The samples of the first of `names` that has any."""
        for name in names:
            found = self._finder.samples(whole, name.name)
            if name.where:
                found = [one for one in found if _matches(b"," + one[0], name)]
            if found:
                return [one for one in found if _counts(one[0])] if len(found) > 1 else found
        return []

    def _values(self, whole: bytes, names: engines.Names) -> list[float]:
        return [value for _, value in self._samples(whole, names) if 0 <= value < math.inf]

    def _total(self, whole: bytes, names: engines.Names) -> float | None:
        values = self._values(whole, names)
        return math.fsum(values) if values else None

    def _capacity_of(self, whole: bytes, table: engines.Table) -> tuple[int | None, int | None]:
        """KV tokens on the device and in host memory."""
        if table.kv_tokens:
            total = self._total(whole, table.kv_tokens)
            return (int(total) if total else None), None
        config = self._finder.samples(whole, _CONFIG)
        if config != self._config:
            device = host = 0
            for pairs, _ in config:
                told = text.labels(pairs)
                block = _count(told.get("block_size"))
                device += _count(told.get("kv_cache_size_tokens"))
                device += block * _count(told.get("num_gpu_blocks")) if not device else 0
                host += block * _count(told.get("num_cpu_blocks"))
            self._config, self._capacity = config, (device or None, host or None)
        return self._capacity

    def _asleep(self, whole: bytes) -> bool:
        states = self._finder.samples(whole, _SLEEP)
        awake = [value for pairs, value in states if b'sleep_state="awake"' in pairs]
        return bool(awake) and not any(awake)

    def _adapters(self, whole: bytes) -> frozenset[str]:
        names: set[str] = set()
        for pairs, _ in self._finder.samples(whole, _LORA):
            told = text.labels(pairs)
            for key in ("running_lora_adapters", "waiting_lora_adapters"):
                names.update(told.get(key, "").split(",", _ADAPTERS_MAX)[:_ADAPTERS_MAX])
        return frozenset(itertools.islice((name.strip() for name in names if name.strip()), _ADAPTERS_MAX))


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """The value below which `share` [0..1] of the observations lie, linear within a bucket.

    None without observations; the last finite bound if it lies beyond.
    Source: Prometheus' histogram_quantile.
    """
    total = max((count for _, count in buckets), default=0.0)
    if total <= 0:
        return None
    below_bound = below_count = 0.0
    for bound, count in buckets:
        if count >= share * total:
            if math.isinf(bound):
                return below_bound or None
            inside = count - below_count
            at = (share * total - below_count) / inside if inside > 0 else 1.0
            return below_bound + (bound - below_bound) * at
        below_bound, below_count = bound, count
    return below_bound


def _buckets(engine: Engine, lines: bytes) -> Buckets:
    summed: dict[float, float] = {}
    names = engines.NAMES[engine].ttft if engine in engines.NAMES else ()
    for pairs, value in [sample for name in names for sample in text.parse(lines, name.name)]:
        try:
            bound = float(text.label(pairs, b"le") or b"")
        except ValueError:
            continue
        if bound > 0 and 0 <= value < math.inf and (bound in summed or len(summed) < _BUCKETS_MAX):
            summed[bound] = summed.get(bound, 0.0) + value
    return tuple(sorted(summed.items()))


def _matches(pairs: bytes, name: engines.Name) -> bool:
    # A quote inside a value is escaped, so no value can hold such a pair.
    return all(any(pair in pairs for pair in any_of) for any_of in name.where)


def _counts(pairs: bytes) -> bool:
    """Whether a sample is not a further tensor-parallel rank's view of the same thing."""
    return b'tp_rank="' not in pairs or b'tp_rank="0"' in pairs


def _count(told: str | None) -> int:
    """The number in a label; 0 if there is none (vLLM writes "None")."""
    return int(told) if told and told.isascii() and told.isdigit() and len(told) < 16 else 0
