"""Recorded fleets: the metrics in tests/data/doctor, made by tests.record_doctor."""

from __future__ import annotations

import gzip
from pathlib import Path

from extproc.doctor import sample, saved

DATA = Path(__file__).parent / "data" / "doctor"
REAL = Path(__file__).parent / "data" / "vllm_metrics.txt"  # of a real vLLM 0.32
NAMES = sorted(path.name for path in DATA.iterdir() if path.is_dir())


def samples(fleet: str) -> list[sample.Sample]:
    """All samples of a recorded fleet, in the order of time."""
    found = []
    for path in sorted((DATA / fleet).iterdir()):
        replica, at_s = saved.named(path.name)
        found.append(sample.read(replica, at_s, gzip.decompress(path.read_bytes())))
    return sorted(found, key=lambda one: one.at_s or 0.0)
