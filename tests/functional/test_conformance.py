"""`kvring conformance`: kvring passes all of it, and each check fails for the picker that has its fault."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import socket
import ssl
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import grpc
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from extproc import cli
from extproc import hooks as own_hooks
from extproc.bootstrap import address
from extproc.conformance import catalogue, document, run, target
from extproc.conformance.check import Result, Severity, plain
from extproc.conformance.checks import hooks as hook_checks
from tests.functional import conftest
from tests.functional.conftest import FakeEndpoint, Launch
from tests.functional.wrong_picker import POOL, picker

# Many gRPC servers and loops in one process: now and then gRPC's poller wakes a loop that an earlier test
# closed, and a stream ends with "Internal error from Core" (docs/decisions/0011-one-rerun-with-envoy.md).
pytestmark = pytest.mark.flaky(reruns=1)

WAIT_S = 20.0  # bound of one answer; a right picker takes milliseconds, other work may share the machine
PATIENT_S = 10.0  # the same, where a fault makes some waits run out
SILENT_S = 1.0  # the same, where nothing comes anyway
HANG_S = 2.0  # the same; connecting and health have to be done in it, too

# fault -> the checks that it fails, no others
FAULTS = {
    "no pick without body": {"pick-bodyless"},
    "no header": {"pick-header"},
    "no metadata": {"pick-metadata"},
    "wrong namespace": {"pick-metadata"},
    "unequal": {"pick-equal"},
    "names": {"pick-syntax", "pick-in-pool"},
    "bare ipv6": {"pick-syntax", "pick-in-pool"},
    "outside the pool": {"pick-in-pool"},
    "obeys clients": {"pick-not-from-client"},
    "list": {"pick-single"},
    "appends": {"pick-overwrites"},
    "value": {"pick-raw-value"},
    "answers headers early": {"duplex-pick", "duplex-waits-for-body", "subset-refusal-alone"},
    "headers twice": {"duplex-order"},
    "unasked": {"duplex-order", "response-headers", "response-skip"},
    "loses single bytes": {"duplex-echo"},
    "answers a second end": {"duplex-second-end"},
    "trailers first": {"duplex-trailers"},
    "cuts at two mebibytes": {"duplex-large-body"},
    "rewrites": {"duplex-verbatim", "duplex-trailers"},
    "long chunks": {"duplex-chunk-size", "response-chunk-size"},
    "picks at headers": {"duplex-waits-for-body"},
    "needs a whole body": {"mode-buffered-partial"},
    "one mebibyte": {"mode-buffered-large"},
    "small": {"mode-buffered-large"},
    "no pick without bodies": {"mode-none"},
    "streams back in streamed": {"mode-streamed"},
    "no subset": {
        "subset-list", "subset-bodyless", "subset-port", "subset-ipv6", "subset-empty", "subset-unknown",
        "subset-string", "subset-buffered",
    },
    "no ports": {"subset-list", "subset-bodyless", "subset-port", "subset-string", "subset-buffered"},
    "no ipv6": {"subset-list", "subset-bodyless", "subset-ipv6", "subset-string", "subset-buffered"},
    "no subset without body": {"subset-bodyless", "subset-port", "subset-empty", "subset-unknown"},
    "no string subset": {"subset-string"},
    "no subset in buffered": {"subset-buffered"},
    "grpc error": {"subset-port", "subset-empty", "subset-unknown"},
    "no opinion on an empty subset": {"subset-port", "subset-empty", "subset-unknown"},
    "talks around a refusal": {"subset-port", "subset-empty", "subset-unknown", "subset-refusal-alone"},
    "no reason": {"subset-refusal-reason"},
    "response twice": {"response-headers"},
    "cuts letters": {"response-echo"},
    "empties answers": {"response-buffered"},
    "dies of depth": {"body-hostile"},
    "refuses bad json": {"body-broken-json", "body-not-utf8", "body-compressed", "body-not-json"},
    "needs a model": {"body-no-model"},
    "no compression": {"body-compressed"},
    "needs json content": {"body-not-json"},
    "knows its paths": {"body-not-json", "body-any-path"},
    "strict fields": {"stream-unknown-fields", "stream-unknown-message"},
    "no unknown events": {"stream-unknown-message"},
    "answers observers": {"stream-observed"},
    "overrides": {"stream-no-mode-override"},
    "hooks": {"hooks-off"},
    "no health": {"health-liveness", "health-readiness", "health-ext-proc", "health-whole", "health-unknown"},
    "no name liveness": {"health-liveness"},
    "no name readiness": {"health-readiness"},
    "no name envoy.service.ext_proc.v3.ExternalProcessor": {"health-ext-proc"},
    "no name ": {"health-whole"},
    "any health": {"health-unknown"},
}  # fmt: skip

# The same for faults that are silences, or that harm whoever comes next: (which checks are run, what fails)
SILENCES = {
    "loses the end": ("duplex-*,pick-*", {"duplex-end-of-stream", "duplex-second-end", "duplex-empty-body"}),
    "loses empty chunks": ("duplex-*,pick-*", {"duplex-empty-body", "duplex-end-of-stream"}),
    "ignores trailers": ("duplex-*,pick-*", {"duplex-trailers"}),
    "picks at the end": ("duplex-*,pick-*", {"duplex-early-pick"}),
    "waits in streamed": ("mode-*,pick-*", {"mode-streamed"}),
    "deadlock": ("mode-*,duplex-*", {"mode-buffered", "mode-buffered-partial", "mode-buffered-large"}),
    "ignores response_headers": (
        "response-*",
        {"response-headers", "response-at-once", "response-trailers", "response-buffered"},
    ),
    "ignores response_trailers": ("response-*", {"response-trailers"}),
    "answers without end": ("response-*", {"response-end-of-stream"}),
    "collects answers": ("response-*", {"response-at-once", "response-trailers"}),
    "stays open": ("stream-half-close,pick-*", {"stream-half-close"}),
    "one at a time": ("stream-parallel,pick-header", {"stream-parallel"}),
    "keyed by id": ("stream-*", {"stream-request-ids"}),
    "never forgets": ("stream-cancel", {"stream-cancel"}),
    "dies of garbage": ("stream-malformed", {"stream-malformed"}),
}


async def look(
    where: str,
    *,
    only: str = "*",
    pool: Sequence[str] = POOL,
    wait_s: float = WAIT_S,
    hooked: bool = False,
) -> run.Report:
    at = address.parse(where)
    settings = target.Settings(at, health=at, pool=tuple(pool), timeout_s=wait_s, hooks=hooked)
    return await run.run(settings, catalogue.only(only.split(",")), 64, lambda _share: None)


def of(report: run.Report, result: Result) -> set[str]:
    return {outcome.check.id for outcome in report.outcomes if outcome.result is result}


def words(report: run.Report) -> dict[str, str]:
    return {outcome.check.id: outcome.words for outcome in report.outcomes}


# ---- the checks can fail, and only where they should ----


@pytest.mark.parametrize("hooked", [False, True])
async def test_a_right_picker_passes_all_that_can_be_asked_of_it(*, hooked: bool) -> None:
    async with picker(*(["hooks"] if hooked else [])) as running:
        report = await look(running.address, hooked=hooked)
    assert of(report, Result.FAIL) == set(), words(report)
    assert of(report, Result.SKIP) == ({"hooks-off"} if hooked else {"hooks-selection", "hooks-served"})
    assert report.conforms(strict=True)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_fails_its_checks_and_no_others(fault: str) -> None:
    groups = {name.partition("-")[0] for name in FAULTS[fault]}
    await fails(fault, only=",".join(f"{group}-*" for group in sorted(groups | {"pick"})))


@pytest.mark.heavy
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_fails_its_checks_and_none_of_all_others(fault: str) -> None:
    await fails(fault, only="*")


async def fails(fault: str, *, only: str) -> None:
    async with picker(fault) as running:
        report = await look(running.address, only=only)
    assert of(report, Result.FAIL) == FAULTS[fault], words(report)
    severities = {check.severity for check in catalogue.ALL if check.id in FAULTS[fault]}
    assert report.conforms() == (Severity.MUST not in severities)
    assert not report.conforms(strict=True)


async def test_a_silence_fails_its_checks_and_no_others() -> None:
    """What is to fail has little time; what is to pass has much, as some of it waits in vain first."""

    async def one(fault: str) -> None:
        only, failed = SILENCES[fault]
        others = {check.id for check in catalogue.only(only.split(","))} - failed
        async with picker(fault) as running:
            good = (
                await look(running.address, only=",".join(sorted(others)), wait_s=PATIENT_S)
                if others
                else None
            )
        async with picker(fault) as running:
            bad = await look(running.address, only=",".join(sorted(failed)), wait_s=SILENT_S)
        assert of(bad, Result.FAIL) == failed, (fault, words(bad))
        if good is not None:
            said = {outcome.check.id: outcome.words for outcome in good.outcomes if outcome.words}
            assert of(good, Result.FAIL) == set(), (fault, said)

    await asyncio.gather(*map(one, SILENCES))


async def test_hooks_that_are_said_to_be_on_and_are_not_fail() -> None:
    async with picker() as running:
        report = await look(running.address, hooked=True)
    assert of(report, Result.FAIL) == {"hooks-selection", "hooks-served"}, words(report)


def test_every_check_has_a_picker_that_fails_it() -> None:
    failed = set().union(*FAULTS.values(), *(failed for _, failed in SILENCES.values()))
    assert {check.id for check in catalogue.ALL} == failed | {"hooks-selection", "hooks-served"}


@pytest.mark.parametrize("fault", ["hangs", "closes", "garbage", "stops"])
async def test_a_picker_that_does_nothing_right_yields_failures_with_words(fault: str) -> None:
    async with picker(fault) as running:
        report = await look(running.address, wait_s=HANG_S if fault == "hangs" else WAIT_S)
    assert of(report, Result.FAIL) >= {"duplex-echo", "stream-parallel", "subset-empty", "mode-buffered"}
    assert not report.conforms()
    said = words(report)
    assert not [text for text in said.values() if "please report" in text]
    wanted = {
        "hangs": f"it said nothing more for {HANG_S:g} s",
        "closes": "it ended the stream",
        "garbage": "it sent bytes that are no ProcessingResponse",
        "stops": "the stream ended with ",
    }
    assert wanted[fault] in said["body-not-json"]
    if fault != "stops":
        assert report.latency is None
        done_nothing = {"stream-observed", "duplex-waits-for-body", "stream-malformed", "stream-half-close"}
        passed = {name for name in of(report, Result.PASS) if not name.startswith("health-")}
        assert passed <= done_nothing


async def test_a_picker_that_sends_without_end_is_not_listened_to_for_ever() -> None:
    async with picker("floods") as running, asyncio.timeout(PATIENT_S * 2):
        report = await look(running.address, only="body-not-json,duplex-echo", wait_s=HANG_S)
    assert of(report, Result.FAIL) == {"body-not-json", "duplex-echo"}
    assert "it sent messages without end" in words(report)["body-not-json"]


async def test_a_check_with_a_fault_of_its_own_leaves_the_others_their_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(_target: target.Target) -> None:
        raise ZeroDivisionError

    first, *rest = catalogue.only(["health-*"])
    checks = [type(first)(first.id, first.severity, "", "", "", broken), *rest]
    async with picker() as running:
        where = address.parse(running.address)
        settings = target.Settings(where, health=where, timeout_s=WAIT_S)
        report = await run.run(settings, checks, 4, lambda _share: None)
    assert of(report, Result.FAIL) == {first.id}
    assert "please report" in words(report)[first.id]


# ---- kvring ----


async def listening_on_ipv6() -> tuple[web.AppRunner, str] | None:
    """A model server on [::1]; None where this machine has no IPv6."""
    app = web.Application()

    async def health(_request: web.Request) -> web.Response:
        return web.Response()

    app.router.add_get("/health", health)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "::1", 0)
        await site.start()
    except OSError:
        await runner.cleanup()
        return None
    server = site._server
    assert isinstance(server, asyncio.Server)
    return runner, f"[::1]:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("way", ["plaintext", "tls", "hooks", "list"])
async def test_kvring_passes_all_of_it(
    sidecar: Launch,
    endpoint: Callable[..., FakeEndpoint],
    way: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    members = {f"vllm-{n}": (await endpoint().listen()).address for n in range(3)}
    six = await listening_on_ipv6()
    if six is not None:
        members["vllm-six"] = six[1]
    more: dict[str, dict[str, Any]] = {
        "plaintext": {},
        "tls": {"tls": {"listen": "127.0.0.1:0"}},
        "hooks": {"conformance_hooks": True},
        "list": {"group": {"alternates": 2}},
    }
    running = await sidecar(members, **more[way])
    written = tmp_path / "report.json"
    options = {"tls": ["--insecure-tls", "--strict"], "hooks": ["--hooks", "--strict"], "list": []}
    line = [
        running.tls if way == "tls" else running.grpc, *options.get(way, ["--strict"]),
        f"--health={running.health}",
        f"--endpoints={','.join(members.values())}", f"--json={written}", "--timeout-s=20",
    ]  # fmt: skip
    code = await asyncio.to_thread(cli.main, ["conformance", *line])
    out, err = capsys.readouterr()
    if six is not None:
        await six[0].cleanup()
    assert (code, err) == (0, ""), out
    told = json.loads(written.read_text())
    skipped = {check["id"] for check in told["checks"] if check["result"] == "skip"}
    assert skipped == ({"hooks-off"} if way == "hooks" else {"hooks-selection", "hooks-served"})
    failed = {check["id"] for check in told["checks"] if check["result"] == "fail"}
    assert failed == ({"pick-single"} if way == "list" else set())
    assert told["counts"] == {
        "passed": len(catalogue.ALL) - len(skipped) - len(failed),
        "must_failed": 0,
        "should_failed": len(failed),
        "skipped": len(skipped),
    }
    assert told["latency"]["requests"] == 32
    assert running.process.poll() is None


def test_the_hooks_are_spelt_alike_on_both_sides() -> None:
    assert (hook_checks._CHOICE, hook_checks._SERVED) == (own_hooks.CHOICE, own_hooks.SERVED)


# ---- reports and the command ----


async def command(*words: str) -> int:
    return await asyncio.to_thread(cli.main, ["conformance", *words])


@pytest.mark.parametrize("strict", [False, True])
async def test_junit_counts_what_the_exit_code_says(
    *, strict: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written, values = tmp_path / "junit.xml", tmp_path / "report.json"
    line = ["--only=pick-*,health-*,hooks-*", f"--junit={written}", f"--json={values}", "--timeout-s=20"]
    async with picker("list", "appends", "no header") as running:
        code = await command(
            running.address, f"--health={running.address}", *line, *(["--strict"] if strict else [])
        )
    out, _ = capsys.readouterr()
    assert code == 1
    assert "It does not conform" in out
    root = ET.fromstring(written.read_text(encoding="utf-8"))  # noqa: S314 - made by the code under test
    (suite,) = root.findall("testsuite")
    cases = suite.findall("testcase")
    told = json.loads(values.read_text())
    assert [case.get("name") for case in cases] == [check["id"] for check in told["checks"]]
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    skipped = {case.get("name") for case in cases if case.find("skipped") is not None}
    musts, shoulds = {"pick-header"}, {"pick-single"}  # without its header nothing is appended
    assert failed == (musts | shoulds if strict else musts)
    results = {check["id"]: check["result"] for check in told["checks"]}
    assert {name for name, result in results.items() if result == "fail"} == musts | shoulds
    assert skipped == {name for name, result in results.items() if result == "skip"} | (
        set() if strict else shoulds
    )
    for element in (root, suite):
        assert element.get("tests") == str(len(cases))
        assert element.get("failures") == str(len(failed))
        assert element.get("skipped") == str(len(skipped))
        assert element.get("errors") == "0"
    failure = next(case.find("failure") for case in cases if case.get("name") == "pick-header")
    assert failure is not None
    assert "no header" in str(failure.get("message"))
    assert "operators see:" in str(failure.text)


async def test_what_a_picker_says_cannot_break_a_report(tmp_path: Path) -> None:
    async with picker() as running:
        report = await look(running.address, only="health-whole")
    (outcome,) = report.outcomes
    nasty = "\x00\x1b[31m<&>\ud800" + "x" * 1000
    bad = replace(outcome, result=Result.FAIL, words=plain(nasty))
    failed = run.Report("a", (), False, None, (bad,))
    written = document.to_junit(failed, "2026-01-01T00:00:00+00:00", strict=True)
    (case,) = ET.fromstring(written).iter("failure")  # noqa: S314 - made by the code under test
    message = str(case.get("message"))
    assert message.isprintable()
    assert len(message) <= 300
    json.dumps(document.to_json(failed)).encode()


async def test_the_table_says_what_happened_and_how_to_read_it(capsys: pytest.CaptureFixture[str]) -> None:
    async with picker("unequal", "value") as running:
        where = running.address
        code = await command(where, f"--health={where}", "--only", "pick-equal,pick-raw-value,pick-in-pool")
    out = " ".join(capsys.readouterr().out.split())
    assert code == 1
    assert "FAIL must pick-equal" in out
    assert "fail should pick-raw-value" in out
    assert "skip must pick-in-pool" in out
    assert "it did not: header '" in out
    assert "operators see: Which replica gets a request" in out
    assert "not looked at: name the pool with --endpoints" in out
    assert "1 must failed, 1 should failed, 1 skipped must: pick-equal should: pick-raw-value" in out
    assert "median of 32" in out
    assert "learnt from its answers" in out


async def test_a_report_that_can_not_be_written_is_named_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with picker() as running:
        for option in ("--junit", "--json"):
            file = tmp_path / "none" / "report"
            assert await command(running.address, "--only=pick-equal", option, str(file)) == 2
            out, err = capsys.readouterr()
            assert "It conforms" in out
            assert (
                err == f"kvring conformance: {option} {file}: can't be written: No such file or directory\n"
            )


async def test_a_should_that_fails_is_no_failure_unless_asked_strictly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with picker("list") as running:
        for strict, code in ((False, 0), (True, 1)):
            more = ["--strict"] if strict else []
            assert await command(running.address, "--only=pick-single,pick-equal", *more) == code
    assert "It conforms" in capsys.readouterr().out


def test_the_list_shows_every_check_and_asks_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["conformance", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(check.id in out for check in catalogue.ALL)


def test_ids_are_unique_and_every_check_says_all_there_is_to_say() -> None:
    ids = [check.id for check in catalogue.ALL]
    assert len(ids) == len(set(ids)) >= 60
    for check in catalogue.ALL:
        assert check.asks.endswith("."), check.id
        assert check.shows.endswith("."), check.id
        assert check.source, check.id
        assert check.id.startswith(f"{check.group}-")


async def test_what_cannot_be_asked_is_said_in_one_line_and_ends_with_2(
    sidecar: Launch,
    endpoint: Callable[..., FakeEndpoint],
    unused_address: str,
    tmp_path: Path,
) -> None:
    running = await sidecar({"a": (await endpoint().listen()).address}, tls={"listen": "127.0.0.1:0"})
    pem = tmp_path / "ca.pem"
    pem.write_text("no certificate")
    wrong = {
        (unused_address,): "Connection refused",
        (running.admin,): "does not speak gRPC (HTTP/2)",
        (running.health,): "speaks gRPC, but serves no ext_proc",
        (running.tls,): "if it speaks TLS: --tls or --insecure-tls",
        (running.tls, "--tls"): "certificate not verified: self-signed certificate; trust it with --ca FILE",
        (running.grpc, "--insecure-tls"): "no TLS there",
        (running.tls, f"--ca={pem}"): "no PEM certificates",
        (running.tls, f"--ca={pem}", "--insecure-tls"): "exclude each other",
        ("nowhere",): "'nowhere': expected HOST:PORT",
        (running.grpc, "--only=nothing"): "'nothing' is no check; --list shows them",
        (running.grpc, "--endpoints=a"): "'a': expected HOST:PORT",
        (): "no TARGET",
    }

    async def asked(*line: str) -> subprocess.CompletedProcess[str]:
        """In a process of its own: what gRPC tells of a stream must not be of an earlier test's loop."""
        return await asyncio.to_thread(conftest.command, "conformance", *line, "--timeout-s=10")

    answers = await asyncio.gather(*(asked(*line) for line in wrong))  # two wait for all of their time
    for (line, says), done in zip(wrong.items(), answers, strict=True):
        assert (done.returncode, done.stdout) == (2, ""), line
        assert done.stderr.startswith("kvring conformance: ")
        assert done.stderr.count("\n") == 1, done.stderr
        assert says in done.stderr, line


