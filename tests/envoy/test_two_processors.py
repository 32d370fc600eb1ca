"""X03: kvring and another ext_proc server on one route, both in full duplex both ways, in either order.

Bodies between two such filters have been cut, or ended twice, above 6.2 KB (GIE#2115, envoy#41654).
"""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from extproc import bootstrap
from extproc.protocol import (
    Echo,
    Phase,
    Reply,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from tests.envoy import picker, test_duplex
from tests.envoy.test_duplex import DUPLEX

SIZES = [6_200, 6_300, 65_536, 200_001, 1_000_000]
_REPLIES = {
    RequestHeaders: Phase.REQUEST_HEADERS,
    RequestTrailers: Phase.REQUEST_TRAILERS,
    ResponseHeaders: Phase.RESPONSE_HEADERS,
    ResponseTrailers: Phase.RESPONSE_TRAILERS,
}
_ECHOES = {RequestBody: Phase.REQUEST_BODY, ResponseBody: Phase.RESPONSE_BODY}


class Passer(picker.Picker):
    """Lets everything pass. `ends`: how often each body ended; `passed`: its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.ends, self.passed = Counter(), Counter()

    async def _answer(self, event) -> list:
        kind = type(event)
        if kind in _REPLIES:
            self.seen += kind is RequestHeaders
            self.ends[_REPLIES[kind]] += getattr(event, "end_of_stream", True)
            return [Reply(_REPLIES[kind])]
        self.ends[_ECHOES[kind]] += event.end_of_stream
        self.passed[_ECHOES[kind]] += len(event.data)
        return [Echo(_ECHOES[kind], event.data, event.end_of_stream)]


@contextlib.asynccontextmanager
async def two(directory, *, kvring_first):
    """A Rig with a Passer's filter before or behind kvring's, and the Passer."""
    async with picker.picker(Passer()) as passer:
        door = bootstrap.Listener(
            "127.0.0.1:0",
            [bootstrap.Endpoint("a", "127.0.0.1:1")],
            steering=bootstrap.Steering(
                [bootstrap.Sidecar(passer.address, passer.port)],
                body_mode=DUPLEX,
                response_body_mode=DUPLEX,
                cluster_name="passer",
            ),
        )
        pieces = bootstrap.fragments(door)

        def add(built):
            listener = built["static_resources"]["listeners"][0]
            filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
            other = pieces["http_filters"][0]
            other["name"] = "passer"
            other["typed_config"]["stat_prefix"] = "passer"
            filters.insert(1 if kvring_first else 0, other)
            built["static_resources"]["clusters"].append(pieces["clusters"][1])

        async with test_duplex.rig(directory, change=add) as made:
            await test_duplex.client.until(lambda: _known(made.envoy), "the other known to Envoy")
            yield made, passer


async def _known(envoy):
    stats = await envoy.stats("cluster.passer.membership_healthy")
    return stats["cluster.passer.membership_healthy"] == 1


@pytest.mark.parametrize("kvring_first", [True, False], ids=["kvring first", "kvring second"])
async def test_bodies_through_two_duplex_processors_are_whole_and_end_once(tmp_path, kvring_first):
    async with two(tmp_path, kvring_first=kvring_first) as (made, passer):
        sent = 0
        for size in SIZES:
            for chunk_bytes, trailers in ((0, None), (10_000, None), (10_000, {"x-sum": "42"})):
                body = test_duplex._body(size)
                passer.ends.clear()
                passer.passed.clear()
                answer = await made.send(body, chunk_bytes=chunk_bytes, trailers=trailers)
                assert test_duplex._exact(answer, body), (size, chunk_bytes, trailers)
                assert passer.passed == {Phase.REQUEST_BODY: size, Phase.RESPONSE_BODY: size}
                ends = passer.ends
                assert ends[Phase.REQUEST_BODY] + ends[Phase.REQUEST_TRAILERS] == 1, ends
                assert ends[Phase.RESPONSE_BODY] + ends[Phase.RESPONSE_TRAILERS] == 1, ends
                sent += 1
        assert await made.running.metric("kvring_choices_total") == passer.seen == sent
        await made.settled()
