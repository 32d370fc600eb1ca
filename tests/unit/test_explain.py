"""`kvring explain`: what the sidecar would do, shown; wrong input in one line. O02."""

import io
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from extproc import chain, choice, cli, config, exchange, pool, prompt, protocol, router
from extproc.exchange import BodyMode
from tests import sdk_bodies

ENDPOINTS = [f"vllm-{n}=10.0.0.{n + 1}:8000" for n in range(5)]
NAMED = [word for each in ENDPOINTS for word in ("--endpoint", each)]
SPOKEN = "the old mill by the lighthouse "
BODY = json.dumps({"model": "qwen", "messages": [{"role": "user", "content": SPOKEN * 60}]}).encode()


class _Stdin:
    def __init__(self, body: bytes) -> None:
        self.buffer = io.BytesIO(body)


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`explain(body, *arguments)`: exit code, stdout, stderr; the body comes by stdin."""

    def run(body: bytes, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", _Stdin(body))
        code = cli.main(["explain", "-", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def live(body: bytes, path: str, headers: dict[str, str], settings: config.Config) -> choice.Choice:
    """What a sidecar that has just started decides."""
    group = settings.pools[0]
    of = router.Router(config.static_pool(group), config.router_settings(group))
    one = exchange.Exchange(of, settings.exchange_settings())
    first = protocol.RequestHeaders(
        {":path": path, ":method": "POST", **headers}, end_of_stream=False, body_mode=BodyMode.BUFFERED
    )
    one.receive(first, 7.0, 0.5)
    one.receive(protocol.RequestBody(body, end_of_stream=True), 7.0, 0.5)
    assert isinstance(one.result, choice.Choice)
    return one.result


POOLS = [{}, {"policy": "ring"}, {"block_bytes": 64, "ring_points": 32, "policy": "cost"}]


@pytest.mark.parametrize("group", POOLS, ids=str)
def test_explained_is_what_a_live_sidecar_decides(
    explain: Any, tmp_path: Path, group: dict[str, Any]
) -> None:
    """O02: key, order, pick and reason, for every recorded SDK body."""
    listed = [dict(zip(("name", "address"), each.split("="), strict=True)) for each in ENDPOINTS]
    file = tmp_path / "kvring.yaml"
    file.write_text(json.dumps({"key_header": "x-key", "pools": [{"endpoints": listed, **group}]}))
    settings = config.load(file, {})
    asked = [(one.body, one.path, {}) for one in sdk_bodies.RECORDED]
    asked += [(b"no json", "/v1/chat/completions", {}), (b"{}", "/v1/models", {})]
    asked += [(BODY, "/x/v1/chat/completions/?a", {"x-key": value}) for value in ("s-1", "s-12", "")]
    for body, path, headers in asked:
        more = [word for pair in headers.items() for word in ("--header", ": ".join(pair))]
        code, out, _ = explain(body, "--json", "--config", str(file), "--path", path, *more)
        assert code == 0
        told, made = json.loads(out), live(body, path, headers, settings)
        assert told["key"] == (None if made.key is None else f"{made.key:016x}")
        assert (told["choice"], told["address"]) == (made.endpoint.id, made.endpoint.address)
        assert (told["reason"], told["keyed_by"], told["unkeyed"]) == (
            made.reason,
            made.keyed_by,
            made.unkeyed,
        )
        assert (told["anchor"], len(told["chain"])) == (made.anchor_block, made.chain_blocks)
        assert told["policy"] == made.policy
        assert told["costs"] == dict(zip(made.candidates, made.costs, strict=False))
        if made.key is not None:
            assert sorted(told["ring"]) == sorted(e["name"] for e in listed)


def test_json_has_what_tools_need(explain: Any) -> None:
    code, out, err = explain(BODY, "--json", *NAMED)
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert told["api"] == "chat"
    assert told["model"] == "qwen"
    assert told["ring"][0] == told["choice"]
    found = prompt.read("/v1/chat/completions", BODY, prompt.Settings(), whole=True)
    assert isinstance(found, prompt.Prompt)
    built = chain.build(chain.seed_of(found.seeds), found.text, 256, 8192)
    assert told["chain"] == [f"{block:016x}" for block in built.hashes]
    assert told["anchor"] == 0
    assert told["key"] == told["chain"][0]


@pytest.mark.parametrize("one", sdk_bodies.RECORDED, ids=str)
def test_segments_cover_the_prompt_exactly(explain: Any, one: sdk_bodies.Recorded) -> None:
    _, out, _ = explain(one.body, "--json", "--path", one.path)
    segments = json.loads(out)["segments"]
    found = prompt.read(one.path, one.body, prompt.Settings(), whole=True)
    assert isinstance(found, prompt.Prompt)
    assert segments[0]["start"] == 0
    assert segments[-1]["end"] == len(found.text)
    assert all(one["end"] == other["start"] for one, other in itertools.pairwise(segments))


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_prompt_text_is_shown_only_when_asked_for(explain: Any, form: list[str]) -> None:
    _, out, err = explain(BODY, *form, *NAMED)
    assert "mill" not in out + err
    _, out, _ = explain(BODY, "--text", *form, *NAMED)
    assert "mill" in out
    _, out, err = explain(BODY[:-3], *form, *NAMED)
    assert "mill" not in out + err


def test_table_shows_the_facts(explain: Any) -> None:
    code, out, _ = explain(BODY, *NAMED)
    assert code == 0
    for word in ("chat", "qwen", "vllm-0", "home", "anchor", "933", "user"):
        assert word in out


def test_cut_body_is_read_as_a_start(explain: Any) -> None:
    _, out, _ = explain(BODY[:1500], "--json", "--cut", *NAMED)
    cut = json.loads(out)
    _, out, _ = explain(BODY, "--json", *NAMED)
    whole = json.loads(out)
    assert cut["cut"]
    assert not whole["cut"]
    assert cut["chain"] == whole["chain"][: len(cut["chain"])] != []
    _, out, _ = explain(BODY[:1500], "--json", *NAMED)
    assert json.loads(out)["unkeyed"] == "bad_json"


def test_body_without_a_prompt_says_why_and_where_it_goes(explain: Any) -> None:
    for form in ([], ["--json"]):
        code, out, _ = explain(b"\xff", *form, *NAMED)
        assert code == 0
        assert "bad_json" in out
        assert "vllm-" in out


@pytest.mark.parametrize(
    "model", ["[/red]", "[link=x]y[/link]", "\x1b[31mred\x1b]0;t\x07", "a\nb", ":smile:"]
)
def test_names_from_the_body_are_neither_markup_nor_control_characters(explain: Any, model: str) -> None:
    body = json.dumps({"model": model, "messages": [{"role": model, "content": model}]}).encode()
    code, out, _ = explain(body, "--text")
    assert code == 0
    assert "\x1b" not in out
    assert (model if model.isprintable() else repr(model)) in out


WRONG: dict[str, list[str]] = {
    "no file": ["/nowhere/x.json"],
    "a directory": ["/"],
    "no config": ["-", "--config", "/nowhere/kvring.yaml"],
    "config and endpoint": ["-", "--config", "x", "--endpoint", "a=10.0.0.1:1"],
    "no address": ["-", "--endpoint", "a"],
    "no port": ["-", "--endpoint", "a=10.0.0.1"],
    "no name": ["-", "--endpoint", "=10.0.0.1:1"],
    "two of one name": ["-", "--endpoint", "a=10.0.0.1:1", "--endpoint", "a=10.0.0.2:1"],
    "header": ["-", "--header", "x-key"],
    "header without a name": ["-", "--header", ": x"],
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_told_in_one_line(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *WRONG[case]]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kvring explain: ")
    assert err.count("\n") == 1


def test_unreadable_config_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("pools: [", "pools: []", "\0", "x: 1", "- a"):
        file = tmp_path / "kvring.yaml"
        file.write_text(text)
        assert cli.main(["explain", "-", "--config", str(file)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_reader_that_leaves_early_causes_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "body.json"
    messages = [{"role": "user", "content": f"message {n}"} for n in range(700)]
    file.write_text(json.dumps({"model": "m", "messages": messages}))
    for form in ([], ["--json"]):
        with subprocess.Popen(
            [sys.executable, "-m", "extproc", "explain", str(file), *form],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(10)
            process.stdout.close()
            assert process.stderr.read() == b""
            process.wait(30)


def test_pool_without_config_has_one_endpoint(explain: Any) -> None:
    _, out, _ = explain(BODY, "--json")
    assert json.loads(out)["ring"] == ["endpoint-0"]
    assert pool.EndpointId("endpoint-0") == json.loads(out)["choice"]
