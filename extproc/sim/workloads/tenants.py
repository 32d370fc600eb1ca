"""Tenants: each has a LoRA adapter and a system prompt of its own; some are much busier than others.

Prompts under different adapters share no cache, however equal their text. Conversations arrive as a Poisson
process; tenants are popular by Zipf's law. Called by: workloads.
"""

from __future__ import annotations

import random

from extproc.sim import client, content, performance, scenario
from extproc.sim.workloads import chance

__all__ = ["make"]

_SYSTEM_TOKENS = 2500


def make(
    load: float = 1.0, *, tenants: int = 24, per_s: float = 2.0, turns: int = 5, endpoints: int = 8
) -> scenario.Scenario:
    """The load of `tenants` adapters, `per_s` * `load` conversations a second of 1 to `turns` turns."""
    rate = per_s * load
    weights = chance.popularity(tenants)

    def starts(seed: int) -> client.Starts:
        rng = random.Random(f"{seed}/tenants")
        for number, at_s in enumerate(chance.arrivals(rng, lambda _: rate, rate)):
            tenant = rng.choices(range(tenants), cum_weights=weights)[0]
            yield client.Start(at_s, _talk(seed, number, tenant, turns))

    return scenario.Scenario(
        name="tenants",
        summary=f"{tenants} tenants with an adapter each, {rate:g} conversations/s",
        starts=starts,
        models=(performance.PRESETS["codellama-13b-a100-40"],) * endpoints,
        duration_s=300.0,
        warmup_s=60.0,
    )


def _talk(seed: int, number: int, tenant: int, turns: int) -> client.Script:
    rng = random.Random(f"{seed}/talk/{number}")
    name, adapter = f"talk {number}", f"adapter-{tenant}"
    system = content.piece(seed, "system", tenant)
    talk = content.Content.of([(system, _SYSTEM_TOKENS)], adapter)
    first = content.piece(seed, name, "user", 0)
    for turn in range(rng.randint(1, turns)):
        talk = talk.then(content.piece(seed, name, "user", turn), rng.randint(30, 300))
        answer, output = content.piece(seed, name, "answer", turn), rng.randint(50, 150)
        yield client.Ask(talk, output, adapter, answer, name, adapter, _SYSTEM_TOKENS, system, first)
        talk = talk.then(answer, output)
        yield client.Pause(rng.uniform(1, 5))
