"""What reading a prompt costs, apart by step, against json.loads of the same body in the same run.

Medians of interleaved rounds, by this thread's CPU time; only ratios are asserted, with slack for a machine
that is busy. Every message costs, so there are two kinds of talk: short turns and a coding agent's long ones.
"""

from __future__ import annotations

import functools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from extproc import chain, prompt, reading, router
from extproc.prompt import body as bodies
from extproc.prompt import chat

pytestmark = pytest.mark.bench

PROSE = "The towpath \u2014 \u201cthe long way\u201d \u2014 leads past the mill, the second lock. "
CODE = 'def find(place: str) -> dict:\n\t"""Where it is."""\n\treturn {"path": "C:\\\\maps\\\\" + place}\n'
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}}
FUNCTIONS = [{"name": f"tool_{n}", "description": PROSE, "parameters": SCHEMA} for n in range(6)]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]


def talk(body_bytes: int, results: int = 1) -> bytes:
    """An agent's chat of about so many bytes, as OpenAI's SDK writes it: prose, code, calls, and their
    results of `results` KB each."""
    rng = random.Random(body_bytes)
    messages: list[dict[str, Any]] = [{"role": "system", "content": PROSE * min(20, body_bytes // 400)}]
    size = 0
    while size < body_bytes:
        call = {
            "id": f"call_{size}",
            "type": "function",
            "function": {"name": "tool_1", "arguments": '{"a": "b"}'},
        }
        more = [
            {"role": "user", "content": PROSE * rng.randrange(1, 6)},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": CODE * rng.randrange(20 * results)},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": (PROSE + CODE) * rng.randrange(1, 5)}],
            },
        ]
        for message in more:
            if size < body_bytes:
                messages.append(message)
                size += len(json.dumps(message, ensure_ascii=False))
    fields = {"model": "qwen3-32b", "stream": True, "messages": messages}
    if body_bytes > 10_000:
        fields["tools"] = TOOLS
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def medians_us(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.thread_time_ns()
            step()
            times[name].append((time.thread_time_ns() - start) / 1000)
    return {name: statistics.median(taken) for name, taken in times.items()}


def costs_us(body: bytes, settings: prompt.Settings, rounds: int) -> dict[str, float]:
    parsed = bodies.parse(body, settings, whole=True)
    assert isinstance(parsed, bodies.Body)
    found = chat.read(parsed)
    assert isinstance(found, prompt.Prompt)
    tuning = router.Settings()
    headers = {":path": "/v1/chat/completions"}

    def whole() -> chain.Chain:
        read = reading.read(headers, body, settings, whole=True).prompt
        assert isinstance(read, prompt.Prompt)
        return chain.build(chain.seed_of(read.seeds), read.text, tuning.block_bytes, tuning.blocks_max)

    return medians_us(
        {
            "json.loads": lambda: json.loads(body),
            "parse": lambda: bodies.parse(body, settings, whole=True),
            "render": lambda: chat.read(parsed),
            "hash": lambda: chain.build(1, found.text, tuning.block_bytes, tuning.blocks_max),
            "all": whole,
        },
        rounds,
    )


def test_reading_a_prompt_costs_little_more_than_parsing_json() -> None:
    """Aims: 2 KB <= 3 x json.loads, 1 MB with the default budget <= 0.5 x."""
    lines, ratio = [], {}
    default = prompt.Settings()
    for name, body, settings, rounds in (
        ("2 KB", talk(2_000), default, 2000),
        ("64 KB", talk(64_000), default, 300),
        ("1 MB, read whole", talk(1_000_000), prompt.Settings(bytes_max=2 << 20), 40),
        ("1 MB, short turns", talk(1_000_000), default, 60),
        ("1 MB, long turns", talk(1_000_000, results=5), default, 60),
    ):
        cost = costs_us(body, settings, rounds)
        ratio[name] = cost["all"] / cost["json.loads"]
        cells = "".join(f"{cost[step]:>12,.0f}" for step in cost)
        lines.append(f"{name:<22}{cells}{ratio[name]:>12.2f}")
    head = "".join(f"{step:>12}" for step in ("json.loads", "parse", "render", "hash", "all", "all/json"))
    sys.stdout.write("\n" + "\n".join([f"{'microseconds':<22}{head}", *lines]) + "\n")
    assert ratio["2 KB"] <= 4.5
    assert ratio["64 KB"] <= 3
    assert ratio["1 MB, short turns"] <= 1.5
    assert ratio["1 MB, long turns"] <= 0.9


def test_past_the_budget_time_is_flat() -> None:
    medium, large = (talk(size) for size in (1 << 20, 8 << 20))
    settings = prompt.Settings()
    cost = medians_us(
        {
            "1 MB": lambda: prompt.read("/v1/chat/completions", medium, settings, whole=True),
            "8 MB": lambda: prompt.read("/v1/chat/completions", large, settings, whole=True),
        },
        60,
    )
    sys.stdout.write(f"\n{cost} us\n")
    assert cost["8 MB"] <= 1.5 * cost["1 MB"]


WORST = {
    "ordinary": (b'{"model":"m","messages":[', b'{"role":"user","content":"%b"},' % PROSE.encode()),
    "empty arrays": (b'{"model":"m","messages":[{"role":"u","content":"x"}],"tools":[', b"[],"),
    "empty strings": (b'{"model":"m","messages":[{"role":"u","content":[', b'"",'),
    "parts": (b'{"model":"m","messages":[{"role":"u","content":[', b'{"text":""},'),
    "spans": (b'{"model":"m","messages":[{"role":"u","content":"', b"x-anthropic-billing-header:"),
    "late keys": (b'{"model":"m","messages":[{"role":"u","content":[', b'{"a":1,"model":"x"},'),
}


def test_worst_bodies_are_bounded_by_the_budget() -> None:
    """CPU time of the worst bodies that were found: what 8 MiB cost is what 512 KiB do."""
    lines, most = [], 0.0
    for name, (start, unit) in WORST.items():
        short, long = (start + unit * (size // len(unit)) for size in (512 << 10, 8 << 20))
        read = functools.partial(prompt.read, "/v1/chat/completions", settings=prompt.Settings())
        cost = medians_us(
            {
                "512 KiB": functools.partial(read, short, whole=False),
                "8 MiB": functools.partial(read, long, whole=True),
            },
            7,
        )
        most = max(most, cost["8 MiB"] / cost["512 KiB"])
        lines.append(f"{name:<16}" + "".join(f"{us:>12,.0f}" for us in cost.values()))
    head = f"{'microseconds':<16}{'512 KiB':>12}{'8 MiB':>12}"
    sys.stdout.write("\n" + "\n".join([head, *lines]) + "\n")
    assert most < 3
