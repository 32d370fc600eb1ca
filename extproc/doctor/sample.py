"""Sample: what one replica's metrics said at one moment.

Several ranks behind one port are added up; of KV usage the fullest counts. None and absence stand for what an
engine does not tell, never 0.

Never: an exception, whatever the text is. Called by: cli.doctor and series (make), stay.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

from extproc.doctor import histogram, quantity
from extproc.signals import Engine, Reader, text

__all__ = ["Sample", "Switch", "read", "steers"]

_BUCKETS_MAX = 256
_MODEL = (text.Name("vllm:num_requests_running"), text.Name("sglang:num_running_reqs"))
_STEERED = b"\nkvring_build_info"


class Switch(enum.Enum):
    """Whether something is on, as far as the engine tells."""

    ON = "on"
    OFF = "off"
    UNTOLD = "untold"


@dataclass(frozen=True, slots=True)
class Sample:
    """One replica, one moment.

    `at_s`: when [s, any origin]; None if nobody knows. `started_s`: start of its process [Unix time].
    `numbers`: counters and gauges by quantity; `histograms`: those, too, since the process started.
    `kv_tokens`, `host_kv_tokens`: capacity. `block_tokens`: of a KV block, 0 if untold. `asleep`: it answers
    nothing.
    """

    replica: str
    at_s: float | None
    engine: Engine
    model: str = ""
    started_s: float | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, histogram.Histogram] = field(default_factory=dict)
    kv_tokens: int | None = None
    host_kv_tokens: int | None = None
    block_tokens: int = 0
    prefix_caching: Switch = Switch.UNTOLD
    asleep: bool = False


def read(replica: str, at_s: float | None, exposition: bytes) -> Sample:
    """The sample in an exposition. Its `engine` is UNKNOWN if no engine speaks in it."""
    reading = Reader().read(exposition)
    engine = reading.engine
    finder = text.Finder()
    numbers: dict[str, float] = {}
    histograms: dict[str, histogram.Histogram] = {}
    for key, row in quantity.QUANTITIES.items():
        for name in row.names.get(engine, ()):
            if row.kind is quantity.Kind.HISTOGRAM:
                found = _histogram(finder, exposition, name)
                if found is not None:
                    histograms[key] = found
                    break
                continue
            both = max if key == "kv_usage" else operator.add
            value = finder.total(exposition, name, both)
            if value is not None:
                numbers[key] = value
                break
    config = _labels(finder, exposition, text.Name(quantity.CONFIG))
    caching = {"True": Switch.ON, "False": Switch.OFF}.get(config.get("enable_prefix_caching", ""))
    block = config.get("block_size", "")
    return Sample(
        replica=replica,
        at_s=at_s,
        engine=engine,
        model=next((_labels(finder, exposition, name).get("model_name", "") for name in _MODEL
                    if finder.lines(exposition, name)), ""),
        started_s=reading.started_s,
        numbers=numbers,
        histograms=histograms,
        kv_tokens=reading.kv_tokens,
        host_kv_tokens=reading.host_kv_tokens or _host_tokens(config, reading.kv_tokens),
        block_tokens=int(block) if block.isascii() and block.isdigit() and len(block) < 8 else 0,
        prefix_caching=caching or Switch.UNTOLD,
        asleep=reading.asleep,
    )  # fmt: skip


def steers(exposition: bytes) -> bool:
    """Whether these are the metrics of kvring itself: the fleet is routed by prefix."""
    return _STEERED in exposition or exposition.startswith(_STEERED[1:])


def _host_tokens(config: Mapping[str, str], kv_tokens: int | None) -> int | None:
    """What an offload of so many GiB holds, from the device's bytes a token; None where that is not told."""
    try:
        offload_bytes = float(config.get("kv_offloading_size", "")) * 2**30
        device_bytes = float(config.get("kv_cache_memory_bytes", ""))
    except ValueError:
        return None
    if not kv_tokens or not 0 < device_bytes < 2**60 or not 0 < offload_bytes < 2**60:
        return None
    return round(offload_bytes / device_bytes * kv_tokens)


def _labels(finder: text.Finder, exposition: bytes, name: text.Name) -> dict[str, str]:
    for pairs, _ in text.parse(finder.lines(exposition, name), name.name):
        return text.labels(pairs)
    return {}


def _histogram(finder: text.Finder, exposition: bytes, name: text.Name) -> histogram.Histogram | None:
    """All series of one histogram, added up; None if it is not there."""
    base = name.name.decode()
    bucket = text.Name(f"{base}_bucket")
    summed: dict[float, float] = {}
    for pairs, value in text.parse(finder.lines(exposition, bucket), bucket.name):
        if b'tp_rank="' in pairs and b'tp_rank="0"' not in pairs:
            continue
        try:
            bound = float(text.label(pairs, b"le") or b"")
        except ValueError:
            continue
        if bound == bound and (bound in summed or len(summed) < _BUCKETS_MAX):  # noqa: PLR0124  (no NaN)
            summed[bound] = summed.get(bound, 0.0) + value
    if not summed:
        return None
    total = finder.total(exposition, text.Name(f"{base}_sum"), operator.add)
    return histogram.Histogram(tuple(sorted(summed.items())), total or 0.0)
