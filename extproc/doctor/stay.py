"""Stay: what one replica did over a span of time, from its samples; and several replicas' taken together.

Counters and histograms: last sample minus the first, or, with a single sample or after a restart in between,
all since the process started. Gauges: mean and most of all samples.

Invariant: nothing is below zero; `elapsed_s` is None unless both ends are known. Called by: figures,
diagnosis.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from extproc.doctor import histogram, sample
from extproc.signals import Engine

__all__ = ["Stay", "together", "watched"]


@dataclass(frozen=True, slots=True)
class Stay:
    """A span of one replica's life, or of several replicas' lives.

    `elapsed_s`: its length, of several the mean. `counts`: by quantity, how much a counter rose; `gauges`,
    `peaks`: mean and most of a gauge, of several replicas the mean and the most. `restarts`: processes that
    ended within. `watched_s`: from the first sample to the last. `since_start`: it reaches back to the start
    of the process, for want of an earlier sample. `age_s`: of the process at the end.
    """

    name: str
    engine: Engine
    model: str
    replicas: int = 1
    elapsed_s: float | None = None
    age_s: float | None = None
    watched_s: float | None = None
    counts: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, histogram.Histogram] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    peaks: Mapping[str, float] = field(default_factory=dict)
    restarts: int = 0
    since_start: bool = False
    kv_tokens: int | None = None
    host_kv_tokens: int | None = None
    block_tokens: int = 0
    prefix_caching: sample.Switch = sample.Switch.UNTOLD
    asleep: bool = False


_GAUGES = ("running", "waiting", "kv_usage")
_OFF = sample.Switch.OFF


def watched(samples: Sequence[sample.Sample]) -> Stay:
    """The stay that samples of one replica show, in the order of time; at least one, else ValueError."""
    if not samples:
        raise ValueError("no samples")
    last = samples[-1]
    restarts = 0
    first: sample.Sample | None = samples[0] if len(samples) > 1 else None
    for before, after in itertools.pairwise(samples):
        if _restarted(before, after):
            restarts += 1
            first = None  # what came before is another process's
    age_s = _between(last.started_s, last.at_s)
    watched_s = _between(samples[0].at_s, last.at_s)
    elapsed_s = age_s if first is None else watched_s
    earlier = first or sample.Sample(last.replica, None, last.engine)
    values = {
        key: [one.numbers[key] for one in samples if key in one.numbers] for key in _GAUGES
    }  # fmt: skip
    return Stay(
        name=last.replica,
        engine=last.engine,
        model=last.model,
        elapsed_s=elapsed_s,
        age_s=age_s,
        watched_s=watched_s,
        counts={
            key: max(value - earlier.numbers.get(key, 0.0), 0.0)
            for key, value in last.numbers.items()
            if key not in _GAUGES
        },
        histograms={
            key: found.minus(earlier.histograms.get(key, histogram.EMPTY))
            for key, found in last.histograms.items()
        },
        gauges={key: sum(seen) / len(seen) for key, seen in values.items() if seen},
        peaks={key: max(seen) for key, seen in values.items() if seen},
        restarts=restarts,
        since_start=first is None,
        kv_tokens=last.kv_tokens,
        host_kv_tokens=last.host_kv_tokens,
        block_tokens=last.block_tokens,
        prefix_caching=last.prefix_caching,
        asleep=last.asleep,
    )


def together(name: str, stays: Sequence[Stay]) -> Stay:
    """Several replicas' stays as one; at least one, else ValueError.

    Capacities are the mean of those told: they size a replica of the fleet.
    """
    if not stays:
        raise ValueError("no stays")
    keys = {key for one in stays for key in one.counts}
    switches = {one.prefix_caching for one in stays}
    return Stay(
        name=name,
        engine=stays[0].engine,
        model=stays[0].model,
        replicas=len(stays),
        elapsed_s=_mean([one.elapsed_s for one in stays]),
        watched_s=_mean([one.watched_s for one in stays]),
        age_s=min((one.age_s for one in stays if one.age_s is not None), default=None),
        counts={key: sum(one.counts.get(key, 0.0) for one in stays) for key in keys},
        histograms={
            key: histogram.merge(one.histograms[key] for one in stays if key in one.histograms)
            for key in {key for one in stays for key in one.histograms}
        },
        gauges={
            key: value
            for key in _GAUGES
            if (value := _mean([one.gauges.get(key) for one in stays])) is not None
        },
        peaks={
            key: max(known)
            for key in _GAUGES
            if (known := [one.peaks[key] for one in stays if key in one.peaks])
        },
        restarts=sum(one.restarts for one in stays),
        since_start=any(one.since_start for one in stays),
        kv_tokens=_whole(_mean([one.kv_tokens for one in stays])),
        host_kv_tokens=_whole(_mean([one.host_kv_tokens for one in stays])),
        block_tokens=max(one.block_tokens for one in stays),
        prefix_caching=next(one for one in (_OFF, sample.Switch.ON, sample.Switch.UNTOLD) if one in switches),
        asleep=all(one.asleep for one in stays),
    )  # fmt: skip


def _between(start_s: float | None, end_s: float | None) -> float | None:
    """The time from one to the other; None if that is unknown or none."""
    return end_s - start_s if start_s is not None and end_s is not None and end_s > start_s else None


def _restarted(before: sample.Sample, after: sample.Sample) -> bool:
    """Whether the process is another: it says so, or prompt tokens fell."""
    if None not in (before.started_s, after.started_s) and before.started_s != after.started_s:
        return True
    fallen = (
        after.numbers.get(key, 0.0) < before.numbers.get(key, 0.0) for key in ("prompt_tokens", "queries")
    )
    return any(fallen)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
