"""TLS beside plaintext: self-signed, files with hot reload, client certificates; health stays plaintext."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import extproc
from extproc import certificate as certificate_
from extproc import tls
from tests import certificates, ext_proc_client
from tests.ext_proc_client import Mode
from tests.functional.conftest import PATH, Launch, Sidecar, chat, command

NOW_S = 1.7e9  # ten years from then on
BODY = chat("a" * 2000)


def certificate(directory: Path, name: str, host: str = "localhost") -> tuple[Path, Path]:
    """Paths of a self-signed certificate and its key."""
    key, pem = certificate_.self_signed([host], NOW_S)
    paths = directory / f"{name}.pem", directory / f"{name}.key"
    for path, data in zip(paths, (pem, key), strict=True):
        path.write_bytes(data)
    return paths


async def shown(address: str) -> bytes:
    """The certificate that the server shows, PEM."""
    host, _, port = address.rpartition(":")
    told = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
    return told.encode().strip()


@contextlib.asynccontextmanager
async def secure(address: str, trusted: bytes, **own: bytes) -> AsyncIterator[ext_proc_client.Client]:
    """A client that verifies the server by `trusted`, as localhost."""
    options = [("grpc.ssl_target_name_override", "localhost")]
    credentials = grpc.ssl_channel_credentials(trusted, own.get("key"), own.get("certificate"))
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        yield ext_proc_client.Client(channel)


async def test_plaintext_tls_and_plaintext_health_side_by_side(sidecar: Launch, unused_address: str) -> None:
    """D04: a gateway that dials TLS unverified and one that dials plaintext, with no certificate given."""
    running = await sidecar({"a": unused_address}, tls={"listen": "127.0.0.1:0"})
    pem = await shown(running.tls)
    for _ in range(2):
        async with secure(running.tls, pem) as client:
            stream = client.open(request_body_mode=Mode.NONE)
            await stream.request_headers(PATH)
            assert (await stream.receive()) is not None
            stream.cancel()
        async with ext_proc_client.connect(running.grpc) as client:
            stream = client.open(request_body_mode=Mode.NONE)
            await stream.request_headers(PATH)
            assert (await stream.receive()) is not None
            stream.cancel()
    async with grpc.aio.insecure_channel(running.health) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", ""):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_new_certificate_is_taken_over_and_a_bad_one_is_not(
    sidecar: Launch, unused_address: str, tmp_path: Path
) -> None:
    first, first_key = certificate(tmp_path, "first")
    second, second_key = certificate(tmp_path, "second")
    live, live_key = tmp_path / "live.pem", tmp_path / "live.key"

    def put(path: Path, source: Path) -> None:
        certificates.put(path, source.read_bytes())

    put(live, first)
    put(live_key, first_key)
    running = await sidecar(
        {"a": unused_address},
        tls={"listen": "127.0.0.1:0", "certificate_file": str(live), "key_file": str(live_key)},
    )
    assert await shown(running.tls) == first.read_bytes().strip()
    async with secure(running.tls, first.read_bytes()) as client:
        stream = client.open(request_body_mode=Mode.BUFFERED)
        await stream.request_headers(PATH)
        assert (await stream.receive()) is not None

        put(live, second)  # with the key of the other: half of a change
        assert await shown(running.tls) == first.read_bytes().strip()
        live_key.unlink()
        assert await shown(running.tls) == first.read_bytes().strip()
        put(live_key, second_key)
        assert await shown(running.tls) == second.read_bytes().strip()

        await stream.request_body(BODY)  # what was open goes on
        assert (await stream.receive()) is not None
        stream.cancel()
    async with secure(running.tls, second.read_bytes()) as client:
        stream = client.open(request_body_mode=Mode.NONE)
        await stream.request_headers(PATH)
        assert (await stream.receive()) is not None
        stream.cancel()
    refused = [line for line in running.events() if line["event"] == "certificate not taken over"]
    assert 1 <= len(refused) <= 2, "once for each change, not for each handshake"


async def test_with_a_client_ca_only_its_clients_get_in(
    sidecar: Launch, unused_address: str, tmp_path: Path
) -> None:
    server, server_key = certificate(tmp_path, "server")
    known, known_key = certificate(tmp_path, "known", "gateway")
    stranger, stranger_key = certificate(tmp_path, "stranger", "stranger")
    running = await sidecar(
        {"a": unused_address},
        tls={
            "listen": "127.0.0.1:0",
            "certificate_file": str(server),
            "key_file": str(server_key),
            "client_ca_file": str(known),
        },
    )
    trusted = server.read_bytes()
    own = {"key": known_key.read_bytes(), "certificate": known.read_bytes()}
    async with secure(running.tls, trusted, **own) as client:
        stream = client.open(request_body_mode=Mode.NONE)
        await stream.request_headers(PATH)
        assert (await stream.receive()) is not None
        stream.cancel()
    other = {"key": stranger_key.read_bytes(), "certificate": stranger.read_bytes()}
    for credentials in ({}, other):
        async with secure(running.tls, trusted, **credentials) as client:
            stream = client.open(request_body_mode=Mode.NONE)
            assert await stream.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"certificate_file": "/no/a.pem", "key_file": "/no/a.key"},
            "tls.key_file: /no/a.key can't be read: No such file or directory\n",
        ),
        ({"certificate_file": "a.pem"}, "tls.key_file: missing"),
        ({"client_ca_file": "/dev/null"}, "/dev/null is no PEM certificate"),
        ({"certificate_file": "/dev/null", "key_file": "/dev/null"}, "are no certificate and its key"),
        ({"listen": "nonsense"}, "tls.listen: 'nonsense' is not allowed"),
    ],
)
def test_what_can_not_work_stops_the_start_and_says_why(
    tmp_path: Path, settings: dict[str, str], says: str
) -> None:
    path = tmp_path / "kvring.yaml"
    lines = [f"  {name}: {value}" for name, value in ({"listen": "127.0.0.1:0"} | settings).items()]
    path.write_text(
        "grpc_listen: 127.0.0.1:0\nhealth_listen: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\n"
        "pools: [{endpoints: [{name: a, address: 127.0.0.1:1}]}]\ntls:\n" + "\n".join(lines)
    )
    done = command("serve", "--config", str(path))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_extra_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(extproc, "certificate", raising=False)
    monkeypatch.delitem(sys.modules, "extproc.certificate", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(tls.TlsError, match=r"\.\[tls\]"):
        tls.credentials(tls.Settings(), ["localhost"], lambda: NOW_S)


def test_a_client_ca_with_comments_that_are_no_ascii_is_taken_and_an_empty_one_is_not(tmp_path: Path) -> None:
    pem, key = certificate(tmp_path, "server")
    trusted, _ = certificate(tmp_path, "ca")
    trusted.write_bytes("# Főtanúsítvány\n".encode() + trusted.read_bytes())
    assert tls.credentials(tls.Settings(pem, key, trusted), ["localhost"], lambda: NOW_S) is not None
    for nothing in (b"", b"no PEM", b"\xff"):
        trusted.write_bytes(nothing)
        with pytest.raises(tls.TlsError, match="PEM certificate"):
            tls.credentials(tls.Settings(pem, key, trusted), ["localhost"], lambda: NOW_S)


async def test_an_expired_certificate_is_used_and_told_in_the_log_and_as_a_metric(
    sidecar: Launch, unused_address: str, tmp_path: Path
) -> None:
    authority = certificates.Authority()
    pem, key = authority.write(tmp_path, "tls", days=-1)
    running = await sidecar(
        {"a": unused_address},
        tls={"listen": "127.0.0.1:0", "certificate_file": str(pem), "key_file": str(key)},
    )
    (told,) = [line for line in running.events() if line["event"] == "certificate has expired"]
    assert (told["level"], told["days_left"], told["file"]) == ("warning", -1.0, str(pem))
    assert await shown(running.tls) == pem.read_bytes().strip()
    assert await ends_in_days(running) == pytest.approx(-1, abs=0.1)

    authority.write(tmp_path, "tls", days=30)
    assert await shown(running.tls) == pem.read_bytes().strip()
    assert await ends_in_days(running) == pytest.approx(30, abs=0.1)


async def ends_in_days(running: Sidecar) -> float:
    name = 'kvring_certificate_end_time_seconds{source="file"} '
    _, page = await running.get("/metrics")
    (line,) = [line for line in page.splitlines() if line.startswith(name)]
    return (float(line.removeprefix(name)) - time.time()) / 86_400
