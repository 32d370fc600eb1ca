"""The demo as a user runs it, only shorter: real Envoy, real kvring, simulated replicas."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.envoy import client

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(120)]

KEYS = {
    "requests",
    "errors",
    "affinity_hit",
    "engine_hit",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "ttft_p99_ms",
    "requests_per_s",
}


def _command(*words):
    return [sys.executable, "-m", "extproc", "demo", "--endpoints", "4", "--users", "10", *words]


def _descendants(pid):
    """Ids of a process's living children and theirs."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found


def test_a_short_demo_shows_more_cached_tokens_with_kvring_and_writes_its_result(tmp_path):
    figures, folder = tmp_path / "figures.json", tmp_path / "out"
    done = subprocess.run(
        _command("--seconds", "8", "--seed", "3", "--json", str(figures), "--out", str(folder)),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(figures.read_text())
    for arm in ("round_robin", "kvring"):
        assert document[arm].keys() >= KEYS
        assert document[arm]["errors"] == 0
        assert document[arm]["requests"] > 20
        assert set(document[arm]["requests_by_endpoint"]) <= {f"replica-{index}" for index in range(4)}
    assert document["kvring"]["engine_hit"] > document["round_robin"]["engine_hit"]
    assert document["unsteered"] <= 0.1 * document["kvring"]["requests"]  # a busy machine may be too late
    assert document["setup"]["seed"] == 3
    assert sorted(path.name for path in folder.iterdir()) == [
        "index.html",
        "picture.png",
        "picture.svg",
        "result.json",
    ]
    assert str(folder) in done.stdout
    assert "engine token hit" in done.stdout


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(tmp_path, number):
    process = subprocess.Popen(
        _command("--seconds", "60", "--out", str(tmp_path)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # Two fleets, kvring and Envoy.
        deadline_s = time.monotonic() + client.WAIT_S
        while len(children := _descendants(process.pid)) < 4:
            assert time.monotonic() < deadline_s, "its parts did not start"
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        process.send_signal(number)
        _, errors = process.communicate(timeout=client.WAIT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 1
    assert "interrupted" in errors
    assert not [pid for pid in children if _alive(pid)]


def test_a_part_that_dies_ends_the_demo_with_its_name(tmp_path):
    process = subprocess.Popen(
        _command("--seconds", "60", "--out", str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        while line and "answered" not in line:
            line = process.stdout.readline()
        victim = next(pid for pid in _descendants(process.pid) if b"serve" in _words(pid))
        os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=client.WAIT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 1
    assert "serve died with exit code -9" in errors


def test_a_number_out_of_range_is_refused_before_anything_starts():
    done = subprocess.run(_command("--speed", "0"), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "0.1..20" in done.stderr


def _words(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
