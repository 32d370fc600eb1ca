"""The second article's documents: long texts asked about again and again, in and beyond the GPU cache.

`readers` clients go on asking about one of `documents` texts of 13,200 tokens, drawn anew each time or, with
`order=cycle`, one after the other, the worst order for an LRU cache. A GPU cache of 450,000 tokens holds 34
of them; what is evicted goes to `host_tokens` of CPU memory, and to an `external_tokens` store that survives
a restart of all engines at `restart_s`. The article's client adds .1 s. Called by: workloads.
"""

from __future__ import annotations

import random
from dataclasses import replace

from extproc.sim import client, content, performance, scenario

__all__ = ["DOCUMENT_TOKENS", "make"]

DOCUMENT_TOKENS = 13_200
_QUESTION_TOKENS = 40
_OUTPUT_TOKENS = 50


def make(
    load: float = 1.0,
    *,
    documents: int = 200,
    endpoints: int = 8,
    readers: int = 16,
    order: str = "random",
    host_tokens: int = 0,
    external_tokens: int = 0,
    restart_s: float = 0.0,
) -> scenario.Scenario:
    """The load with `readers` * `load` clients. `restart_s`: 0 for never."""
    model = replace(performance.PRESETS["second-article"], host_kv_tokens=host_tokens)
    people = max(round(readers * load), 1)

    def starts(seed: int) -> client.Starts:
        for reader in range(people):
            yield client.Start(0.0, _reader(seed, reader, documents, order))

    events = (scenario.Event(scenario.Kind.RESTART, "*", restart_s),) if restart_s else ()
    return scenario.Scenario(
        name="documents",
        summary=f"{documents} documents of {DOCUMENT_TOKENS} tokens, {people} readers",
        starts=starts,
        models=(model,) * endpoints,
        duration_s=300.0,
        warmup_s=120.0,
        external_kv_tokens=external_tokens,
        client_s=0.1,
        events=events,
    )


def _reader(seed: int, reader: int, documents: int, order: str) -> client.Script:
    rng = random.Random(f"{seed}/reader/{reader}")
    turn = 0
    while True:
        number = turn % documents if order == "cycle" else rng.randrange(documents)
        document = content.piece(seed, "document", number)
        question = content.piece(seed, "question", reader, turn)
        prompt = content.Content.of([(document, DOCUMENT_TOKENS), (question, _QUESTION_TOKENS)])
        yield client.Ask(prompt, _OUTPUT_TOKENS, f"document {number}", user=document)
        yield client.Pause(rng.uniform(0.5, 1.5))
        turn += 1
