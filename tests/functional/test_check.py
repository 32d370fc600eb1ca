"""`kvring check`: exit codes and what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from extproc import cli
from tests.functional.conftest import ROOT

GOOD = """
pools:
  - name: llama
    policy: ring
    endpoints:
      - {name: vllm-0, address: "10.0.0.1:8000"}
      - {name: vllm-1, address: "[fd00::1]:8000", weight: 3}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kvring.yaml"


def test_a_good_file_is_told_as_what_would_run(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD)
    assert cli.main(["check", "--config", str(file)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines() == [
        f"{file}: good",
        "  pool llama: policy ring, 2 endpoints",
        "    vllm-0  10.0.0.1:8000  weight 1",
        "    vllm-1  [fd00::1]:8000  weight 3",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a block of keys, at least `pools`"),
        ("{", "not YAML: "),
        (GOOD.replace("ring", "rings"), "pools[0].policy: 'rings' is not allowed; must be one of "),
        (GOOD.replace("policy", "polcy"), "pools[0].polcy: unknown key; did you mean policy?"),
        (GOOD.replace("10.0.0.1", "vllm-0.vllm"), "pools[0].endpoints[0].address: 'vllm-0.vllm:8000'"),
    ],
    ids=["empty", "not YAML", "value", "key", "host name"],
)
def test_a_bad_file_is_told_in_one_line_on_stderr(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file.write_text(text)
    assert cli.main(["check", "--config", str(file)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"kvring check: {file}: {said}")
    assert output.err.count("\n") == 1


def test_the_environment_is_checked_too(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(GOOD)
    monkeypatch.setenv("KVRING_STREAMS_MAX", "none")
    assert cli.main(["check", "--config", str(file)]) == 2
    assert "streams_max (from KVRING_STREAMS_MAX): 'none' is not allowed" in capsys.readouterr().err


def test_a_missing_file_is_told_in_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--config", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"kvring check: {file}: can't be read: ")


def test_without_a_file_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check"]) == 2
    assert "--config" in capsys.readouterr().err


def test_the_process_ends_with_the_code(file: Path) -> None:
    file.write_text("pools: []")
    run = subprocess.run(
        [sys.executable, "-m", "extproc", "check", "--config", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
