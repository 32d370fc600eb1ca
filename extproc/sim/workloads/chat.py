"""Chat with short prompts: a 40-token system prompt, questions of some 100 tokens, a few turns.

There is little to reuse; a policy must do no harm. Conversations arrive as a Poisson process,
`per_s` * `load` a second. Called by: workloads.
"""

from __future__ import annotations

import random

from extproc.sim import client, content, performance, scenario
from extproc.sim.workloads import chance

__all__ = ["make"]

_SYSTEM_TOKENS = 40


def make(load: float = 1.0, *, per_s: float = 8.0, turns: int = 6, endpoints: int = 8) -> scenario.Scenario:
    """The load; a conversation has 1 to `turns` turns."""
    rate = per_s * load

    def starts(seed: int) -> client.Starts:
        rng = random.Random(f"{seed}/chat")
        for number, at_s in enumerate(chance.arrivals(rng, lambda _: rate, rate)):
            yield client.Start(at_s, _talk(seed, number, turns))

    return scenario.Scenario(
        name="chat",
        summary=f"short chats, {rate:g} conversations/s",
        starts=starts,
        models=(performance.PRESETS["8b-h100"],) * endpoints,
        duration_s=240.0,
        warmup_s=40.0,
    )


def _talk(seed: int, number: int, turns: int) -> client.Script:
    rng = random.Random(f"{seed}/talk/{number}")
    name = f"talk {number}"
    system = content.piece(seed, "system")
    talk = content.Content.of([(system, _SYSTEM_TOKENS)])
    first = content.piece(seed, name, "user", 0)
    for turn in range(rng.randint(1, turns)):
        talk = talk.then(content.piece(seed, name, "user", turn), rng.randint(20, 200))
        answer, output = content.piece(seed, name, "answer", turn), rng.randint(50, 250)
        yield client.Ask(
            talk, output, name, answer, name, system_tokens=_SYSTEM_TOKENS, system=system, user=first
        )
        talk = talk.then(answer, output)
        yield client.Pause(rng.uniform(2, 8))
