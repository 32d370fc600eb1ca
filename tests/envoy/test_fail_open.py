"""kvring may be killed, hang, restart or drain: with the shipped configuration no client sees an error."""

import asyncio
import contextlib
import itertools
import json
import signal
from collections import Counter

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.exchange import BodyMode
from tests.envoy import account, client
from tests.envoy import fleet as fleets

SERVING = health_pb2.HealthCheckResponse.SERVING
TOKENS = 12
SHIPPED = {"message_timeout_s": fleets.SHIPPED_S}


class Load:
    """Clients of every kind in closed loops; `outcomes` counts ("ok" or what was wrong)."""

    def __init__(self, running: fleets.Fleet, http) -> None:
        self.outcomes = Counter()
        self._running, self._http = running, http

    async def _one(self, kind, number):
        if kind == "get":
            async with self._http.get(f"{self._running.url}/v1/models") as answer:
                await answer.read()
                return "ok" if answer.status == 200 else f"{kind}: {answer.status}"
        words = 2000 if kind == "long" else 50
        body = client.chat_body(
            f"client {number % 7} asks " * words, max_tokens=TOKENS, stream=kind == "stream"
        )
        url = f"{self._running.url}/v1/chat/completions"
        async with self._http.post(url, data=body) as answer:
            text = await answer.read()
        if answer.status != 200:
            return f"{kind}: {answer.status}"
        if answer.headers["x-sim-body-sha256"] != client.sha256(body):
            return f"{kind}: other body"
        if kind == "stream":
            whole = text.endswith(b"data: [DONE]\n\n") and text.count(b'"content"') >= TOKENS
        else:
            whole = json.loads(text)["usage"]["completion_tokens"] == TOKENS
        return "ok" if whole else f"{kind}: cut"

    async def _client(self, number):
        kinds = itertools.cycle(["chat", "stream", "get", "long"])
        for _ in range(number % 4):
            next(kinds)
        for kind in kinds:
            try:
                outcome = await self._one(kind, number)
            except Exception as error:  # noqa: BLE001  any is a failure of the test, with its name
                outcome = f"{kind}: {error!r}"
            self.outcomes[outcome] += 1


@contextlib.asynccontextmanager
async def _load(running, clients=12):
    """A running Load; at the end all that is open is finished."""
    async with client.session() as http:
        load = Load(running, http)
        tasks = [asyncio.ensure_future(load._client(number)) for number in range(clients)]
        try:
            await _served(load, 30)
            yield load
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _served(load, more):
    """Returns when so many more requests have succeeded."""
    wanted = load.outcomes["ok"] + more

    async def enough():
        assert set(load.outcomes) <= {"ok"}, load.outcomes
        return load.outcomes["ok"] >= wanted

    await client.until(enough, f"{more} more served")


async def _asks(running, least=20):
    """Returns when Envoy asks kvring again."""
    before = await running.metric("kvring_choices_total")

    async def asked():
        return await running.metric("kvring_choices_total") >= before + least

    await client.until(asked, "kvring is asked")


# as shipped: nothing here changes steering
async def test_kvring_killed_again_and_again_under_load_costs_no_request(fleet):
    async with fleet(speed=4, **SHIPPED) as running, _load(running) as load:
        for _ in range(2):
            await running.kill_kvring()
            await _served(load, 60)
            await running.start_kvring()
            await _served(load, 30)
        await _asks(running)
        assert set(load.outcomes) == {"ok"}


async def test_kvring_hung_under_load_costs_no_request_and_it_goes_on_after(fleet):
    async with fleet(speed=4, **SHIPPED) as running:
        async with _load(running) as load:
            for _ in range(2):
                running.pause_kvring()
                try:
                    await _served(load, 60)
                finally:
                    running.resume_kvring()
                await _asks(running)
            assert set(load.outcomes) == {"ok"}
        await account.settled(running)  # what it slept through is no load


async def test_kvring_restarted_under_load_costs_no_request(fleet):
    async with fleet(speed=4, settings={"drain_notice_s": 0.5}, **SHIPPED) as running, _load(running) as load:
        for _ in range(2):
            assert await running.stop_kvring() == 0
            await running.start_kvring()
            await _asks(running)
        assert set(load.outcomes) == {"ok"}


@pytest.mark.parametrize(
    "mode", [BodyMode.BUFFERED_PARTIAL, BodyMode.FULL_DUPLEX_STREAMED], ids=lambda mode: mode.name
)
async def test_a_drain_serves_new_requests_and_ends_no_open_one(fleet, mode):
    settings = {"drain_notice_s": 60, "drain_timeout_s": 30}  # a second signal ends the notice
    async with fleet(speed=1, body_mode=mode, settings=settings) as running:
        long = [
            asyncio.ensure_future(running.chat(f"long {number}", max_tokens=3000, stream=True))
            for number in range(6)
        ]  # a minute, unless the replicas are told to hurry
        await client.until(lambda: _all_open(running, 6), "six long answers")
        async with grpc.aio.insecure_channel(running._listen["health"]) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            readiness = health_pb2.HealthCheckRequest(service="readiness")
            assert (await health.Check(readiness)).status == SERVING
            running.kvring.signal(signal.SIGTERM)
            await client.until(lambda: _not_serving(health, readiness), "health says NOT_SERVING")
            assert (await health.Check(health_pb2.HealthCheckRequest(service="liveness"))).status == SERVING
        picks = await running.metric("kvring_choices_total")
        new = await asyncio.gather(*[running.chat(f"new {number}") for number in range(8)])
        assert {answer.status for answer in new} == {200}
        assert await running.metric("kvring_choices_total") > picks  # still steered
        await client.until(lambda: account.bypassed(running), "Envoy knows")
        assert not any(answer.done() for answer in long)
        running.kvring.signal(signal.SIGTERM)
        running.pace(500)
        assert await asyncio.wait_for(running.kvring.wait(), client.WAIT_S) == 0
        after = [await running.chat(f"after {number}") for number in range(4)]
        assert {answer.status for answer in after} == {200}
        answers = await asyncio.gather(*long)
        assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)
        assert all(answer.body.count(b'"content"') >= 3000 for answer in answers)


async def _not_serving(health, request):
    return (await health.Check(request)).status != SERVING


async def _all_open(running, count):
    return sum(account.really_inflight(running).values()) == count


async def test_an_answer_outlives_the_kvring_that_chose_for_it(fleet):
    async with fleet(speed=1) as running:
        long = [
            asyncio.ensure_future(running.chat(f"long {number}", max_tokens=1000, stream=number % 2 == 0))
            for number in range(8)
        ]
        await client.until(lambda: _all_open(running, 8), "eight answers")
        await running.kill_kvring()
        assert not any(answer.done() for answer in long)
        running.pace(200)
        answers = await asyncio.gather(*long)
        assert {answer.status for answer in answers} == {200}
        assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers[::2])


async def test_failing_closed_the_same_kill_is_seen_by_clients(fleet):
    """So the tests above can fail."""
    async with fleet(speed=4, fail_open=False) as running:
        assert (await running.chat("hello")).status == 200
        await running.kill_kvring()
        assert {(await running.chat("hello")).status for _ in range(5)} == {503}
