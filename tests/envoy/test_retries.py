"""What Envoy retries when the chosen endpoint fails, with kvring's choice in force."""

import asyncio
import io

import aiohttp
import pytest

from extproc.exchange import BodyMode
from tests.envoy import account, client, troublemaker

MODES = [BodyMode.BUFFERED_PARTIAL, BodyMode.BUFFERED]  # in full duplex nothing is retried


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("kind", ["503", "reset"])
async def test_a_failing_home_costs_no_request_and_the_body_is_sent_again_unchanged(fleet, mode, kind):
    async with troublemaker.troublemaker() as trouble:
        trouble.kinds = [kind]
        options = {"others": {"trouble": trouble.address}}
        async with fleet(replicas=2, policy="ring", body_mode=mode, **options) as running:
            its_own = []  # prompts whose home it is
            for number in range(24):
                prompt = f"user {number} has this to say: " * 40
                calls = trouble.calls[kind]
                await _served(running, client.chat_body(prompt, stream=number % 2 == 0))
                if trouble.calls[kind] > calls:
                    its_own.append(prompt)
            assert len(its_own) >= 3
            # a field known to kvring at the end: it tells that no tools came in what is not read
            large = client.chat_body(its_own[0], user="x" * 3 * 2**20, tool_choice="auto")
            await _served(running, large)
            assert trouble.calls[kind] == len(its_own) + 1
            assert len(set(trouble.bodies)) == len(its_own) + 1
            assert await account.retries(running) == trouble.calls[kind]
            await account.settled(running)


async def _served(running, body):
    """Fails unless a replica serves this body, the very same."""
    url = f"{running.url}/v1/chat/completions"
    async with running.http.post(url, data=io.BytesIO(body)) as answer:
        await answer.read()
        assert answer.status == 200
        assert answer.headers["x-sim-body-sha256"] == client.sha256(body)
        assert answer.headers["x-replica"].startswith("replica-")


@pytest.mark.parametrize("status", [400, 404, 429])
async def test_an_answer_that_another_replica_would_give_too_is_not_retried(shared_fleet, status):
    before = await account.retries(shared_fleet)
    assert (await shared_fleet.chat("x", headers={"x-sim-fault": str(status)})).status == status
    assert await account.retries(shared_fleet) == before


async def test_an_answer_that_is_cut_off_is_not_sent_twice(fleet):
    async with troublemaker.troublemaker() as trouble:
        trouble.kinds = ["cut"]
        options = {"others": {"trouble": trouble.address}}
        async with fleet(replicas=1, policy="round_robin", **options) as running:
            asked = [running.chat(f"user {number}", stream=True) for number in range(8)]
            answers = await asyncio.gather(*asked, return_exceptions=True)  # Envoy tells of a cut after 1 s
            cut = [isinstance(each, aiohttp.ClientPayloadError) for each in answers].count(True)
            whole = [each.body.endswith(b"data: [DONE]\n\n") for each in answers if hasattr(each, "body")]
            assert whole == [True] * 4
            assert cut == trouble.calls["cut"] == 4
            assert len(trouble.bodies) == 4
            await account.settled(running)
