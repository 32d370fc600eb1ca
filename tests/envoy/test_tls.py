"""kvring's TLS port behind a real Envoy: unverified, verified, mutual; certificates that change or are wrong.

Every Envoy here has what `kvring envoy-config` prints for these options, with the test's addresses, and tells
which endpoint served.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

import aiohttp
import pytest

from extproc import cli, gateway
from tests import certificates
from tests.deploy import shapes
from tests.envoy import client
from tests.envoy import fleet as fleets

SHIPPED = Path(__file__).parents[2] / "envoy/tls.yaml"
NAME = "kvring.llm.svc"
HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
STATS = r"cluster\.kvring\.ssl|ext_proc\.kvring"


@pytest.fixture
def printed(capsys):
    """`printed(*options)`: the bootstrap that `kvring envoy-config` prints for these options."""

    def printed(*options):
        assert cli.main(["envoy-config", "--replica", "127.0.0.1:1", *map(str, options)]) == 0
        return capsys.readouterr().out

    return printed


@contextlib.asynccontextmanager
async def door(running, text, folder, connection_requests=0):
    """An Envoy of this bootstrap before the fleet, asking kvring at its TLS port.

    connection_requests: of kvring's, a new one after so many streams; 0: it stays.
    """
    config = shapes.bare(
        text,
        shapes.Fleet(running.addresses, [running.kvring.ready["tls"]], running.kvring.ready["health"]),
        folder,
    )
    asked = config["static_resources"]["clusters"][1]
    asked["connect_timeout"] = "10s"  # with the handshake; a busy machine is no failure here
    if connection_requests:
        more = {"max_requests_per_connection": connection_requests}
        asked["typed_extension_protocol_options"][HTTP]["common_http_protocol_options"] = more
    async with gateway.envoy(config) as envoy:
        yield envoy


def patient(*options):
    return (*options, "--message-timeout-s", fleets.PATIENCE_S)


async def counted(envoy, name):
    """Envoy's counter whose name ends so."""
    return sum(value for key, value in (await envoy.stats(STATS)).items() if key.endswith(name))


def prompt(number):
    return f"conversation {number} goes on and on " * 80


async def routes_by_prefix(running, url):
    """Each of 8 prompts is served by one endpoint, not all by the same, all as kvring chose."""
    before = await running.metric("kvring_choices_total")
    homes = {}
    for number in range(8):
        answers = [await running.chat(prompt(number), url=url) for _ in "abc"]
        assert {answer.status for answer in answers} == {200}
        (homes[number],) = {answer.served_by for answer in answers}
    assert len(set(homes.values())) > 1
    assert await running.metric("kvring_choices_total") == before + 24
    return homes


async def balanced_without_kvring(running, envoy, count=12):
    """All are served, by several endpoints, and Envoy counts each as one that kvring was not asked for."""
    answers = [await running.chat(prompt(0), url=envoy.url("llm")) for _ in range(count)]
    assert {answer.status for answer in answers} == {200}
    assert len({answer.served_by for answer in answers}) > 1
    assert await running.metric("kvring_choices_total") == 0
    assert await counted(envoy, "failure_mode_allowed") == count


async def test_unverified_tls_and_plaintext_side_by_side(fleet, printed, tmp_path):
    """D04: one gateway dials TLS that it does not verify, one dials plaintext; they agree on every home."""
    async with fleet(policy="ring", settings={"tls": {"listen": "127.0.0.1:0"}}) as running:
        async with door(running, printed(*patient("--kvring-tls")), tmp_path) as envoy:
            homes = await routes_by_prefix(running, envoy.url("llm"))
            assert await routes_by_prefix(running, running.url) == homes
            assert await counted(envoy, "ssl.handshake") >= 1
            assert await counted(envoy, "failure_mode_allowed") == 0
        stats = await running.envoy.stats(r"cluster\.kvring\.ssl\.handshake")
        assert not any(stats.values()), "the other door's is plaintext"


@pytest.fixture
def authority():
    return certificates.Authority()


@pytest.fixture
def files(authority, tmp_path):
    """`files(...)`: settings of kvring with a certificate for NAME, written as live.crt and live.key."""

    def files(days=30, **more):
        crt, key = authority.write(tmp_path, "live", [NAME], days)
        tls = {"listen": "127.0.0.1:0", "certificate_file": str(crt), "key_file": str(key)}
        return {"tls": tls | more}

    return files


async def test_a_verified_certificate_and_name(fleet, files, printed, tmp_path):
    checked = ("--kvring-ca", tmp_path / "live.ca", "--kvring-name", NAME)
    async with (
        fleet(policy="ring", settings=files()) as running,
        door(running, printed(*patient(*checked)), tmp_path) as envoy,
    ):
        await routes_by_prefix(running, envoy.url("llm"))
        assert await counted(envoy, "failure_mode_allowed") == 0


