"""What Envoy retries when the chosen endpoint fails, with kvring's choice in force."""

import io

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
            assert await _retries(running) == trouble.calls[kind]
            await account.settled(running)


async def _retries(running):
    return (await running.envoy.stats(r"cluster\.llm\.upstream_rq_retry$"))["cluster.llm.upstream_rq_retry"]


@pytest.mark.parametrize("status", [400, 404, 429])
async def test_an_answer_that_another_replica_would_give_too_is_not_retried(shared_fleet, status):
    before = await _retries(shared_fleet)
    assert (await shared_fleet.chat("x", headers={"x-sim-fault": str(status)})).status == status
    assert await _retries(shared_fleet) == before


async def test_an_answer_that_is_cut_off_is_not_sent_twice(fleet):
    async with troublemaker.troublemaker() as trouble:
        trouble.kinds = ["cut"]
        options = {"others": {"trouble": trouble.address}, "message_timeout_s": 10}
        async with fleet(replicas=1, policy="round_robin", **options) as running:
            cut = 0
            for number in range(8):
                try:
                    answer = await running.chat(f"user {number}", stream=True)
                    assert answer.body.endswith(b"data: [DONE]\n\n")
                except client.aiohttp.ClientPayloadError:
                    cut += 1
            assert cut == trouble.calls["cut"] == 4
            assert len(trouble.bodies) == 4
            await account.settled(running)
