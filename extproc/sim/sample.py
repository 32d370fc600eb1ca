"""Sample: what the load client saw of one request, in engine time.

Engine time = real time * speed: the simulated replicas run `speed` times faster than the hardware they
stand for, so every duration seen from outside is stretched back by the same factor.

Invariant: a sample is complete when made and never changes; a failed request is a sample too (`error`
names the kind), it is never dropped. Made by: driver. Read by: report, live.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One request of one arm.

    `user`, `turn`, `prefix`: which request of the workload. `endpoint`: the replica that answered, by its
    own word (`x-replica`), "" if none did. `started_s`, `finished_s`: engine seconds since the run began.
    `ttft_s`: from the request's start to its first token [engine seconds], None if no token came.
    `prompt_tokens`, `cached_tokens`, `output_tokens`: the engine's own usage report. `error`: kind of
    failure from a closed set (see `driver`), None if the stream ended well.
    """

    user: int
    turn: int
    prefix: int
    endpoint: str
    started_s: float
    finished_s: float
    ttft_s: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    error: str | None = None
