"""Driver: real HTTP against a small server that streams like an engine, or fails like one."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from extproc.sim import driver, workload

SPEED = 20.0
PREFILL_S = 0.05  # real seconds between the headers and the first token


class _Engine:
    """A server of one replica's manners; `behave` picks how it ends."""

    def __init__(self, name, behave="well"):
        self.name = name
        self.behave = behave
        self.prompts = []

    async def answer(self, request):
        self.prompts.append((await request.json())["messages"])
        if self.behave == "full":
            return web.Response(status=503)
        response = web.StreamResponse(headers={"x-replica": self.name, "content-type": "text/event-stream"})
        await response.prepare(request)
        if self.behave == "overloaded":
            await _event(response, {"error": {"message": "queue full", "code": 503}})
            await response.write(b"data: [DONE]\n\n")
            return response
        await _event(response, _delta({"role": "assistant", "content": ""}))
        await asyncio.sleep(PREFILL_S)
        # Split inside the very bytes that mark a first token.
        whole = b"data: " + json.dumps(_delta({"content": "first"})).encode() + b"\n\n"
        middle = whole.index(b"first") - 1
        await response.write(whole[:middle])
        await asyncio.sleep(0.001)
        await response.write(whole[middle:])
        for _ in range(5):
            await _event(response, _delta({"content": "word "}))
        if self.behave == "dies":
            request.transport.abort()
            return response
        if self.behave == "stops":
            return response
        usage = {"prompt_tokens": 100, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 80}}
        if self.behave == "silent":
            usage = None
        await _event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response


def _delta(delta):
    return {"choices": [{"index": 0, "delta": delta}], "usage": None}


async def _event(response, document):
    await response.write(b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n")


@asynccontextmanager
async def _served(engine):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", engine.answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def _driven(engine, users=2, duration_s=48.0):
    async with _served(engine) as url:
        load = driver.Driver(
            {"arm": url}, workload.Workload(1, users), driver.Schedule(duration_s=duration_s, speed=SPEED)
        )
        machine = await load.run()
    return load.samples["arm"], machine


async def test_a_sample_has_the_replica_the_usage_and_the_time_of_the_first_token():
    samples, machine = await _driven(_Engine("replica-3"))
    assert len(samples) >= 4
    for one in samples:
        assert one.error is None
        assert one.endpoint == "replica-3"
        assert (one.prompt_tokens, one.cached_tokens, one.output_tokens) == (100, 80, 6)
        # Engine time: the headers and the empty role chunk came at once, the first text 50 ms later.
        assert PREFILL_S * SPEED <= one.ttft_s <= one.finished_s - one.started_s
    assert machine.cores >= 1
    assert machine.loop_lag_max_ms >= machine.loop_lag_p99_ms >= 0


async def test_no_request_begins_after_the_end_and_those_begun_are_read_to_theirs():
    samples, _ = await _driven(_Engine("a"), users=5, duration_s=6.0)
    assert all(one.started_s < 6.0 for one in samples)
    assert all(one.error is None for one in samples)


async def test_both_arms_get_each_users_requests_in_the_same_order():
    one, two = _Engine("one"), _Engine("two")
    async with _served(one) as first, _served(two) as second:
        load = driver.Driver(
            {"one": first, "two": second},
            workload.Workload(3, 1),
            driver.Schedule(duration_s=48.0, speed=SPEED),
        )
        await load.run()
    both = min(len(one.prompts), len(two.prompts))
    assert both >= 2
    assert one.prompts[:both] == two.prompts[:both]
    assert load.in_flight == {"one": 0, "two": 0}


@pytest.mark.parametrize(
    ("behave", "kind"),
    [
        ("full", "http 503"),
        ("overloaded", "stream_error"),
        ("dies", "cut_off"),
        ("stops", "cut_off"),
        ("silent", "no_usage"),
    ],
)
async def test_every_way_to_fail_is_a_sample_with_its_kind(behave, kind):
    samples, _ = await _driven(_Engine("a", behave), users=1, duration_s=15.0)
    assert samples
    assert {one.error for one in samples} == {kind}
    assert kind.split()[0] in driver.ERROR_KINDS


async def test_a_closed_port_is_an_error_of_kind_connect():
    async with _served(_Engine("a")) as url:
        pass
    load = driver.Driver({"arm": url}, workload.Workload(1, 1), driver.Schedule(duration_s=15.0, speed=SPEED))
    await load.run()
    assert {one.error for one in load.samples["arm"]} == {"connect"}
