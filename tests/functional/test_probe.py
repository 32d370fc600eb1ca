"""`kvring probe`: the exit code says whether a real kvring serves."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest

from extproc import cli
from tests.functional.conftest import FakeEndpoint, Launch, eventually


async def probe(*words: str) -> int:
    return await asyncio.to_thread(cli.main, ["probe", *words])


async def test_a_kvring_that_serves_is_told_from_one_that_drains_and_one_that_is_not_there(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    running = await sidecar({"vllm-0": (await endpoint().listen()).address}, drain_notice_s=60)
    assert await probe(running.health, "--timeout-s=15") == 0
    assert capsys.readouterr().out == f"{running.health} readiness: SERVING\n"
    assert await probe(running.health, "--service=nonsense", "--timeout-s=15") == 1
    assert "NOT_FOUND" in capsys.readouterr().err
    running.process.send_signal(signal.SIGTERM)

    async def draining() -> bool:
        return await probe(running.health, "--timeout-s=15") == 1 and "NOT_SERVING" in capsys.readouterr().err

    await eventually(draining)
    assert await probe(running.health, "--service=liveness", "--timeout-s=15") == 0
    running.process.send_signal(signal.SIGTERM)  # ends the notice
    await eventually(lambda: running.process.poll() is not None)
    assert await probe(running.health, "--timeout-s=0.3") == 1


async def test_an_address_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert await probe("nowhere") == 2
    assert capsys.readouterr().err.startswith("kvring probe: 'nowhere'")
