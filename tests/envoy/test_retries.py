"""What Envoy retries when the chosen endpoint fails, with kvring's choice in force."""

import asyncio
import io

import aiohttp
import pytest

from extproc.exchange import BodyMode
from tests.envoy import account, client, troublemaker

MODES = [BodyMode.BUFFERED_PARTIAL, BodyMode.FULL_DUPLEX_STREAMED]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("kind", ["503", "reset"])
async def test_a_failing_home_costs_no_request_and_the_body_is_sent_again_unchanged(fleet, mode, kind):
    async with troublemaker.troublemaker() as trouble:
        trouble.kinds = [kind]
        options = {"others": {"trouble": trouble.address}, "message_timeout_s": 10}
        async with fleet(replicas=2, policy="ring", body_mode=mode, **options) as running:
            for number in range(24):
                body = client.chat_body(f"user {number} has this to say: " * 40, stream=number % 2 == 0)
                if number == 5:
                    body = client.padded(3 * 2**20)
                async with running.http.post(
                    f"{running.url}/v1/chat/completions", data=io.BytesIO(body)
                ) as answer:
                    await answer.read()
                    assert answer.status == 200
                    assert answer.headers["x-sim-body-sha256"] == client.sha256(body)
                    assert answer.headers["x-replica"].startswith("replica-")
            assert trouble.calls[kind] >= 3  # it was chosen, and not only once
            assert await account.retries(running) == trouble.calls[kind]
            await account.settled(running)


@pytest.mark.parametrize("status", [400, 404, 429])
async def test_an_answer_that_another_replica_would_give_too_is_not_retried(shared_fleet, status):
    before = await account.retries(shared_fleet)
    assert (await shared_fleet.chat("x", headers={"x-sim-fault": str(status)})).status == status
    assert await account.retries(shared_fleet) == before


async def test_an_answer_that_is_cut_off_is_not_sent_twice(fleet):
    async with troublemaker.troublemaker() as trouble:
        trouble.kinds = ["cut"]
        options = {"others": {"trouble": trouble.address}, "message_timeout_s": 10}
        async with fleet(replicas=1, policy="round_robin", **options) as running:
            asked = [running.chat(f"user {number}", stream=True) for number in range(8)]
            answers = await asyncio.gather(*asked, return_exceptions=True)  # Envoy tells of a cut after 1 s
            cut = [isinstance(each, aiohttp.ClientPayloadError) for each in answers].count(True)
            whole = [each.body.endswith(b"data: [DONE]\n\n") for each in answers if hasattr(each, "body")]
            assert whole == [True] * 4
            assert cut == trouble.calls["cut"] == 4
            assert len(trouble.bodies) == 4
            await account.settled(running)
