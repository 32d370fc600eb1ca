"""One hot system prompt with 80 % of the traffic, 20 others with the rest.

What a ring without a bound sends to one endpoint. Arrivals are Poisson, `per_s` * `load` a second.
Called by: workloads.
"""

from __future__ import annotations

import random

from extproc.sim import client, content, performance, scenario
from extproc.sim.workloads import chance

__all__ = ["make"]

_OUTPUT_TOKENS = 100


def make(
    load: float = 1.0,
    *,
    per_s: float = 8.0,
    hot: float = 0.8,
    others: int = 20,
    system_tokens: int = 3000,
    endpoints: int = 8,
) -> scenario.Scenario:
    """The load; `hot`: share of requests with the hot prompt [0..1]."""
    rate = per_s * load

    def starts(seed: int) -> client.Starts:
        rng = random.Random(f"{seed}/hot")
        for number, at_s in enumerate(chance.arrivals(rng, lambda _: rate, rate)):
            which = 0 if rng.random() < hot else 1 + rng.randrange(others)
            system = content.piece(seed, "system", which)
            own = content.piece(seed, "question", number)
            prompt = content.Content.of([(system, system_tokens), (own, rng.randint(32, 512))])
            yield client.Start(
                at_s, _once(client.Ask(prompt, _OUTPUT_TOKENS, f"system {which}", system_tokens=system_tokens,
                                       system=system, user=own))
            )  # fmt: skip

    return scenario.Scenario(
        name="hot",
        summary=f"one system prompt of {system_tokens} tokens has {hot:.0%} of {rate:g} requests/s",
        starts=starts,
        models=(performance.PRESETS["codellama-13b-a100-40"],) * endpoints,
        duration_s=300.0,
        warmup_s=60.0,
    )


def _once(ask: client.Ask) -> client.Script:
    yield ask
