"""Mooncake traces: one JSON object a line: timestamp [ms], input_length, output_length, hash_ids.

An id names 512 tokens and all before them, so equal ids mean equal starts; the last covers what is left. What
of an answer a later prompt repeats is not told apart from what the user wrote, so answers are not cached.
Called by: traces. Source: the trace format published with Mooncake (FAST '25).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from extproc.sim import client, content

__all__ = ["BLOCK_TOKENS", "read"]

BLOCK_TOKENS = 512


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def read(raw: bytes, pace: float) -> tuple[Callable[[int], client.Starts], float]:
    """Scripts of a seed, and how long they last [s]; the requests are those of the trace under every seed.

    Errors: ValueError for a line of another shape.
    """
    decoder = msgspec.json.Decoder(_Line)
    lines = sorted((decoder.decode(line) for line in raw.splitlines() if line), key=_time)
    if not lines:
        raise ValueError("no requests")

    def starts(seed: int) -> client.Starts:  # noqa: ARG001  (a recorded load has one seed)
        for line in lines:
            yield client.Start((line.timestamp - lines[0].timestamp) / 1000 / pace, _ask(line))

    return starts, (lines[-1].timestamp - lines[0].timestamp) / 1000 / pace + 1


def _time(line: _Line) -> float:
    return line.timestamp


def _ask(line: _Line) -> client.Script:
    left = max(line.input_length, 1)
    pieces = []
    for number in line.hash_ids:
        tokens = min(BLOCK_TOKENS, left)
        pieces.append((number, tokens))
        left -= tokens
    if left:  # more tokens than ids: the rest is the request's own
        pieces.append((content.piece("rest", str(line.timestamp), *line.hash_ids[-1:]), left))
    conversation = line.hash_ids[1:2] or line.hash_ids[:1]
    yield client.Ask(
        content.Content.of(pieces),
        max(line.output_length, 1),
        f"conversation {conversation[0]}" if conversation else "",
        user=content.piece("user", *line.hash_ids[:2]),
    )
