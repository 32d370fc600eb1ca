"""Saved: expositions kept as files, so that a fleet can be looked at later, elsewhere, again.

    REPLICA@SECONDS.prom        what REPLICA said at SECONDS (any origin, the same for all); .gz: compressed

A file named otherwise is one sample of the replica it is named after, at a time nobody knows. A saved
exposition keeps only the families the doctor reads: a fifth of vLLM's, and nothing that labels requests.

Pure: names and texts. Called by: cli.doctor, tests.
"""

from __future__ import annotations

import re

from extproc.doctor import quantity

__all__ = ["SUFFIXES", "name_of", "named", "thinned"]

SUFFIXES = (".prom", ".txt", ".prom.gz", ".txt.gz")
_NAME = re.compile(r"(?P<replica>.+)@(?P<seconds>\d+(?:\.\d+)?)")
_UNSAFE = re.compile(r"[^A-Za-z0-9._:\[\]-]")


def named(file_name: str) -> tuple[str, float | None]:
    """Replica and time [s] that a file's name tells."""
    stem = next(
        (file_name.removesuffix(end) for end in reversed(SUFFIXES) if file_name.endswith(end)), file_name
    )
    found = _NAME.fullmatch(stem)
    return (found["replica"], float(found["seconds"])) if found else (stem, None)


def name_of(replica: str, at_s: float) -> str:
    """The file name for what `replica` said at `at_s` [s, >= 0]."""
    return f"{_UNSAFE.sub('_', replica)}@{at_s:.3f}.prom"


def thinned(exposition: bytes) -> bytes:
    """Its samples that the doctor reads, each family after its TYPE line."""
    wanted = {name.encode() for name in quantity.families()}
    kept = []
    for line in exposition.splitlines():
        if line.startswith(b"# TYPE "):
            name = next(iter(line.split(maxsplit=3)[2:3]), b"")
            if name in wanted or name + b"_bucket" in wanted or name + b"_total" in wanted:
                kept.append(line)
        elif not line.startswith(b"#") and re.split(rb"[{ \t]", line, maxsplit=1)[0] in wanted:
            kept.append(line)
    return b"\n".join(kept) + b"\n"
