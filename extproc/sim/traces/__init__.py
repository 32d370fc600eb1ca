"""Traces: recorded requests to replay, one file a format; `load` finds the format by the content.

| format | recognised by | what is shared is known from |
|---|---|---|
| Mooncake JSONL | `hash_ids` | ids of blocks of 512 tokens |
| OpenAI JSONL | `messages`, `prompt`, `input` or `body` | the text, read by the production prompt reader |
| Azure CSV | `TIMESTAMP,ContextTokens,GeneratedTokens` | nothing: every prompt is its own |
| conversations JSON | a list of objects with `traj` | the text, turn by turn |

Gzip is undone. Arrivals keep their times over `load` (1.15: everything comes 15 % sooner); conversations have
none and arrive one every few seconds. Called by: cli.simulate, tests.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from extproc.sim import performance, scenario
from extproc.sim.traces import azure, conversations, mooncake, openai

__all__ = ["TraceError", "find", "load"]

_GZIP = b"\x1f\x8b"
_BYTES_MAX = 1 << 30


class TraceError(ValueError):
    """A file that cannot be replayed; the text names it and says why."""


def find(name: str) -> Path:
    """The file `name`, or the one of that name in `$KVRING_DATA/traces`; TraceError if there is neither."""
    path = Path(name)
    if path.exists():
        return path
    folder = os.environ.get("KVRING_DATA")
    if folder and (Path(folder) / "traces" / name).exists():
        return Path(folder) / "traces" / name
    raise TraceError(f"{name}: no such file, nor in $KVRING_DATA/traces")


def load(path: Path, model: performance.Performance, endpoints: int, pace: float = 1.0) -> scenario.Scenario:
    """The scenario of a trace on `endpoints` replicas of `model`; `pace` [> 0] speeds arrivals up.

    Errors: TraceError for a file that is none of the formats, or too large.
    """
    raw = path.read_bytes()
    if raw[:2] == _GZIP:
        with gzip.open(path) as file:
            raw = file.read(_BYTES_MAX + 1)
    if len(raw) > _BYTES_MAX:
        raise TraceError(f"{path}: more than {_BYTES_MAX} bytes")
    start = raw[:4096].lstrip(b"\xef\xbb\xbf \n\r\t")
    try:
        if start.startswith(b"["):
            found = conversations.read(raw, pace)
        elif start.startswith(b"{"):
            reader = mooncake.read if b'"hash_ids"' in start else openai.read
            found = reader(raw, pace)
        else:
            found = azure.read(raw, pace)
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path}: {error}") from error
    starts, duration_s = found
    return scenario.Scenario(
        name=path.name.partition(".")[0],
        summary=f"trace {path.name}",
        starts=starts,
        models=(model,) * endpoints,
        duration_s=duration_s,
    )
