"""Two `kvring serve` at a real Valkey: what one learns about who served a request, the other believes too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from tests import ext_proc_client, valkey_server
from tests.ext_proc_client import Mode, kind, steered
from tests.functional.conftest import PATH, FakeEndpoint, Launch, Sidecar, chat, eventually

pytest.importorskip("extproc.share.store", reason="needs the extra valkey")

DUPLEX = Mode.FULL_DUPLEX_STREAMED
BODY = chat("word " * 2000)


async def holders(one: Sidecar) -> set[str]:
    """Endpoints that are thought to hold the prompt."""
    kind_of = {"content-type": "application/json"}
    url = f"http://{one.admin}/api/explain"
    async with aiohttp.ClientSession() as session, session.post(url, data=BODY, headers=kind_of) as answer:
        told = json.loads(await answer.text())["candidates"]
    return {each["endpoint"] for each in told if each["cached_tokens"]}


@pytest.mark.parametrize("by", ["another", "a stranger"])
async def test_what_another_served_is_held_there_by_everybody_s_count_and_not_where_it_was_sent(
    by: str, sidecar: Launch, endpoint: Callable[..., FakeEndpoint], tmp_path: Path
) -> None:
    addresses = {name: (await endpoint().listen()).address for name in ("a", "b", "c")}
    names = {address: name for name, address in addresses.items()}
    async with valkey_server.running(tmp_path) as store:
        first, second = [await sidecar(addresses, store={"url": store.url}) for _ in range(2)]
        async with ext_proc_client.connect(first.grpc) as client:
            stream = client.open(request_body_mode=DUPLEX, response_body_mode=DUPLEX)
            await stream.request_headers(PATH)
            await stream.request_body(BODY)
            chosen = names[str(steered(await stream.receive())).split(",")[0]]
            assert kind(await stream.receive()) == "request_body"

            async def heard() -> bool:
                return await holders(second) == {chosen}

            await eventually(heard)
            served = {"a": "b", "b": "c", "c": "a"}[chosen] if by == "another" else None
            await stream.response_headers(200, served=addresses.get(served or "", "10.9.9.9:1"))
            assert kind(await stream.receive()) == "response_headers"

            async def taken_back() -> bool:
                return await holders(second) == ({served} if served else set())

            assert await holders(first) == ({served} if served else set())
            await eventually(taken_back, 10)
            await stream.half_close()
            await stream.rest()

        async def idle() -> bool:
            return not any([await one.open_leases() for one in (first, second)])

        await eventually(idle)
