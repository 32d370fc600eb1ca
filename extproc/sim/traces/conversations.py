"""Conversations: a JSON list of objects whose `traj` is a list of chat messages, as tau-bench writes them.

Each assistant message is one request with all messages before it; the next one follows when its answer came
and the tool or user took U(0.2, 2) s. Conversations have no times: they come as a Poisson process of one a
second, in an order drawn by the seed, over and over until the duration ends. Called by: traces.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from extproc.sim import client
from extproc.sim.traces import openai

__all__ = ["read"]

_PER_S = 1.0
_DURATION_S = 300.0
_BYTES_PER_TOKEN = 4


def read(raw: bytes, pace: float) -> tuple[Callable[[int], client.Starts], float]:
    """Scripts of a seed, and how long they last [s]. Errors: ValueError for another shape."""
    found = msgspec.json.decode(raw.lstrip(b"\xef\xbb\xbf"), type=list[Any])
    talks = [talk["traj"] for talk in found if isinstance(talk, dict) and isinstance(talk.get("traj"), list)]
    if not talks:
        raise ValueError("no conversations: objects with a `traj` expected")

    def starts(seed: int) -> client.Starts:
        rng = random.Random(f"{seed}/conversations")
        at_s, number = 0.0, 0
        while True:
            at_s += rng.expovariate(_PER_S * pace)
            talk = rng.randrange(len(talks))
            yield client.Start(at_s, _talk(seed, number, talk, talks[talk]))
            number += 1

    return starts, _DURATION_S


def _talk(seed: int, number: int, talk: int, messages: list[Any]) -> client.Script:
    rng = random.Random(f"{seed}/conversation/{number}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") != "assistant":
            continue
        body = {"model": "model", "messages": messages[:index]}
        answer = msgspec.json.encode([message.get("content"), message.get("tool_calls")])
        output = max(len(answer) // _BYTES_PER_TOKEN, 1)
        # the same talk again, by another customer, is another session with the same text
        yield openai.ask("/v1/chat/completions", body, output, f"{number}", f"talk {talk}")
        yield client.Pause(rng.uniform(0.2, 2.0))
