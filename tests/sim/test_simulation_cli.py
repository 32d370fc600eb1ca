"""kvring simulate: tables, files, and refusals that say what would be right."""

from __future__ import annotations

import json
import re

import pytest

from extproc import cli
from extproc.sim import workloads

SMALL = ["simulate", "--workload", "hot", "--duration", "12"]


def kvring(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.main(words)
    found = capsys.readouterr()
    return code, found.out, found.err


def test_policies_stand_side_by_side_with_their_ratio_to_round_robin(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = kvring(capsys, *SMALL, "--policy", "round_robin", "--policy", "cost")
    assert code == 0
    assert re.search(r"round_robin +cost", out)
    assert re.search(r"TTFT P99 +[\d,]+ ms +[\d,]+ ms +x0\.\d\d", out)
    assert re.search(r"engine hit +\d+\.\d % +\d+\.\d % +x1\.\d\d", out)
    assert "CPU tier" not in out


def test_many_policies_stand_one_a_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = kvring(capsys, *SMALL, "--seeds", "2")
    assert code == 0
    for name in ("cost", "ring", "least_load", "round_robin", "random"):
        assert re.search(rf"^{name} .*±", out, re.MULTILINE)


def test_json_has_every_seed_and_what_was_run(capsys, tmp_path):
    path = tmp_path / "out.json"
    words = ("--policy", "cost", "--seeds", "2", "--routers", "2", "--shared-view", "--json", str(path))
    assert kvring(capsys, *SMALL, *words)[0] == 0
    found = json.loads(path.read_text())
    assert (found["routers"], found["sharing"], found["seeds"], found["baseline"]) == (
        2,
        "exact",
        [1, 2],
        "cost",
    )
    runs = found["policies"]["cost"]["seeds"]
    assert len(runs) == 2
    mean = found["policies"]["cost"]["mean"]["ttft_mean_ms"]
    assert mean == pytest.approx((runs[0]["ttft_mean_ms"] + runs[1]["ttft_mean_ms"]) / 2)


def test_a_picture_is_drawn(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    words = ("--policy", "cost", "--policy", "random", "--plot", str(path))
    assert kvring(capsys, *SMALL, *words)[0] == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_fleet_is_what_was_asked_for(capsys, tmp_path):
    path = tmp_path / "out.json"
    code, out, _ = kvring(
        capsys, "simulate", "--workload", "chat", "--duration", "40", "--policy", "least_load",
        "--endpoints", "3", "--speeds", "1,1,.2", "--preset", "codellama-13b-a100-40", "--kv-tokens", "8000",
        "--host-kv-tokens", "32000", "--external-kv-tokens", "64000", "--block-tokens", "32", "--scale", ".3",
        "--fail", "replica-1@20", "--restart", "replica-0@25", "--add", "more@10", "--blind",
        "--sharing-delay", ".1", "--routers", "2", "--json", str(path),
    )  # fmt: skip
    assert code == 0
    assert "3 endpoints, 2 routers" in out
    found = json.loads(path.read_text())
    assert (found["endpoints"], found["duration_s"], found["sharing"]) == (3, 40.0, "delayed")
    run = found["policies"]["least_load"]["seeds"][0]
    assert run["errors"] > 0
    assert run["host_hit"] + run["external_hit"] > 0


def test_a_trace_is_replayed(capsys, tmp_path):
    trace = tmp_path / "requests.jsonl"
    rows = [
        {"timestamp": number, "body": {"model": "m", "prompt": f"{number % 2} " * 2000}}
        for number in range(20)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--trace", str(trace), "--endpoints", "2", "--preset", "8b-h100", "--policy", "cost")
    code, out, _ = kvring(capsys, "simulate", *words)
    assert code == 0
    assert "trace requests.jsonl" in out
    assert "2 endpoints" in out


def test_list_names_every_workload_and_policy_with_a_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = kvring(capsys, "simulate", "--list")
    assert code == 0
    for name in (*workloads.WORKLOADS, "cost", "ring", "least_load", "round_robin", "random"):
        assert re.search(rf"^ *{name} +[A-Z]\w+", out, re.MULTILINE), name
    assert "8b-h100" in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--workload", "none"], "workload none: unknown, there are first"),
        (["--policy", "none"], "policy none: unknown, there are cost"),
        (["--trace", "none.jsonl"], "none.jsonl: no such file"),
        (["--fail", "vllm@3"], "fail vllm: there are replica-0"),
        (["--add", "replica-0@3"], "add replica-0: is there already"),
        (["--duration", "10", "--warmup", "10"], "must end before the duration"),
        (["--block-tokens", "24"], "block_tokens is 24"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(capsys, words, why):
    code, _, err = kvring(capsys, "simulate", *words)
    assert code == 2
    assert why in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("words", [["--seeds", "0"], ["--fail", "x"], ["--speeds", "1,0"], ["--scale", "0"]])
def test_values_out_of_range_are_refused(capsys, words):
    with pytest.raises(SystemExit) as stop:
        cli.main(["simulate", *words])
    assert stop.value.code == 2
    assert words[0] in capsys.readouterr().err
