"""RAG: a system prompt, then three of many passages in the order of their relevance, then a question.

Passages are popular by Zipf's law; the same passages in another order share nothing. Questions about one
topic find the same first passage, so only part of a prompt is shared. Arrivals are Poisson.
Called by: workloads.
"""

from __future__ import annotations

import random

from extproc.sim import client, content, performance, scenario
from extproc.sim.workloads import chance

__all__ = ["make"]

_SYSTEM_TOKENS = 400
_PASSAGE_TOKENS = 1500
_PASSAGES_EACH = 3


def make(
    load: float = 1.0, *, per_s: float = 6.0, topics: int = 300, endpoints: int = 8
) -> scenario.Scenario:
    """The load over `topics` * 5 passages."""
    rate = per_s * load
    weights = chance.popularity(topics, 0.9)

    def starts(seed: int) -> client.Starts:
        rng = random.Random(f"{seed}/rag")
        system = content.piece(seed, "system")
        for number, at_s in enumerate(chance.arrivals(rng, lambda _: rate, rate)):
            topic = rng.choices(range(topics), cum_weights=weights)[0]
            found = [0, *rng.sample(range(1, 5), _PASSAGES_EACH - 1)]  # the best passage comes first
            own = content.piece(seed, "question", number)
            pieces = [(system, _SYSTEM_TOKENS)]
            pieces += [(content.piece(seed, "passage", topic, one), _PASSAGE_TOKENS) for one in found]
            pieces += [(own, rng.randint(20, 120))]
            prompt = content.Content.of(pieces)
            ask = client.Ask(
                prompt, rng.randint(80, 300), f"topic {topic}",
                system_tokens=_SYSTEM_TOKENS, system=system, user=content.piece(seed, "passage", topic, 0),
            )  # fmt: skip
            yield client.Start(at_s, _once(ask))

    return scenario.Scenario(
        name="rag",
        summary=f"RAG over {topics} topics, {rate:g} requests/s",
        starts=starts,
        models=(performance.PRESETS["32b-fp8-h100"],) * endpoints,
        duration_s=300.0,
        warmup_s=60.0,
    )


def _once(ask: client.Ask) -> client.Script:
    yield ask
