"""Command line: what is wrong is said in one line that names the command, the option and what is allowed."""

from __future__ import annotations

import pytest

from extproc import cli

WRONG = {
    "demo --bogus": "kvring demo: unrecognized arguments: --bogus; see kvring demo --help",
    "demo --speed x": "kvring demo: --speed: 'x' is no number in 0.1..20; see kvring demo --help",
    "demo --users 0": "kvring demo: --users: 0 is not in 1..500; see kvring demo --help",
    "demo --users many": "kvring demo: --users: 'many' is no whole number in 1..500; see kvring demo --help",
    "serve": "kvring serve: the following arguments are required: --config; see kvring serve --help",
    "serve --config no.yaml": "kvring serve: no.yaml: can't be read: No such file or directory",
    "check --config no.yaml": "kvring check: no.yaml: can't be read: No such file or directory",
    "explain no.json": "kvring explain: no.json: can't be read: No such file or directory",
    "explain no.json --endpoint x": "kvring explain: --endpoint 'x' is not NAME=HOST:PORT",
    "explain no.json --header x": "kvring explain: --header 'x' is not NAME:VALUE",
    "envoy-config --replica a:1 --kvring x": "kvring envoy-config: 'x': expected HOST:PORT or unix:/PATH",
    "conformance": "kvring conformance: no TARGET; see kvring conformance --help",
    "conformance x --jobs 0": "kvring conformance: --jobs: 0 is not in 1..64; see kvring conformance --help",
    "conformance --list --only x": "kvring conformance: 'x' is no check; --list shows them",
    "state --watch 0": "kvring state: --watch: 0 is not in 0.1..86400; see kvring state --help",
    "probe --timeout-s -1": "kvring probe: --timeout-s: -1 is not in 0.1..3600; see kvring probe --help",
    "probe --timeout-s nan": "kvring probe: --timeout-s: nan is not in 0.1..3600; see kvring probe --help",
    "up --replicas 0": "kvring up: --replicas: 0 is not in 1..64; see kvring up --help",
    "sim-replica --count 0": "kvring sim-replica: --count: 0 is not in 1..256; see kvring sim-replica --help",
    "": "kvring: the following arguments are required: COMMAND; see kvring --help",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_one_line(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.chdir(str(tmp_path))
    try:
        code: object = cli.main(line.split())
    except SystemExit as stop:
        code = stop.code

    out, err = capsys.readouterr()
    assert (code, out, err) == (2, "", WRONG[line] + "\n")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_a_help_whose_defaults_read_alike(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])

    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert text.startswith(f"usage: kvring {command} ")
    assert "(default " not in " ".join(text.split())


def test_an_unknown_command_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["foo"])

    text = capsys.readouterr().err
    assert stop.value.code == 2
    assert text.count("\n") == 1
    assert all(name in text for name in cli.COMMANDS)
