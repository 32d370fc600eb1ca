"""A router's memory does not grow with what it was asked, S04."""

import gc
import tracemalloc

from extproc import choice, pool, prompt, router

ENDPOINTS = 4


def members(adapters: tuple[str, ...]) -> list[pool.Endpoint]:
    models = frozenset(("base", *adapters))
    return [
        pool.Endpoint(pool.EndpointId(f"e{number}"), f"10.0.0.{number}:80", models=models)
        for number in range(ENDPOINTS)
    ]


def test_memory_is_flat_over_distinct_prompts_and_adapters_that_come_and_go() -> None:
    of = router.Router(
        pool.make("p", members(())),
        router.Settings(kv_tokens=8000, host_kv_tokens=8000, answers_max=500, anchor_half_life_s=5.0),
    )

    def ask(number: int) -> None:
        now = number * 0.01
        adapter = f"adapter {number // 100}"
        if number % 100 == 0:  # one is loaded, the one before it dropped
            of.publish(pool.make("p", members((adapter,)), number + 2))
        model = adapter if number % 2 else f"invented {number}" if number % 10 == 0 else "base"
        text = b"a prompt of all " * 64 + f"{number} ".encode() * 256
        asked = prompt.Prompt("/chat/completions", model, (model.encode(),), text)
        made = of.choose(asked, now, 0.5, key=f"key {number}" if number % 3 == 0 else None)
        if isinstance(made, choice.Decision):
            of.answers.remember(f"answer {number}", made.choice.endpoint.id, now)
            made.lease.release()

    tracemalloc.start()
    for number in range(3000):
        ask(number)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(3000, 6000):
        ask(number)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100_000, f"{grown} bytes beside {before}"
