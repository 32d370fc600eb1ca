"""`kvring check`: exit codes and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extproc import certificate, cli
from tests.functional.conftest import command

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
    run = command("check", "--config", str(file))
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1


# ---- what serving needs of the machine ----

NONE = "can't be read: No such file or directory"
NEEDS = {
    "tls: {certificate_file: /no/a.pem, key_file: /no/a.key}": [
        f"tls.certificate_file: /no/a.pem {NONE}",
        f"tls.key_file: /no/a.key {NONE}",
    ],
    "tls: {client_ca_file: /dev/null}": ["tls.client_ca_file: /dev/null is no PEM certificate"],
    "admin_token_file: /no/token": [f"admin_token_file: /no/token {NONE}"],
    "admin_token_file: /dev/null": ["admin_token_file: /dev/null must hold one token"],
    "store: {url: 'valkey://a', password_file: /no/password}": [f"store.password_file: /no/password {NONE}"],
    "store: {url: 'valkeys://a', ca_file: /dev/null}": ["store: ca_file /dev/null: not certificates"],
    "store: {url: 'valkey://a', password_file: BINARY}": ["store.password_file: BINARY is not text"],
    "kubernetes_api: {server: 'https://a', token_file: /no/token, ca_file: /}": [
        f"kubernetes_api.token_file: /no/token {NONE}",
        "kubernetes_api.ca_file: / can't be read: Is a directory",
    ],
    "kubernetes_api: {server: 'https://a', ca_file: /dev/null}": [
        "kubernetes_api.ca_file: /dev/null is no PEM certificate"
    ],
    "kubernetes_api: {server: 'https://a', ca_file: BINARY}": [
        "kubernetes_api.ca_file: BINARY is no PEM certificate"
    ],
}


@pytest.mark.parametrize(("text", "said"), NEEDS.items(), ids=NEEDS)
def test_what_serving_needs_and_is_not_here_is_told_with_its_key(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str], text: str, said: list[str]
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    file.write_text(GOOD + text.replace("BINARY", str(tmp_path / "binary")))
    assert cli.main(["check", "--config", str(file)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    *lines, hint = output.err.splitlines()
    assert len(lines) == len(said)
    for line, start in zip(lines, said, strict=True):
        assert line.startswith(f"kvring check: {file}: {start}".replace("BINARY", str(tmp_path / "binary")))
    assert "--elsewhere" in hint
    assert cli.main(["check", "--config", str(file), "--elsewhere"]) == 0
    assert capsys.readouterr().err == ""


def test_members_that_can_not_be_asked_from_here_are_told(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    file.write_text(
        "pools:\n"
        "  - {name: listed, file: {path: /no/endpoints.yaml}, match: {models: [a]}}\n"
        "  - {name: asked, kubernetes_service: {service: llm, namespace: llm}}\n"
    )
    assert cli.main(["check", "--json", "--config", str(file)]) == 2
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert lines[0] == f"kvring check: {file}: pools[0].file.path: /no/endpoints.yaml {NONE}"
    assert lines[1].startswith(f"kvring check: {file}: pool asked: KUBERNETES_SERVICE_HOST is not set")
    assert len(lines) == 2
    told = json.loads(said.out)["config"]
    assert told["good"] is False
    assert "file.path" in told["error"]
    assert "KUBERNETES_SERVICE_HOST" in told["error"]


@pytest.mark.parametrize(
    ("text", "package", "extra"),
    [
        ("store: {url: 'valkey://a'}", "libvalkey", "store: needs the extra valkey"),
        ("traces: {endpoint: 'http://a'}", "opentelemetry", "traces: needs the extra otel"),
        ("tls: {}", "cryptography", "tls: needs the extra tls"),
    ],
)
def test_a_package_that_is_missing_is_told_as_serving_tells_it(
    file: Path, text: str, package: str, extra: str
) -> None:
    file.write_text(f"{GOOD}{text}\n")
    said = []
    for word in ("check", "serve"):
        run = command(word, "--config", str(file), without=package)
        assert run.returncode == 2
        said.append(next(line.partition(extra) for line in run.stderr.splitlines() if extra in line)[1:])
    assert said[0] == said[1]


def test_files_that_are_good_are_told_good(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, pem = certificate.self_signed(["a"], 1.7e9)
    for name, data in {"a.pem": pem, "a.key": key, "token": b"t" * 16, "password": b"p"}.items():
        (tmp_path / name).write_bytes(data)
    pair = f"certificate_file: {tmp_path}/a.pem, key_file: {tmp_path}/a.key"
    own = f"cert_file: {tmp_path}/a.pem, key_file: {tmp_path}/a.key, ca_file: {tmp_path}/a.pem"
    file.write_text(
        f"{GOOD}tls: {{{pair}, client_ca_file: {tmp_path}/a.pem}}\nadmin_token_file: {tmp_path}/token\n"
        f"store: {{url: 'valkeys://a', password_file: {tmp_path}/password, {own}}}\n"
        f"kubernetes_api: {{server: 'https://a', token_file: {tmp_path}/token, ca_file: {tmp_path}/a.pem}}\n"
        "traces: {endpoint: 'http://a'}\n"
    )
    assert cli.main(["check", "--config", str(file)]) == 0
    assert capsys.readouterr().err == ""
