"""Conversations that an agent really had: tau-bench, airline (needs KVRING_DATA; 200 of 27 messages)."""

import bisect
import gzip
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from extproc import choice, footprint, pool, prompt, router
from extproc.sim import template
from tests import prompts, shared_data

MODEL = "qwen3-32b"


@pytest.fixture(scope="module")
def conversations() -> list[list[dict[str, Any]]]:
    with gzip.open(shared_data.path("traces/tau_bench_airline.json.gz")) as file:
        return [run["traj"] for run in json.load(file)]


def asked(messages: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """What was sent to the model, turn by turn: all before each of its answers."""
    return (messages[:at] for at in answers(messages))


def answers(messages: list[dict[str, Any]]) -> Iterator[int]:
    """Where the model's answers are."""
    return (at for at, message in enumerate(messages) if message["role"] == "assistant")


def body(messages: list[dict[str, Any]]) -> bytes:
    return json.dumps({"messages": messages, "model": MODEL, "temperature": 0.0}).encode()


def test_every_turn_extends_the_chain_of_the_turn_before(conversations: list[list[dict[str, Any]]]) -> None:
    turns = 0
    for messages in conversations:
        before: prompt.Prompt | None = None
        for sent in asked(messages):
            found = prompts.keyed(body(sent))
            assert before is None or prompts.is_start(before, found, block_bytes=256)
            before = found
            turns += 1
    assert turns > 2000


def _common(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


class _Seen:
    """Texts, and the longest start that a new one shares with any of them."""

    def __init__(self) -> None:
        self._sorted: list[bytes] = []

    def shared(self, text: bytes) -> int:
        at = bisect.bisect(self._sorted, text)
        return max((_common(text, other) for other in self._sorted[max(at - 1, 0) : at + 1]), default=0)

    def add(self, text: bytes) -> None:
        bisect.insort(self._sorted, text)


def test_predicted_reuse_covers_what_is_really_shared(conversations: list[list[dict[str, Any]]]) -> None:
    """Against prompts rendered by a chat template, with the answers to them, on one endpoint that forgets
    nothing: the share of prompts of which kvring predicts at least 95 % of the bytes that it has there."""
    endpoint = pool.Endpoint(pool.EndpointId("e"), "10.0.0.1:80")
    of = router.Router(pool.make("p", [endpoint]), router.Settings(kv_tokens=1_000_000_000))
    seen, covered = _Seen(), []
    expected_answer = (footprint.OUTPUT_TOKENS + 32) * of.settings.bytes_per_token
    turns = [[(messages, at) for at in answers(messages)] for messages in conversations]
    for step in range(max(map(len, turns))):  # all talk at once
        for messages, at in (of_one[step] for of_one in turns if step < len(of_one)):
            sent = messages[:at]
            shared = seen.shared(template.render({}, sent))
            seen.add(template.render({}, messages[: at + 1]))
            decided = of.choose(prompts.read(body(sent)), 0.0, 0.5)
            assert isinstance(decided, choice.Decision)
            predicted = decided.choice.cached_tokens * of.settings.bytes_per_token
            decided.lease.release()
            # what the engine can't keep would be worse than no promise; answers can be shorter than expected
            assert predicted <= shared * 1.05 + expected_answer
            if shared:
                covered.append(predicted / shared)
    share = sum(one >= 0.95 for one in covered) / len(covered)
    sys.stdout.write(f"\n{len(covered)} prompts, least share {min(covered):.3f}, >= .95 of {share:.3f}\n")
    assert share >= 0.95
