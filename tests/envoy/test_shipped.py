"""The shipped configurations, as they are, under real traffic: what D02, D03 and D06 of the cases ask.

Bare files run with a test's addresses in them; files for gateways as those would program Envoy
(tests/deploy/shapes.py, pool_shapes.py). One kvring serves all of them, plaintext or TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
from collections import Counter
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from extproc import bootstrap, gateway
from tests.deploy import manifests, pool_shapes, shapes
from tests.envoy import client
from tests.envoy import fleet as fleets

ENVOY = Path(__file__).parents[2] / "envoy"
KIB, MIB = 1024, 1024 * 1024
NOBODY = "127.0.0.1:1"  # where nothing listens


def _documents(*names):
    return [one for name in names for one in manifests.documents((ENVOY / name).read_text())]


POOLS = {
    "inferencepool/istio.yaml": pool_shapes.istio,
    "inferencepool/ai-gateway.yaml": pool_shapes.ai_gateway,
    "inferencepool/agentgateway.yaml": pool_shapes.agentgateway,
}
DIAL_TLS = ("inferencepool/ai-gateway.yaml", "inferencepool/agentgateway.yaml")


def _shape(name, fleet, folder):
    if name in POOLS:
        return POOLS[name](_documents("inferencepool/pool.yaml", name), fleet)
    if name.startswith("istio/"):
        return shapes.istio(_documents(name), fleet)
    if name.startswith("envoy-gateway/"):
        names = ["envoy-gateway/by-header.yaml", *([name] if "metadata" in name else [])]
        return shapes.envoy_gateway(_documents(*names), fleet)
    return shapes.bare((ENVOY / name).read_text(), fleet, folder)


ALL = [
    "static.yaml",
    "duplex.yaml",
    "istio/gateway.yaml",
    "envoy-gateway/by-header.yaml",
    *(
        pytest.param(name, marks=pytest.mark.heavy)
        for name in (
            "dns.yaml",
            "eds.yaml",
            "buffered.yaml",
            "fail-closed.yaml",
            "istio/sidecar.yaml",
            "envoy-gateway/by-metadata.yaml",
        )
    ),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def behind(tmp_path_factory):
    """Replicas and one kvring with both ports; a test puts an Envoy of its own before them."""
    settings = {"tls": {"listen": "127.0.0.1:0"}}
    async with fleets.fleet(tmp_path_factory.mktemp("fleet"), policy="ring", settings=settings) as running:
        yield running


@contextlib.asynccontextmanager
async def _door(name, running, folder, **changes):
    """An Envoy with this configuration before the fleet."""
    addresses = {
        "endpoints": running.addresses,
        "kvring": [running.kvring.ready["tls" if name in DIAL_TLS else "grpc"]],
        "health": running._listen["health"],
    } | changes
    config = _shape(name, shapes.Fleet(**addresses), folder)
    async with gateway.envoy(config) as envoy:
        yield envoy


async def _post(running, url, body, **headers):
    async with running.http.post(f"{url}/v1/chat/completions", data=body, headers=headers) as answer:
        await answer.read()
        return answer


def _prompt(number):
    return client.chat_body(f"conversation {number} goes on and on " * 80)


@pytest.mark.parametrize("name", [*ALL, *POOLS])
async def test_a_shipped_configuration_routes_by_prefix_and_takes_large_and_slow_bodies(
    name, behind, tmp_path
):
    async with _door(name, behind, tmp_path) as envoy:
        url = envoy.url("llm")
        before = await behind.metric("kvring_choices_total")

        async def asked():
            await _post(behind, url, _prompt(0))
            return await behind.metric("kvring_choices_total") > before

        await client.until(asked, "kvring is asked")
        homes = {}
        for number in range(8):
            send = functools.partial(_post, behind, url, _prompt(number))
            served = {(await client.in_time(envoy, send)).headers["x-kvring-endpoint"] for _ in "abc"}
            assert len(served) == 1, "a prompt left its home"
            homes[number] = served.pop()
        assert len(set(homes.values())) > 1

        body = client.padded(32_769)  # one over Envoy Gateway's default buffer
        answer = await client.in_time(envoy, functools.partial(_post, behind, url, body))
        assert (answer.status, answer.headers["x-sim-body-sha256"]) == (200, client.sha256(body))

        slow = client.padded(7 * MIB if name == "buffered.yaml" else 10_000_000)

        async def slowly():
            return await _post(behind, url, _slowly(slow), **{"content-length": str(len(slow))})

        answer = await client.in_time(envoy, slowly)
        assert (answer.status, answer.headers["x-sim-body-sha256"]) == (200, client.sha256(slow))
        if name == "buffered.yaml":  # as its row in envoy/README.md says
            assert (await _post(behind, url, io.BytesIO(client.padded(9 * MIB)))).status == 413


async def _slowly(body):
    """A client that pauses for longer than message_timeout, twice."""
    third = len(body) // 3
    for start in range(0, len(body), third):
        yield body[start : start + third]
        await asyncio.sleep(0.3)  # the client's own pace, not a wait for something


@pytest.mark.parametrize("name", ALL)
async def test_without_any_kvring_a_shipped_configuration_is_open_or_closed_as_it_states(
    name, behind, tmp_path
):
    table = (ENVOY / "README.md").read_text().splitlines()
    row = next((line for line in table if f"]({name})" in line), "| open |")
    closed = "| closed: 503 |" in row
    target = {bootstrap.DESTINATION: behind.addresses[0]}
    async with _door(name, behind, tmp_path, kvring=[NOBODY], health=NOBODY) as envoy:
        url = envoy.url("llm")

        async def settled():  # duplex fails until a health check has
            return (await _post(behind, url, _prompt(0))).status == (503 if closed else 200)

        await client.until(settled, "what it states")
        answers = [await _post(behind, url, _prompt(number), **target) for number in range(12)]
        assert {answer.status for answer in answers} == {503 if closed else 200}
        if not closed:  # balanced by Envoy, wherever the client points
            assert len({answer.headers["x-kvring-endpoint"] for answer in answers}) > 1


async def test_ai_gateway_fails_closed_whatever_the_pool_says(behind, tmp_path):
    """And a client that names an endpoint does not get there: docs/gateways/ai-gateway.md."""
    name = "inferencepool/ai-gateway.yaml"
    reference = shapes.only(_documents("inferencepool/pool.yaml"), "InferencePool")["spec"]
    assert reference["endpointPickerRef"]["failureMode"] == "FailOpen"
    target = {bootstrap.DESTINATION: behind.addresses[0]}
    async with _door(name, behind, tmp_path, kvring=[NOBODY], health=NOBODY) as envoy:
        url = envoy.url("llm")
        answers = [await _post(behind, url, _prompt(number), **target) for number in range(4)]
    assert {answer.status for answer in answers} == {500}


@pytest.mark.parametrize("name", POOLS)
async def test_around_a_pool_kvring_also_places_what_has_no_body_and_no_client_steers(name, behind, tmp_path):
    target = {bootstrap.DESTINATION: behind.addresses[0]}
    async with _door(name, behind, tmp_path) as envoy:
        url = envoy.url("llm")
        before = await behind.metric("kvring_choices_total")
        async with behind.http.get(f"{url}/v1/models", headers=target) as answer:
            assert answer.status == 200
        homes = {
            number: (await _post(behind, url, _prompt(number), **target)).headers["x-kvring-endpoint"]
            for number in range(8)
        }
        assert len(set(homes.values())) > 1
        assert await behind.metric("kvring_choices_total") == before + 9


async def test_a_list_of_endpoints_would_lead_ai_gateway_nowhere(tmp_path):
    """So `alternates` stays 0 there, as its page says; Istio takes the list."""
    settings = {"tls": {"listen": "127.0.0.1:0"}}
    async with fleets.fleet(tmp_path, settings=settings, pool={"alternates": 1}) as running:
        for name, status in (("inferencepool/ai-gateway.yaml", 503), ("inferencepool/istio.yaml", 200)):
            async with _door(name, running, tmp_path) as envoy:
                assert (await _post(running, envoy.url("llm"), _prompt(0))).status == status


async def test_without_the_scrub_a_client_would_steer_so_the_test_above_means_something(behind, tmp_path):
    documents = _documents("envoy-gateway/by-header.yaml")
    del shapes.only(documents, "ClientTrafficPolicy")["spec"]["headers"]
    config = shapes.envoy_gateway(documents, shapes.Fleet(behind.addresses, [NOBODY]))
    target = behind.addresses[0]
    async with gateway.envoy(config) as envoy:
        steered = [
            await _post(behind, envoy.url("llm"), _prompt(number), **{bootstrap.DESTINATION: target})
            for number in range(6)
        ]
    assert {answer.headers["x-kvring-endpoint"] for answer in steered} == {target}


async def test_streams_are_balanced_over_several_kvring_processes(behind, tmp_path):
    """D06: each process an endpoint of its own, as several.yaml and a headless Service have them."""
    config = yaml.safe_load(behind._config_path.read_text())
    config |= dict.fromkeys(("grpc_listen", "health_listen", "admin_listen"), "127.0.0.1:0")
    path = tmp_path / "kvring.yaml"
    path.write_text(yaml.safe_dump(config))
    async with contextlib.AsyncExitStack() as stack:
        kvrings = [
            await stack.enter_async_context(
                gateway.command(["serve", "--config", str(path)], name=f"kvring-{number}")
            )
            for number in range(3)
        ]
        asked = [one.ready["grpc"] for one in kvrings]
        fleet = shapes.Fleet(behind.addresses, asked, kvrings[0].ready["health"])
        config = shapes.bare((ENVOY / "several.yaml").read_text(), fleet, tmp_path)
        asking = shapes.manager(config)["http_filters"][0]["typed_config"]
        asking["message_timeout"] = f"{fleets.PATIENCE_S}s"  # who is asked is what counts here
        envoy = await stack.enter_async_context(gateway.envoy(config))

        async def counts():
            pages = [await behind.get(f"http://{one.ready['admin']}/metrics") for one in kvrings]
            return [_choices(page) for page in pages]

        async def all_asked():
            await _post(behind, envoy.url("llm"), _prompt(0))
            return all(await counts())

        await client.until(all_asked, "all are asked")
        before = await counts()
        served = Counter()
        for number in range(30):
            served[(await _post(behind, envoy.url("llm"), _prompt(number))).headers["x-kvring-endpoint"]] += 1
        more = [new - old for new, old in zip(await counts(), before, strict=True)]
        assert sum(more) == 30
        assert max(more) <= 2 * min(more), more  # round robin, but for what a worker's connections do to it
        assert len(served) > 1


def _choices(page):
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if line.startswith("kvring_choices_total{")
    )


@pytest.mark.heavy
async def test_over_a_unix_socket(tmp_path):
    socket = tmp_path / "s"
    async with fleets.fleet(tmp_path, settings={"grpc_listen": f"unix:{socket}"}, listener={}) as running:
        assert running.kvring.ready["grpc"] == f"unix:{socket}"
        async with _door("unix-socket.yaml", running, tmp_path) as envoy:
            url = envoy.url("llm")

            async def asked():
                await _post(running, url, _prompt(0))
                return await running.metric("kvring_choices_total") > 0

            await client.until(asked, "kvring is asked")
            send = functools.partial(_post, running, url, _prompt(1))
            served = {(await client.in_time(envoy, send)).headers["x-kvring-endpoint"] for _ in range(4)}
            assert len(served) == 1
