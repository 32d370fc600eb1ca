"""Traces of every format become requests with the right sharing; a file that is none is refused."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import itertools
import json

import pytest

from extproc import prompt, router
from extproc.sim import client, figures, performance, policies, simulation, traces
from tests import shared_data

MODEL = dataclasses.replace(performance.PRESETS["32b-fp8-h100"], block_tokens=64)


def load(tmp_path, text: str | bytes, name: str = "t.jsonl", pace: float = 1.0):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return traces.load(path, MODEL, 2, pace)


def asks(asked, count: int | None = None) -> list[tuple[float, client.Ask]]:
    """The first request of each script, and when it starts."""
    return [(start.at_s, next(start.script)) for start in itertools.islice(asked.starts(1), count)]


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


class TestMooncake:
    ROWS = (
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 2000, "input_length": 1500, "output_length": 7, "hash_ids": [1, 3, 4]},
        {"timestamp": 1000, "input_length": 1600, "output_length": 0, "hash_ids": [1, 3, 4, 9]},
    )

    def test_equal_ids_are_equal_blocks_and_arrivals_are_in_order(self, tmp_path):
        (t0, first), (t1, second), (t2, third) = asks(load(tmp_path, lines(*self.ROWS)))
        assert (t0, t1, t2) == (0.0, 1.0, 2.0)
        assert [one.prompt.tokens for one in (first, second, third)] == [1000, 1600, 1500]
        assert first.prompt.hashes[:32] == second.prompt.hashes[:32]
        assert first.prompt.hashes[32] != second.prompt.hashes[32]
        assert third.prompt.hashes == second.prompt.hashes[: len(third.prompt.hashes)]
        assert [one.output_tokens for one in (first, second, third)] == [5, 1, 7]
        assert second.group == third.group != first.group

    def test_pace_brings_requests_sooner(self, tmp_path):
        asked = load(tmp_path, lines(*self.ROWS), pace=2.0)
        assert [at_s for at_s, _ in asks(asked)] == [0.0, 0.5, 1.0]
        assert asked.duration_s == 2.0

    def test_gzip_is_undone(self, tmp_path):
        assert len(asks(load(tmp_path, gzip.compress(lines(*self.ROWS).encode()), "t.jsonl.gz"))) == 3


class TestAzure:
    TEXT = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )

    def test_gives_lengths_and_times_and_shares_nothing(self, tmp_path):
        (_, first), (at_s, second) = asks(load(tmp_path, self.TEXT, "a.csv"))
        assert at_s == pytest.approx(4.314579)
        assert (first.prompt.tokens, first.output_tokens) == (374, 44)
        assert not set(first.prompt.hashes) & set(second.prompt.hashes)
        assert second.group == ""


class TestOpenai:
    BODY = {"model": "m", "messages": [{"role": "system", "content": "be brief " * 100}]}  # noqa: RUF012

    def test_bodies_are_read_as_in_production(self, tmp_path):
        row = {"timestamp": 5, "body": self.BODY, "output_tokens": 9, "session_id": "s"}
        ((_, one),) = asks(load(tmp_path, lines(row)))
        read = prompt.read(
            "/v1/chat/completions", json.dumps(self.BODY).encode(), prompt.Settings(), whole=True
        )
        assert isinstance(read, prompt.Prompt)
        assert one.prompt.tokens == len(read.text) // 4
        assert one.read.tokens == one.prompt.tokens
        assert len(one.read.chain) == len(one.prompt.chain()) == len(read.text) // 256
        assert (one.output_tokens, one.session) == (9, "s")

    def test_fields_may_stand_beside_the_timestamp_and_times_may_be_iso(self, tmp_path):
        rows = (
            {"timestamp": "2024-05-01T10:00:00Z", **self.BODY, "max_tokens": 3},
            {"timestamp": "2024-05-01T10:00:01.5", "model": "m", "prompt": "be brief " * 100},
        )
        (_, chat), (at_s, completion) = asks(load(tmp_path, lines(*rows)))
        assert at_s == 1.5
        assert (chat.output_tokens, completion.output_tokens) == (3, 128)
        assert chat.read.chain != completion.read.chain

    def test_a_growing_conversation_keeps_its_chain_and_hits(self, tmp_path):
        messages = [{"role": "user", "content": f"question {number} " * 60} for number in range(8)]
        rows = [
            {"timestamp": 5 * number, "body": {"model": "m", "messages": messages[: number + 1]}}
            for number in range(8)
        ]
        asked = load(tmp_path, lines(*rows))
        records = simulation.run(asked, policies.factories()["cost"], 1)
        found = figures.figures(records, 0, asked.duration_s, 2)
        assert found.errors == 0
        assert found.engine_hit > 0.7
        assert len({one.endpoint for one in records}) == 1

    def test_what_the_reader_cannot_key_is_routed_by_load(self, tmp_path):
        asked = load(
            tmp_path, lines(*({"timestamp": 0, "body": {"model": "m", "n": number}} for number in range(4)))
        )
        assert all(one.read == router.Request(unkeyed=prompt.Unkeyed.SHAPE) for _, one in asks(asked))
        records = simulation.run(asked, policies.factories()["cost"], 1)
        assert [one.endpoint for one in records] == ["replica-0", "replica-1"] * 2


def test_a_conversation_asks_once_for_each_answer_with_all_before_it(tmp_path):
    talk = {
        "traj": [
            {"role": "system", "content": "policy " * 300},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hi", "tool_calls": None},
            {"role": "user", "content": "bye"},
            {"role": "assistant", "content": "good bye", "tool_calls": None},
        ]
    }
    asked = load(tmp_path, json.dumps([talk]), "t.json")
    start = next(asked.starts(1))
    steps = list(start.script)
    assert [type(step) for step in steps] == [client.Ask, client.Pause] * 2
    assert steps[2].prompt.hashes[: len(steps[0].prompt.hashes)] == steps[0].prompt.hashes
    assert steps[2].prompt.tokens > steps[0].prompt.tokens


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "a,b\n1,2\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,2\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "{",
        '{"model": "m"}\n',
        '{"timestamp": [], "model": "m"}\n',
        '{"hash_ids": "x"}\n',
        '{"timestamp": 1, "input_length": 2, "hash_ids": [3]}\n',
        "[]",
        "[1]",
        '[{"traj": 3}]',
    ],
)
def test_a_file_of_no_known_shape_is_refused_by_name(tmp_path, text):
    with pytest.raises(traces.TraceError, match=r"t\.x"):
        load(tmp_path, text, "t.x")


def test_files_are_found_by_path_and_in_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a.csv").write_text("x")
    monkeypatch.setenv("KVRING_DATA", str(tmp_path))
    assert traces.find("a.csv") == tmp_path / "traces" / "a.csv"
    assert traces.find(str(tmp_path / "traces" / "a.csv")).exists()
    with pytest.raises(traces.TraceError, match=r"b\.csv"):
        traces.find("b.csv")


@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("mooncake_conversation.jsonl.gz", 12_031),
        ("azure_2023_conv.csv.gz", 19_366),
        ("azure_2023_code.csv.gz", 8_819),
        ("tau_bench_airline.json.gz", None),
    ],
)
def test_the_public_traces_load_and_run(name, requests):
    asked = traces.load(shared_data.path(f"traces/{name}"), MODEL, 8)
    if requests is not None:
        assert sum(1 for _ in asked.starts(1)) == requests
    asked = dataclasses.replace(asked, duration_s=40.0)
    records = simulation.run(asked, policies.factories()["cost"], 1)
    assert len(records) > 50
    assert not [one for one in records if one.error]


def test_azure_stamps_of_seven_digits_sort_as_times(tmp_path):
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
    writer.writerow(["2023-11-16 18:15:47", 2, 1])
    writer.writerow(["2023-11-16 18:15:46.9999000", 1, 1])
    found = asks(load(tmp_path, buffer.getvalue(), "a.csv"))
    assert [one.prompt.tokens for _, one in found] == [1, 2]
    assert 0 < found[1][0] < 1e-3
