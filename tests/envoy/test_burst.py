"""A burst of one prompt: every choice sees the ones before it, so no endpoint gets more than its bound.

    work(endpoint) <= max(floor, factor * mean work) + one request, at every moment of the burst

Answers are parked: nothing ends while it lasts, so the sum only grows and the law holds at every look.
"""

import asyncio
import contextlib

import pytest

from extproc import ledger
from extproc.exchange import BodyMode
from tests.envoy import account, client

MODES = [
    BodyMode.BUFFERED_PARTIAL,
    BodyMode.FULL_DUPLEX_STREAMED,
    pytest.param(BodyMode.BUFFERED, marks=pytest.mark.heavy),  # to kvring the first with a larger limit
]
FACTOR = 2.0  # the default of bound_factor
FLOOR_TOKENS = 8192
PROMPT = "one very popular system prompt, " * 100
PROMPT_TOKENS = len(PROMPT) // 4 + 64
REQUESTS = 256
ENDPOINTS = 8
# a token takes half a second, and kvring never sees prefill end by its own estimate
PARKED = {"speed": 0.05, "message_timeout_s": 30, "replicas": ENDPOINTS}


@contextlib.asynccontextmanager
async def _parked(running, requests):
    """So many requests of one prompt, sent at once and open; `looks` holds kvring's state as they came."""
    looks = []
    async with client.session() as http:
        url = f"{running.url}/v1/chat/completions"

        async def one():
            async with http.post(url, data=client.chat_body(PROMPT, max_tokens=1000)) as answer:
                return answer.status, await answer.read()

        tasks = [asyncio.ensure_future(one()) for _ in range(requests)]
        try:

            async def all_open():
                looks.append(await running.state())
                return sum(account.really_inflight(running).values()) == requests

            await client.until(all_open, "all parked")
            looks.append(await running.state())
            yield looks
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _works(state):
    return [
        each["pending_tokens"] + ledger.REQUEST_TOKENS * each["inflight"] for each in account.endpoints(state)
    ]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("policy", ["ring", "cost"])
async def test_256_parked_requests_of_one_prompt_stay_below_the_bound(fleet, policy, mode):
    pool = {"prefill_tokens_per_s": 10}
    async with fleet(policy=policy, body_mode=mode, pool=pool, **PARKED) as running:
        async with _parked(running, REQUESTS) as looks:
            for state in looks:
                works = _works(state)
                bound = max(FLOOR_TOKENS, FACTOR * sum(works) / ENDPOINTS)
                assert max(works) <= bound + PROMPT_TOKENS + ledger.REQUEST_TOKENS
            last = looks[-1]
            assert last["pools"][0]["open_leases"] == REQUESTS
            # the ledger is what the engines hold: every choice was followed, in this mode too
            assert account.inflight(last) == account.really_inflight(running)
            used = [count for count in account.inflight(last).values() if count]
            assert len(used) >= ENDPOINTS / FACTOR
            if policy == "ring":
                assert await running.metric("kvring_choices_total", reason="overflow") > REQUESTS / 2
                # the home up to the floor, at least: a lone hot prompt is not moved for nothing
                home = await running.metric("kvring_choices_total", reason="home")
                assert home >= (FLOOR_TOKENS - PROMPT_TOKENS) // ledger.REQUEST_TOKENS
            assert await running.metric("kvring_unkeyed_total") == 0
        await account.settled(running)


async def test_without_a_bound_the_same_burst_is_all_on_one_endpoint(fleet):
    """So the test above can fail."""
    pool = {
        "bound_factor": 100,
        "bound_floor_tokens": 10_000_000,
        "kv_tokens": 100_000_000,  # nor a lack of KV space
        "prefill_tokens_per_s": 10,
    }
    async with fleet(policy="ring", pool=pool, **PARKED) as running:
        async with _parked(running, 64) as looks:
            works = _works(looks[-1])
            assert max(account.inflight(looks[-1]).values()) >= 63
            assert max(works) > max(FLOOR_TOKENS, FACTOR * sum(works) / ENDPOINTS)
        await account.settled(running)


@pytest.mark.heavy
@pytest.mark.timeout(300)
async def test_3000_streams_at_once_are_all_served_and_all_steered(fleet):
    """Beyond every default of 1,024; with one request in four a stream of the longest kind."""
    options = {"speed": 0.05, "message_timeout_s": 120, "replicas": ENDPOINTS}
    options["pool"] = {"health": {"interval_s": 6, "timeout_s": 60}}  # this process is all replicas: slow
    async with fleet(policy="cost", **options) as running, client.session(timeout_s=300) as http:
        url = f"{running.url}/v1/chat/completions"

        async def one(number):
            body = client.chat_body(f"user {number} " * 20, max_tokens=1000, stream=number % 4 == 0)
            async with http.post(url, data=body) as answer:
                return answer.status, await answer.read()

        tasks = [asyncio.ensure_future(one(number)) for number in range(3000)]
        try:
            await client.until(lambda: _held(running, 3000), "3,000 open", timeout_s=200)
            state = await running.state()
            assert account.inflight(state) == account.really_inflight(running)  # each where it was told
            assert await running.metric("kvring_choices_total") == 3000
            assert await running.metric("kvring_streams_open") == 3000
            stats = await running.envoy.stats("rq_active_overflow|rq_pending_overflow|failure_mode_allowed")
            assert set(stats.values()) == {0}
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await account.settled(running)


async def _held(running, count):
    return sum(account.really_inflight(running).values()) == count
