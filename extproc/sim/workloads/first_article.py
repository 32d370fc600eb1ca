"""The first article's load: users in a closed loop over shared prefixes.

Think U(0.5, 2) s, send one of `prefixes` shared prefixes and a question of one's own, read 100 output tokens,
again. Question sizes 10/20/30/40 % small/medium/large/xlarge. Of a prompt the share `shared` is the prefix:
at .9 the article's own sizes, below it questions grow to the length that makes it so.

Prefixes are drawn one from each stratum of U(2000, 8000), as `kvring demo` does. The article's client buffers
32 tokens before it believes to see the first: `shown` marks that token. Called by: workloads.
"""

from __future__ import annotations

import random

from extproc.sim import client, content, performance, scenario

__all__ = ["MODELS", "make"]

_A100 = performance.PRESETS["codellama-13b-a100-40"]

MODELS = {
    "13b": _A100,
    # Llama-3.1-8B in 16 bit on the same A100-40: 131 KB of KV a token, about 20 GB left for it
    "8b": performance.Performance(
        weights_s=0.0103, overhead_s=0.002, token_s=50e-6, context_s=0.085e-6,
        attention_s=0.0, kv_tokens=150_000, budget_tokens=2048,
    ),
    # Llama-70B over 4 A100: 328 KB of KV a token; weights bind, prefill is 2.3 times as slow as 13B's
    "70b": performance.Performance(
        weights_s=0.0225, overhead_s=0.003, token_s=120e-6, context_s=0.055e-6,
        attention_s=0.0, kv_tokens=60_000, budget_tokens=2048,
    ),
}  # fmt: skip

_QUESTIONS = ((32, 0.1), (64, 0.2), (128, 0.3), (256, 0.4))
_OUTPUT_TOKENS = 100
_BUFFERED_TOKENS = 32
_SHARED = 0.9  # of a prompt, with the article's own sizes


def make(
    load: float = 1.0,
    *,
    prefixes: int = 5,
    users: int = 30,
    shared: float = 0.9,
    model: str = "13b",
    endpoints: int = 8,
    prefix_tokens: int = 0,
) -> scenario.Scenario:
    """The load with `prefixes` shared prefixes [>= 1], `users` * `load` users, `shared` of .9, .7 or .5.

    `model`: 8b, 13b or 70b. `prefix_tokens`: what the prefixes add up to, 0 for the mean of the draw.
    """
    if model not in MODELS:
        raise ValueError(f"model is {model}, must be one of {', '.join(MODELS)}")
    people = max(round(users * load), 1)

    def starts(seed: int) -> client.Starts:
        lengths = _lengths(random.Random(f"{seed}/prefixes"), prefixes, prefix_tokens)
        if shared < _SHARED:  # prompts stay as long: what the prefix loses the question gains
            lengths = [round(length * shared / _SHARED) for length in lengths]
        systems = [content.piece(seed, "prefix", prefix) for prefix in range(prefixes)]
        heads = [
            content.Content.of([(system, length)]) for system, length in zip(systems, lengths, strict=True)
        ]
        for user in range(people):
            yield client.Start(0.0, _user(seed, user, systems, heads, shared))

    return scenario.Scenario(
        name="first",
        summary=f"first article: {people} users, {prefixes} prefixes, {shared:g} shared, {model}",
        starts=starts,
        models=(MODELS[model],) * endpoints,
        duration_s=300.0,
        warmup_s=60.0,
        shown=_BUFFERED_TOKENS,
    )


def _lengths(rng: random.Random, count: int, sum_tokens: int) -> list[int]:
    """Lengths of the prefixes, spread over U(2000, 8000) and scaled to their sum, in no order."""
    step = 6000 / count
    lengths = [2000 + step * (stratum + rng.random()) for stratum in range(count)]
    rng.shuffle(lengths)
    scale = sum_tokens / sum(lengths) if sum_tokens else 1.0
    return [round(length * scale) for length in lengths]


def _user(
    seed: int, user: int, systems: list[int], heads: list[content.Content], shared: float
) -> client.Script:
    rng = random.Random(f"{seed}/user/{user}")
    sizes = [size for size, _ in _QUESTIONS]
    shares = [share for _, share in _QUESTIONS]
    turn = 0
    while True:
        prefix = rng.randrange(len(heads))
        question = rng.choices(sizes, shares)[0]
        head = heads[prefix]
        if shared < _SHARED:
            question = round(head.tokens * (1 - shared) / shared * rng.uniform(0.75, 1.25))
        yield client.Pause(rng.uniform(0.5, 2.0))
        mine = content.piece(seed, "question", user, turn)
        yield client.Ask(
            head.then(mine, question),
            _OUTPUT_TOKENS,
            f"prefix {prefix}",
            system_tokens=head.tokens,
            system=systems[prefix],
            user=mine,
        )
        turn += 1
