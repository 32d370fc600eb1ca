"""kvring simulate: tables, files, and refusals that say what would be right."""

from __future__ import annotations

import contextlib
import csv
import http.server
import json
import re
import socketserver
import threading
from pathlib import Path

import pytest

from extproc import cli
from extproc.sim import workloads

SMALL = ["simulate", "--workload", "hot", "--duration", "12"]


METRICS = Path(__file__).parents[1] / "data" / "vllm_metrics.txt"


@contextlib.contextmanager
def served_metrics(body: bytes):
    """A URL that answers `body`."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


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
    code, out, _ = kvring(
        capsys, *SMALL, "--seeds", "2", "--policy", "cost,ring,least_load", "--policy", "random"
    )
    assert code == 0
    for name in ("cost", "ring", "least_load", "round_robin", "random"):
        assert re.search(rf"^{name} .*±", out, re.MULTILINE)


def test_json_has_every_seed_and_what_was_run(capsys, tmp_path):
    path = tmp_path / "out.json"
    words = ("--policy", "ring", "--seeds", "2", "--replicas", "2", "--shared-view", "--json", str(path))
    assert kvring(capsys, *SMALL, *words)[0] == 0
    found = json.loads(path.read_text())
    asked = found["scenario"]
    assert (asked["replicas"], asked["sharing"], asked["seeds"]) == (2, "exact", [1, 2])
    assert asked["baseline"] == "round_robin"
    assert list(found) == ["round_robin", "ring", "scenario"]
    ring = found["ring"]
    assert [run["seed"] for run in ring["seeds"]] == [1, 2]
    means = [run["ttft_mean_ms"] for run in ring["seeds"]]
    assert ring["ttft_mean_ms"] == pytest.approx(sum(means) / 2)
    assert ring["spread"]["ttft_mean_ms"] == [min(means), max(means)]


def test_money_is_what_the_baselines_work_costs(capsys, tmp_path):
    path = tmp_path / "out.json"
    words = ("--workload", "first", "--duration", "40", "--node-price", "20", "--json", str(path))
    assert kvring(capsys, "simulate", *words)[0] == 0
    found = json.loads(path.read_text())
    base, own = found["round_robin"], found["cost"]
    assert base["month_usd"] == 20 * 730
    assert own["month_usd"] == pytest.approx(20 * 730 * base["requests_per_s"] / own["requests_per_s"])
    assert own["month_usd"] < base["month_usd"]


def test_a_folder_gets_page_pictures_and_figures(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "deep" / "out"
    code, out, _ = kvring(capsys, *SMALL, "--seeds", "2", "--out", str(folder))
    assert code == 0
    assert str(folder) in out
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "picture.svg").read_text()
    rows = list(csv.DictReader((folder / "figures.csv").read_text().splitlines()))
    assert [(row["policy"], row["seed"]) for row in rows] == [
        (name, seed) for name in ("round_robin", "cost") for seed in ("1", "2")
    ]
    result = json.loads((folder / "result.json").read_text())
    assert float(rows[2]["ttft_p99_ms"]) == result["cost"]["seeds"][0]["ttft_p99_ms"]
    page = (folder / "index.html").read_text()
    assert "<svg" in page
    assert "Prefix routing" in page
    assert not re.search(r"""(src|href)=["'](?!#)""", page), "asks for no other file"


def test_speed_and_limits_are_taken_from_a_running_engine(capsys, tmp_path):
    with served_metrics(METRICS.read_bytes()) as url:
        path = tmp_path / "out.json"
        code, _, err = kvring(capsys, *SMALL, "--from-metrics", url, "--json", str(path))
    assert code == 0
    assert "observed: KV cache of 35,200 tokens, prefill of 2,0" in err


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",  # not HTTP
        b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nvllm",  # breaks off
        b"HTTP/1.1 302 Found\r\nlocation: /metrics\r\nconnection: close\r\n\r\n",  # in a circle
        None,  # never ends
    ],
)
def test_hostile_metrics_end_with_2_and_show_no_password(capsys, monkeypatch, answer):
    monkeypatch.setattr("extproc.cli.targets._TIMEOUT_S", 0.3 if answer is None else 10.0)

    class Answer(socketserver.StreamRequestHandler):
        def handle(self):
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            self.wfile.write(answer or b"HTTP/1.1 200 OK\r\n\r\n")
            with contextlib.suppress(OSError):
                while answer is None:
                    self.wfile.write(b"#")
                    self.connection.settimeout(0.01)
                    with contextlib.suppress(TimeoutError):
                        if not self.connection.recv(1):
                            return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://me:hidden@127.0.0.1:{server.server_address[1]}/metrics"
            code, out, err = kvring(capsys, *SMALL, "--from-metrics", url)
        finally:
            server.shutdown()
            thread.join()
    assert code == 2
    assert "--from-metrics http://127.0.0.1" in err
    assert "hidden" not in out + err


def test_metrics_that_cannot_be_had_are_told(capsys, tmp_path):
    for source, why in (
        ("ftp://x/metrics", "must be http:// or https://"),
        ("http://127.0.0.1:1/metrics", "refused"),
        (str(tmp_path / "none"), "No such file"),
    ):
        code, _, err = kvring(capsys, *SMALL, "--from-metrics", source)
        assert code == 2
        assert why in err


def test_it_says_whether_prefix_routing_pays(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    _, out, _ = kvring(capsys, "simulate", "--workload", "first", "--duration", "40")
    assert "Prefix routing pays here: TTFT mean" in out
    _, out, _ = kvring(capsys, "simulate", "--workload", "chat", "--duration", "20")
    assert re.search(r"does not pay here: .* Prompts are short, \d+ tokens on average", out)
    _, out, _ = kvring(capsys, "simulate", "--workload", "first:model=8b", "--duration", "30")
    assert re.search(r"does not pay here: .* hold what is shared on every replica", out)


def test_the_fleet_is_what_was_asked_for(capsys, tmp_path):
    path = tmp_path / "out.json"
    code, out, _ = kvring(
        capsys, "simulate", "--workload", "chat", "--duration", "40", "--policy", "least_load",
        "--endpoints", "3", "--speeds", "1,1,.2", "--preset", "codellama-13b-a100-40", "--kv-tokens", "8000",
        "--host-kv-tokens", "32000", "--external-kv-tokens", "64000", "--block-tokens", "32", "--scale", ".3",
        "--fail", "replica-1@20", "--restart", "replica-0@25", "--add", "more@10", "--blind",
        "--sharing-delay", ".1", "--replicas", "2", "--json", str(path),
    )  # fmt: skip
    assert code == 0
    assert "endpoints: 3, kvring replicas: 2," in out
    found = json.loads(path.read_text())
    asked = found["scenario"]
    assert (asked["endpoints"], asked["duration_s"], asked["sharing"]) == (3, 40.0, "delayed")
    run = found["least_load"]["seeds"][0]
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
    assert "endpoints: 2," in out


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


def test_a_time_between_tokens_that_nobody_waits_for_is_not_believed(capsys):
    name = "vllm:inter_token_latency_seconds"
    with served_metrics(f"{name}_sum 1e308\n{name}_count 100\n".encode()) as url:
        code, _, err = kvring(capsys, *SMALL, "--from-metrics", url)
    assert code == 0
    assert "time between tokens (kept at" in err