async def test_a_port_that_takes_connections_and_says_nothing_is_no_hang(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        assert await command(where, "--timeout-s=0.5") == 2
        assert "does not speak gRPC" in capsys.readouterr().err
        assert await command(where, "--timeout-s=0.5", "--insecure-tls") == 2
        assert "does not answer within 0.5 s" in capsys.readouterr().err


async def test_tls_is_verified_by_a_ca_and_by_the_hosts_name(
    sidecar: Launch,
    endpoint: Callable[..., FakeEndpoint],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    running = await sidecar({"a": (await endpoint().listen()).address}, tls={"listen": "127.0.0.1:0"})
    host, _, port = running.tls.rpartition(":")
    pem = tmp_path / "ca.pem"
    pem.write_text(await asyncio.to_thread(ssl.get_server_certificate, (host, int(port))))
    assert await command(f"localhost:{port}", f"--ca={pem}", "--only=pick-equal") == 0
    assert await command(f"127.0.0.1:{port}", f"--ca={pem}", "--only=pick-equal") == 2
    assert "certificate not verified" in capsys.readouterr().err


def nameless() -> tuple[bytes, bytes]:
    """Key and certificate, PEM, self-signed and without any host's name, as other pickers make them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "a picker")])
    now = dt.datetime.now(dt.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - dt.timedelta(days=1))
    signed = made.not_valid_after(now + dt.timedelta(days=1)).sign(key, hashes.SHA256())
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, form, serialization.NoEncryption()), signed.public_bytes(pem)


async def test_a_certificate_without_a_name_is_good_enough_where_none_is_verified(
    capsys: pytest.CaptureFixture[str],
) -> None:
    key, pem = nameless()
    async with picker(credentials=grpc.ssl_server_credentials([(key, pem)])) as running:
        where = running.tls_address
        assert await command(where, "--insecure-tls", "--only=pick-equal,duplex-*") == 0
        assert "13 passed" in capsys.readouterr().out
        assert await command(where, "--tls", "--only=pick-equal") == 2
        assert "certificate not verified" in capsys.readouterr().err


async def test_a_unix_socket_is_asked_too(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"unix:{tmp_path}/s"
    await sidecar({"a": (await endpoint().listen()).address}, grpc_listen=where)
    assert await command(where, "--only=pick-equal,duplex-echo") == 0
    assert "2 passed" in capsys.readouterr().out
