"""Coding agents: every turn sends the whole transcript again, 30 turns growing to about 115,000 tokens.

All share 13,000 tokens of tools and system prompt; each works in one of `projects` repositories, whose 4,000
tokens of instructions follow. A turn adds the last answer and what a tool gave back. After the last turn the
client begins a new session. 32 clients nearly fill the caches, 48 are too many. The second article's test is
`clients=8,endpoints=1,kv_tokens=1100000`. Called by: workloads.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from extproc.sim import client, content, performance, scenario

__all__ = ["make"]

_SYSTEM_TOKENS = 13_000
_PROJECT_TOKENS = 4_000
_TURN_TOKENS = 3_200


def make(
    load: float = 1.0,
    *,
    clients: int = 32,
    endpoints: int = 8,
    projects: int = 6,
    turns: int = 30,
    sessions: int = 0,
    output_tokens: int = 100,
    kv_tokens: int = 430_000,
    host_tokens: int = 0,
    preset: str = "8b-h100",
    duration_s: float = 300.0,
    warmup_s: float = 60.0,
    reuse: bool = True,
) -> scenario.Scenario:
    """The load with `clients` * `load` clients.

    `sessions`: transcripts of `turns` turns that each client begins, 0 for no end. `reuse`: False for engines
    without prefix cache.
    """
    model = replace(performance.PRESETS[preset], kv_tokens=kv_tokens, host_kv_tokens=host_tokens)
    people = max(round(clients * load), 1)

    def starts(seed: int) -> client.Starts:
        rng = random.Random(f"{seed}/coding")
        # one after the other, so that not all prefill the same start at once
        for number in range(people):
            script = _client(seed, number, rng.randrange(projects), turns, sessions, output_tokens)
            yield client.Start(number * 0.2 / load, script)

    return scenario.Scenario(
        name="coding",
        summary=f"{people} coding clients of {turns} turns",
        starts=starts,
        models=(model,) * endpoints,
        duration_s=duration_s,
        warmup_s=warmup_s,
        reuse=reuse,
    )


def _client(
    seed: int, number: int, project: int, turns: int, sessions: int, output_tokens: int
) -> client.Script:
    rng = random.Random(f"{seed}/client/{number}")
    system = content.piece(seed, "system")
    start = content.Content.of(
        [(system, _SYSTEM_TOKENS), (content.piece(seed, "project", project), _PROJECT_TOKENS)]
    )
    for session in itertools.count() if not sessions else range(sessions):
        name = f"client {number} session {session}"
        transcript = start
        for turn in range(turns):
            new = round(rng.uniform(0.5, 1.5) * _TURN_TOKENS)
            transcript = transcript.then(content.piece(seed, name, "turn", turn), new)
            answer = content.piece(seed, name, "answer", turn)
            yield client.Ask(
                transcript,
                output_tokens,
                name,
                answer,
                session=name,
                system_tokens=_SYSTEM_TOKENS,
                system=system,
                user=content.piece(seed, "project", project),
            )
            transcript = transcript.then(answer, output_tokens)
            yield client.Pause(rng.uniform(0.4, 1.2))
