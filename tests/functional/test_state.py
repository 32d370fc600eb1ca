"""`kvring state`: what a running kvring says of itself, for people and for programs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from extproc import cli
from tests import ext_proc_client
from tests.ext_proc_client import Mode
from tests.functional import engines
from tests.functional.conftest import PATH, ROOT, Launch, Sidecar, chat, eventually

PROMPT = "words that nobody should find"


async def state(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = await asyncio.to_thread(cli.main, ["state", *words])
    said = capsys.readouterr()
    return code, said.out + said.err


async def told(running: Sidecar, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Return once the state of pool chat is so."""

    async def is_so() -> bool:
        pools = json.loads((await running.get("/api/state"))[1])["pools"]
        return holds(next(one for one in pools if one["name"] == "chat"))

    await eventually(is_so)


@pytest.fixture
async def up() -> AsyncIterator[engines.Engine]:
    """An engine at work; it outlives the sidecar that a test asks for after it."""
    engine = engines.Engine(running=3, waiting=1, kv_usage=0.25)
    await engine.start()
    yield engine
    await engine.stop()


async def test_a_running_kvring_shows_pools_endpoints_and_nothing_of_prompts(
    up: engines.Engine, unused_address: str, sidecar: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {"signals": {"interval_s": 0.05}, "health": {"interval_s": 0.2, "timeout_s": 2, "failures": 10}}
    running = await sidecar(
        {},
        pools=[
            {"name": "chat", "endpoints": [{"name": "up", "address": up.address}]} | quick,
            {
                "name": "code",
                "endpoints": [{"name": "down", "address": unused_address}],
                "match": {"models": ["coder*"]},
            }
            | quick,
        ],
    )
    async with ext_proc_client.connect(running.grpc) as client:
        stream = client.open(request_body_mode=Mode.BUFFERED)
        await stream.request_headers(PATH)
        await stream.receive()
        await stream.request_body(chat(PROMPT * 100))
        await stream.receive()
        await told(running, lambda pool: (pool["endpoints"][0]["signals"] or {}).get("foreign") == 3)

        code, text = await state(capsys, "--admin", running.admin)
        assert code == 1, "a pool has nobody"
        assert "pool chat: policy cost" in text
        assert "out: refused" in text
        assert "3+1" in text
        assert "25% of 100k" in text
        assert " base " in text
        assert "nobody can be chosen" in text
        assert PROMPT not in text

        code, text = await state(capsys, "--admin", running.admin, "--pool", "none")
        assert (code, text) == (2, "kvring state: no pool none, only chat, code\n")

        code, text = await state(capsys, "--admin", f"http://{running.admin}", "--pool", "chat", "--json")
        assert code == 0
        (pool,) = json.loads(text)["pools"]
        (one,) = pool["endpoints"]
        assert (one["inflight"], one["models"], one["ready"]) == (1, ["base"], True)
        assert one["signals"]["foreign"] == 3
        assert one["signals"]["age_s"] < 5
        assert PROMPT not in text
        await stream.half_close()
        await stream.rest()


async def test_who_is_not_kvring_is_told_apart(
    capsys: pytest.CaptureFixture[str], unused_address: str
) -> None:
    code, text = await state(capsys, "--admin", unused_address)
    assert code == 2
    assert text.startswith(f"kvring state: no answer from {unused_address}: ")
    code, text = await state(capsys, "--admin", "https://x")
    assert code == 2


OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
LIVE = re.findall(r"^(?:kvring state|curl) .*127\.0\.0\.1:9090.*$", OPERATIONS, re.MULTILINE)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
async def test_the_commands_of_the_operations_page_work_on_a_running_kvring(
    up: engines.Engine, sidecar: Launch, tmp_path: Path
) -> None:
    assert len(LIVE) >= 5
    running = await sidecar({"up": up.address})
    binary = tmp_path / "kvring"
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -m extproc "$@"\n')
    binary.chmod(0o755)
    for line in LIVE:
        command = line.replace("127.0.0.1:9090", running.admin).replace("curl ", "curl --fail ", 1)
        process = await asyncio.create_subprocess_shell(
            command,
            cwd=ROOT,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, (line, err)
        assert out
