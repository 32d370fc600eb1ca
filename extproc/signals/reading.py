"""Reading: one endpoint's metrics at one moment, under the same words whatever the engine.

None stands for what the engine does not tell, never 0. Several ranks or models behind one port are added up;
of KV usage the fullest counts. A restart shows as another `started_s`, or as counters that fell.

Never: an exception, whatever the text is; a negative or infinite number. Called by: scrape, vitals, router.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence

import msgspec

from extproc.signals import engines, text
from extproc.signals.engines import Engine

__all__ = ["Reader", "Reading", "quantile"]

Buckets = tuple[tuple[float, float], ...]
"""A histogram: upper bounds in order, each with the number of observations up to it."""

_ADAPTERS_MAX = 256
_BUCKETS_MAX = 128
_EVERY = 5
_STARTED = (text.Name("process_start_time_seconds"),)
_CONFIG = text.Name("vllm:cache_config_info")
_SLEEP = text.Name("vllm:engine_sleep_state")
_LORA = text.Name("vllm:lora_requests_info")


class Reading(msgspec.Struct, frozen=True):
    """What an engine told.

    Gauges: `running`, `waiting` [requests]; `kv_usage`: share of the KV cache held by live requests [0..1];
    `kv_tokens`, `host_kv_tokens`: capacity [tokens]; `asleep`: it sleeps and answers nothing;
    `adapters`: LoRA adapters at work or waited for. Counters since `started_s` [Unix time]: see
    `engines.Table`. `ttft_lines`: the histogram of the time to first token, unread. `whole`: all of it is of
    this moment; else only the gauges but capacity and sleep, `queries`, `hits`, `cold_hits`,
    `answers`, `faults` and `rejections` are, the rest of a few moments before.
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
    whole: bool = True

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
    """Reads one endpoint's expositions; knows its engine once it has seen it.

    What moves slowly or is asked for rarely is read every `_EVERY`th time, and at once after a restart; in
    between it stands as it was (`Reading.whole` tells).
    """

    __slots__ = ("_capacity", "_config", "_engine", "_finder", "_last", "_turn")

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._finder = text.Finder()
        self._engine = Engine.UNKNOWN
        self._last = Reading()
        self._turn = 0
        self._config = b""  # as read last, and what it said
        self._capacity: tuple[int | None, int | None] = (None, None)

    def read(self, whole: bytes) -> Reading:
        """The reading in an exposition; an empty one if nothing in it is known."""
        engine, known = self._engine_of(whole), self._engine
        self._engine = engine
        self._finder.next()
        started_s = self._total(whole, _STARTED)
        if engine is Engine.UNKNOWN:
            return Reading(started_s=started_s)
        table = engines.NAMES[engine]
        same = engine is known and started_s == self._last.started_s
        if not same or not self._turn % _EVERY or not table.queries:
            self._turn = 0
            self._last = self._slow(whole, table)
        self._turn += 1
        quick = self._quick(whole, table)
        if table.queries:
            queries, hits = self._total(whole, table.queries), self._total(whole, table.hits)
        else:
            hits, computed = self._last.hits, self._last.computed
            queries = None if hits is None or computed is None else hits + computed
        self._last = msgspec.structs.replace(
            self._last,
            engine=engine,
            started_s=started_s,
            queries=queries,
            hits=hits,
            whole=self._turn == 1,
            **quick,
        )
        return self._last

    def _quick(self, whole: bytes, table: engines.Table) -> dict[str, float | None]:
        usage = self._total(whole, table.kv_usage, max)
        answers = self._total(whole, table.answers)
        return {
            "running": self._total(whole, table.running),
            "waiting": self._total(whole, table.waiting),
            "kv_usage": None if usage is None else min(usage, 1.0),
            "answers": answers,
            # Who counts answers and has no sample with this status has not given such an answer.
            "faults": None if answers is None else self._total(whole, table.faults) or 0.0,
            "rejections": self._total(whole, table.rejections),
            "cold_hits": self._total(whole, table.cold_hits),
        }

    def _slow(self, whole: bytes, table: engines.Table) -> Reading:
        kv_tokens, host_kv_tokens = self._capacity_of(whole, table)
        return Reading(
            kv_tokens=kv_tokens,
            host_kv_tokens=host_kv_tokens,
            hits=self._total(whole, table.hits),
            cold_queries=self._total(whole, table.cold_queries),
            requests=self._total(whole, table.requests),
            prompt_tokens=self._total(whole, table.prompt_tokens),
            computed=self._total(whole, table.computed),
            prefill_s=self._total(whole, table.prefill_s),
            asleep=self._asleep(whole),
            adapters=self._adapters(whole),
            ttft_lines=b"".join(self._finder.lines(whole, name) for name in table.ttft),
        )

    def _engine_of(self, whole: bytes) -> Engine:
        known = engines.NAMES.get(self._engine)
        if known is not None and known.mark in whole:
            return self._engine
        # None yet, or another image under the same address.
        found = (e for e, t in engines.NAMES.items() if t.mark in whole or whole.startswith(t.mark[1:]))
        return next(found, Engine.UNKNOWN)

    def _total(
        self, whole: bytes, names: engines.Names, both: Callable[[float, float], float] = operator.add
    ) -> float | None:
        """The samples of the first of `names` that has any, added up."""
        for name in names:
            found = self._finder.total(whole, name, both)
            if found is not None:
                return found
        return None

    def _capacity_of(self, whole: bytes, table: engines.Table) -> tuple[int | None, int | None]:
        """KV tokens on the device and in host memory."""
        if table.kv_tokens:
            total = self._total(whole, table.kv_tokens)
            return (int(total) if total else None), None
        config = self._finder.lines(whole, _CONFIG)
        if config != self._config:
            device = host = 0
            for pairs, _ in text.parse(config, _CONFIG.name):
                told = text.labels(pairs)
                block = _count(told.get("block_size"))
                tokens = _count(told.get("kv_cache_size_tokens"))
                device += tokens or block * _count(told.get("num_gpu_blocks"))
                host += block * _count(told.get("num_cpu_blocks"))
            self._config, self._capacity = config, (device or None, host or None)
        return self._capacity

    def _asleep(self, whole: bytes) -> bool:
        states = text.parse(self._finder.lines(whole, _SLEEP), _SLEEP.name)
        awake = [value for pairs, value in states if b'sleep_state="awake"' in pairs]
        return bool(awake) and not any(awake)

    def _adapters(self, whole: bytes) -> frozenset[str]:
        names: set[str] = set()
        for pairs, _ in text.parse(self._finder.lines(whole, _LORA), _LORA.name):
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
        if bound > 0 and (bound in summed or len(summed) < _BUCKETS_MAX):
            summed[bound] = summed.get(bound, 0.0) + value
    return tuple(sorted(summed.items()))


def _count(told: str | None) -> int:
    """The number in a label; 0 if there is none (vLLM writes "None")."""
    return int(told) if told and told.isascii() and told.isdigit() and len(told) < 16 else 0
