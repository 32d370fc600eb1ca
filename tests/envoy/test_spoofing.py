"""A client can't steer: nothing in its request reaches kvring's place, whether kvring is there or not."""

from collections import Counter

import pytest

from extproc import bootstrap
from extproc.exchange import BodyMode
from tests.envoy import account, client, troublemaker

DESTINATION = bootstrap.DESTINATION
MODES = [BodyMode.BUFFERED_PARTIAL, BodyMode.FULL_DUPLEX_STREAMED]
PROMPT = "a prompt with a home of its own " * 60


def _spoofs(target):
    """Header lists by which a client might try to name `target`."""
    return [
        [(DESTINATION, target)],
        [(DESTINATION.title(), target)],
        [(DESTINATION, "nonsense"), (DESTINATION, target)],
        [(f"{DESTINATION}-served", target), (DESTINATION, target)],
        [(f"{DESTINATION}-subset", target)],
        [(DESTINATION, f" {target} , {target}")],
        [("x-envoy-original-dst-host", target), (DESTINATION, target)],
    ]


async def _send(running, headers, *, method="POST", fault=""):
    headers = [*headers, ("x-sim-fault", fault)] if fault else headers
    body = client.chat_body(PROMPT) if method == "POST" else None
    path = "/v1/chat/completions" if method == "POST" else "/v1/models"
    async with running.http.request(method, running.url + path, data=body, headers=headers) as answer:
        await answer.read()
        return answer


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
async def test_a_spoofed_destination_is_never_honoured_nor_passed_on(fleet, mode):
    async with fleet(replicas=4, body_mode=mode, policy="ring") as running:
        await running.chat(PROMPT)
        home = (await running.chat(PROMPT)).served_by
        target = next(address for address in running.addresses if address != home)
        served = Counter()
        for headers in _spoofs(target):
            answer = await _send(running, headers)
            assert (answer.status, answer.headers["x-kvring-endpoint"]) == (200, home)
            # unlike our own pick, which Envoy passes in metadata only, a client's header would be seen here
            assert answer.headers["x-sim-destination"] == ""

            # without a prompt nobody has a home: requests spread, wherever the client points
            got = [await _send(running, headers, method="GET") for _ in range(4)]
            assert {each.status for each in got} == {200}
            assert {each.headers["x-sim-destination"] for each in got} == {""}
            served.update(each.headers["x-kvring-endpoint"] for each in got)

            failed = await _send(running, headers, fault="503")
            assert (failed.status, failed.headers["x-sim-destination"]) == (503, "")
        assert len(served) == 4
        assert max(served.values()) < sum(served.values()) / 2

        await running.kill_kvring()
        if (
            mode is BodyMode.FULL_DUPLEX_STREAMED
        ):  # which fails, rather than opens, until a health check fails
            await client.until(lambda: account.bypassed(running), "kvring known to be down")
        down = Counter()
        for headers in _spoofs(target) * 3:
            for method in ("POST", "GET"):
                answer = await _send(running, headers, method=method)
                assert (answer.status, answer.headers["x-sim-destination"]) == (200, "")
                down[answer.headers["x-kvring-endpoint"]] += 1
            failed = await _send(running, headers, fault="503")
            assert (failed.status, failed.headers["x-sim-destination"]) == (503, "")
        assert len(down) == 4  # balanced by Envoy
        assert max(down.values()) < sum(down.values()) * 0.6


async def test_a_destination_smuggled_in_a_trailer_or_by_connection_does_not_steer(fleet):
    async with fleet(replicas=4, policy="ring") as running:
        await running.chat(PROMPT)
        home = (await running.chat(PROMPT)).served_by
        target = next(address for address in running.addresses if address != home)
        body = client.chat_body(PROMPT)
        async with client.raw(running) as raw:
            await raw.head(transfer_encoding="chunked", trailer=DESTINATION, connection="close")
            await raw.chunk(body)
            await raw.send(f"0\r\n{DESTINATION}: {target}\r\n\r\n".encode())
            status, headers, _ = await raw.answer()
        assert (status, headers["x-kvring-endpoint"], headers["x-sim-destination"]) == (200, home, "")
        async with client.raw(running) as raw:
            named = {DESTINATION.replace("-", "_"): target}  # sent with "-"
            await raw.head(content_length=len(body), connection=f"close, {DESTINATION}", **named)
            await raw.send(body)
            status, headers, _ = await raw.answer()
        # Envoy may refuse a header named as hop by hop; if it serves, then from the home
        assert status == 400 or (headers["x-kvring-endpoint"], headers["x-sim-destination"]) == (home, "")


async def test_an_endpoint_outside_the_cluster_cannot_be_reached(fleet):
    async with troublemaker.troublemaker() as outside, fleet(replicas=2) as running:
        for headers in _spoofs(outside.address) * 2:
            assert (await _send(running, headers)).status == 200
            assert (await _send(running, headers, method="GET")).status == 200
        await running.kill_kvring()
        for headers in _spoofs(outside.address) * 2:
            assert (await _send(running, headers)).status == 200
        assert outside.calls.total() == 0


async def test_the_door_of_a_fleet_without_the_scrub_would_show_the_header(shared_fleet):
    """So "x-sim-destination is empty" means something: straight to a replica, the header is there."""
    url = f"http://{shared_fleet.addresses[0]}/v1/models"
    async with shared_fleet.http.get(url, headers={DESTINATION: "1.2.3.4:5"}) as answer:
        assert answer.headers["x-sim-destination"] == "1.2.3.4:5"