@pytest.mark.parametrize("wrong", ["authority", "name", "expired"])
async def test_a_certificate_that_does_not_hold_leaves_requests_to_envoy_and_is_counted(
    fleet, files, printed, tmp_path, wrong
):
    ca, name = tmp_path / "live.ca", NAME
    settings = files(days=-1 if wrong == "expired" else 30)
    if wrong == "authority":
        ca = tmp_path / "other.ca"
        ca.write_bytes(certificates.Authority().pem)
    if wrong == "name":
        name = "kvring.elsewhere.svc"
    checked = patient("--kvring-ca", ca, "--kvring-name", name)
    stat = "ssl.fail_verify_san" if wrong == "name" else "ssl.fail_verify_error"
    async with fleet(policy="ring", settings=settings) as running:
        async with door(running, printed(*checked), tmp_path) as envoy:
            await balanced_without_kvring(running, envoy)
            assert await counted(envoy, stat) >= 1
            assert await counted(envoy, "ssl.handshake") == 0
        if wrong == "authority":
            async with door(running, printed(*checked, "--fail-closed"), tmp_path) as envoy:
                assert (await running.chat(prompt(0), url=envoy.url("llm"))).status == 503
        if wrong == "expired":  # whoever does not look is served
            async with door(running, printed(*patient("--kvring-tls")), tmp_path) as envoy:
                await routes_by_prefix(running, envoy.url("llm"))


async def test_tls_to_the_plaintext_port_leaves_requests_to_envoy_and_is_counted(fleet, printed, tmp_path):
    async with fleet(policy="ring") as running:
        running.kvring.ready["tls"] = running.kvring.ready["grpc"]
        async with door(running, printed(*patient("--kvring-tls")), tmp_path) as envoy:
            await balanced_without_kvring(running, envoy)
            assert await counted(envoy, "ssl.connection_error") >= 1


async def test_mutual_tls_lets_in_whom_the_ca_signed(fleet, files, printed, tmp_path):
    ours = certificates.Authority("gateways")
    cert, key = ours.write(tmp_path, "gateway", ["gateway"])
    strange_cert, strange_key = certificates.Authority().write(tmp_path, "stranger", ["gateway"])
    checked = patient("--kvring-ca", tmp_path / "live.ca", "--kvring-name", NAME)
    settings = files(client_ca_file=str(tmp_path / "gateway.ca"))
    async with fleet(policy="ring", settings=settings) as running:
        strange = ("--kvring-cert", strange_cert, "--kvring-key", strange_key)
        for own in ((), strange):
            async with door(running, printed(*checked, *own), tmp_path) as envoy:
                await balanced_without_kvring(running, envoy)
        own = ("--kvring-cert", cert, "--kvring-key", key)
        async with door(running, printed(*checked, *own), tmp_path) as envoy:
            await routes_by_prefix(running, envoy.url("llm"))
            assert await counted(envoy, "failure_mode_allowed") == 0


async def test_a_certificate_that_is_changed_under_load_costs_no_request_and_no_choice(
    fleet, files, authority, printed, tmp_path
):
    checked = ("--kvring-ca", tmp_path / "live.ca", "--kvring-name", NAME)
    async with (
        fleet(policy="ring", settings=files()) as running,
        door(running, printed(*patient(*checked)), tmp_path, connection_requests=3) as envoy,
    ):
        url, asked = envoy.url("llm"), 0
        statuses = set()

        async def some(number):
            nonlocal asked
            for turn in range(6):
                statuses.add((await running.chat(prompt(number + turn), url=url)).status)
                asked += 1

        async def load():
            await asyncio.gather(*(some(number) for number in range(8)))

        await load()
        for _ in range(3):
            before = await counted(envoy, "ssl.handshake")
            certificate, key = authority.issue([NAME])
            going = asyncio.create_task(load())
            certificates.put(tmp_path / "live.crt", certificate)
            await running.chat(prompt(99), url=url)  # while it has the key of another
            asked += 1
            certificates.put(tmp_path / "live.key", key)
            await going
            await load()
            assert await counted(envoy, "ssl.handshake") > before + 5, "connections are made anew"
            assert await shown(running.kvring.ready["tls"]) == certificate.strip()
        assert statuses == {200}
        assert await counted(envoy, "failure_mode_allowed") == 0
        assert await counted(envoy, "ssl.fail_verify_error") == 0
        assert await running.metric("kvring_choices_total") == asked


async def shown(address):
    """The certificate that is shown there, PEM."""
    host, _, port = address.rpartition(":")
    return (await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))).encode().strip()


async def test_the_shipped_file_with_tls_on_both_sides(fleet, authority, tmp_path):
    """envoy/tls.yaml as it is: TLS to clients, mutual TLS to kvring."""
    for name, host in (("tls", "localhost"), ("kvring", "kvring")):
        (tmp_path / name).mkdir()
        authority.write(tmp_path / name, "tls", [host])
        (tmp_path / name / "ca.crt").write_bytes(authority.pem)
    own = tmp_path / "kvring"
    tls = {
        "listen": "127.0.0.1:0",
        "certificate_file": str(own / "tls.crt"),
        "key_file": str(own / "tls.key"),
        "client_ca_file": str(own / "ca.crt"),
    }
    trusting = ssl.create_default_context(cadata=authority.pem.decode())
    text = SHIPPED.read_text().replace("/etc/envoy/", f"{tmp_path}/")
    patient = text.replace("message_timeout: 0.25s", f"message_timeout: {fleets.PATIENCE_S}s")
    assert patient != text
    async with (
        fleet(policy="ring", settings={"tls": tls}) as running,
        door(running, patient, tmp_path) as envoy,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as secure,
    ):
        running.http = secure
        url = envoy.url("llm").replace("http://127.0.0.1", "https://localhost")
        await client.until(lambda: asked(running, url), "kvring is asked")
        await routes_by_prefix(running, url)
        assert await counted(envoy, "ssl.handshake") >= 1


async def asked(running, url):
    assert (await running.chat("hello", url=url)).status == 200
    return await running.metric("kvring_choices_total") > 0
