"""`kvring serve` as a process: start, refusal to start, and how it stops under streams of every kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc import cli
from tests import ext_proc_client
from tests.ext_proc_client import Mode, Stream, kind, steered
from tests.functional.conftest import (
    PATH,
    ROOT,
    WAIT_S,
    FakeEndpoint,
    Launch,
    Sidecar,
    chat,
    command,
    eventually,
)

DUPLEX = Mode.FULL_DUPLEX_STREAMED


async def listening(endpoint: Callable[..., FakeEndpoint], count: int) -> dict[str, str]:
    return {f"vllm-{n}": (await endpoint().listen()).address for n in range(count)}


async def decided(stream: Stream, body: bytes) -> str:
    """The pick of a BUFFERED request, left open as its answer runs."""
    await stream.request_headers(PATH)
    assert kind(await stream.receive()) == "request_headers"
    await stream.request_body(body)
    return str(steered(await stream.receive()))


async def ended_well(stream: Stream) -> bool:
    return await stream.rest() == [] and await stream.code() is grpc.StatusCode.OK


async def test_sigterm_tells_first_serves_on_then_ends_streams_and_exits_zero(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint]
) -> None:
    addresses = await listening(endpoint, 3)
    running = await sidecar(addresses, drain_notice_s=60, drain_timeout_s=60)
    body = chat("a" * 2000)
    async with (
        ext_proc_client.connect(running.grpc) as client,
        grpc.aio.insecure_channel(running.health) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        early = client.open(request_body_mode=Mode.BUFFERED)
        assert await decided(early, body) in addresses.values()
        two_way = client.open(request_body_mode=DUPLEX, response_body_mode=DUPLEX)
        await two_way.request_headers(PATH)
        await two_way.request_body(body)
        assert [kind(await two_way.receive()) for _ in range(2)] == ["request_headers", "request_body"]
        undecided = client.open(request_body_mode=Mode.BUFFERED)
        await undecided.request_headers(PATH)
        await undecided.receive()

        running.signal(signal.SIGTERM)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await running.get("/readyz") == (503, "not ready\n")
        assert await running.get("/healthz") == (200, "ok\n")
        alive = await stub.Check(health_pb2.HealthCheckRequest(service="liveness"))
        assert alive.status == health_pb2.HealthCheckResponse.SERVING
        for _ in range(10):  # the notice runs: whoever still comes is served as ever
            late = client.open(request_body_mode=Mode.BUFFERED)
            assert await decided(late, body) in addresses.values()
            await late.half_close()
            assert await ended_well(late)
        late = client.open(request_body_mode=Mode.BUFFERED)
        assert await decided(late, body) in addresses.values()
        running.signal(signal.SIGTERM)  # which ends the notice
        assert await ended_well(early)
        assert await ended_well(late)

        await undecided.request_body(body)
        assert steered(await undecided.receive()) is not None
        assert await ended_well(undecided)
        await two_way.response_body(b"data: x\n\n", end_of_stream=True)
        assert kind(await two_way.receive()) == "response_body"
        await two_way.half_close()
        assert await ended_well(two_way)
    assert await running.exited() == 0
    assert [line["event"] for line in running.events()][-2:] == ["draining", "stopped"]


async def test_streams_reset_at_any_moment_leave_no_lease_and_no_error_in_the_log(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint]
) -> None:
    running = await sidecar(await listening(endpoint, 3), decision_timeout_s=0.05)
    rng = random.Random(4)
    body = chat("c" * 300_000)
    chunks = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]

    async def play(client: ext_proc_client.Client, number: int) -> None:
        mode = list(Mode)[number % len(Mode)]
        stream = client.open(request_body_mode=mode, response_body_mode=rng.choice([Mode.NONE, DUPLEX]))
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError, asyncio.CancelledError):
            await stream.request_headers(PATH)
            resetting = asyncio.get_running_loop().call_later(rng.uniform(0, 0.15), stream.cancel)
            for data in chunks:
                await stream.request_body(data, end_of_stream=data is chunks[-1])
            for _ in range(5):
                await stream.response_body(bytes(50_000), end_of_stream=False)
            await stream.rest()
            resetting.cancel()

    for _ in range(2):
        async with ext_proc_client.connect(running.grpc) as client:
            await asyncio.gather(*(play(client, number) for number in range(60)))
            for number in range(12):  # and these lose their connection
                mode = list(Mode)[number % len(Mode)]
                stream = client.open(request_body_mode=mode)
                await stream.request_headers(PATH)
                await stream.request_body(chunks[0], end_of_stream=False)
    await streams_open(running, 0)
    assert await running.open_leases() == 0
    _, text = await running.get("/metrics")
    assert 'kvring_no_opinion_total{reason="fault"} 0.0' in text
    running.signal()
    assert await running.exited() == 0


async def test_sigint_drains_too_and_cuts_a_stream_that_never_ends(
    sidecar: Launch, unused_address: str
) -> None:
    running = await sidecar({"a": unused_address}, drain_timeout_s=0.2, decision_timeout_s=60)
    async with ext_proc_client.connect(running.grpc) as client:
        stream = client.open(request_body_mode=DUPLEX)
        await stream.request_headers(PATH)
        await streams_open(running, 1)
        running.signal(signal.SIGINT)
        assert await running.exited() == 0
        assert await stream.code() is not grpc.StatusCode.OK


@pytest.mark.parametrize("where", ["notice", "drain"])
async def test_a_second_signal_ends_the_wait(sidecar: Launch, unused_address: str, where: str) -> None:
    notice_s = 60 if where == "notice" else 0
    running = await sidecar(
        {"a": unused_address}, drain_notice_s=notice_s, drain_timeout_s=60, decision_timeout_s=60
    )
    async with ext_proc_client.connect(running.grpc) as client:
        if where == "drain":  # a stream that would hold the drain for a minute
            stream = client.open(request_body_mode=DUPLEX)
            await stream.request_headers(PATH)
            await streams_open(running, 1)
        running.signal(signal.SIGTERM)
        await eventually(lambda: running.logged("draining"))
        running.signal(signal.SIGTERM)
        assert await running.exited() == 0


async def test_a_signal_during_the_first_probes_is_not_kept_waiting_by_them(
    endpoint: Callable[..., FakeEndpoint], tmp_path: Path
) -> None:
    hanging = await endpoint(silent=True).listen()
    config = settings({"a": hanging.address})
    config["pools"][0]["health"] = {"timeout_s": 60, "interval_s": 60}
    path = tmp_path / "kvring.yaml"
    path.write_text(json.dumps(config))
    process = subprocess.Popen(
        [sys.executable, "-m", "extproc", "serve", "--config", str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        await hanging.probed()
        process.send_signal(signal.SIGTERM)
        output, errors = await asyncio.to_thread(process.communicate, timeout=WAIT_S)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
    assert process.returncode == 0
    assert output == b"", "never ready"
    assert b"Traceback" not in errors


# ---- refusal to start ----


def settings(endpoints: dict[str, str]) -> dict[str, Any]:
    return {
        "grpc_listen": "127.0.0.1:0",
        "health_listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "pools": [{"endpoints": [{"name": n, "address": a} for n, a in endpoints.items()]}],
    }


def refused(path: Path) -> str:
    """What `serve` says on stderr when it does not start; exit code 2 and no traceback."""
    run = command("serve", "--config", str(path))
    assert run.returncode == 2, run.stderr
    assert run.stdout == ""
    assert "Traceback" not in run.stderr
    assert "Exception ignored" not in run.stderr
    return run.stderr


@pytest.mark.parametrize("listener", ["grpc_listen", "health_listen", "admin_listen"])
def test_a_port_in_use_is_named_and_refused(listener: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = settings({"a": "127.0.0.1:1"}) | {listener: f"127.0.0.1:{port}"}
        path = tmp_path / "kvring.yaml"
        path.write_text(json.dumps(config))
        said = refused(path).splitlines()[-1]
    assert said.startswith("kvring serve: ")
    assert str(port) in said
    assert "in use" in said


def test_a_bad_configuration_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kvring.yaml"
    path.write_text("pools: []")
    assert cli.main(["serve", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(
        rf"kvring serve: {re.escape(str(path))}: pools: \[\] is not allowed; must be .*\n", said
    )


def test_a_missing_file_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--config", str(tmp_path / "no.yaml")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("kvring serve: ")
    assert said.count("\n") == 1
    assert "no.yaml" in said


async def streams_open(running: Sidecar, count: int) -> None:
    """Return when the sidecar counts this many streams."""

    async def holds() -> bool:
        _, text = await running.get("/metrics")
        return f"kvring_streams_open {count}.0" in text

    await eventually(holds)
