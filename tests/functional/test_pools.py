"""Several pools in one process: every request lands on an endpoint that serves it."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter

import grpc
import pytest

from extproc import choice, exchange, groups, metrics, pool, protocol, router, server
from tests import ext_proc_client
from tests.full_schema import core, ext_proc
from tests.functional.conftest import PATH

REQUESTS = 10_000
ADDRESS = re.compile(rb"10\.0\.0\.\d+:80")
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/audio/speech")


def member(name: str, number: int, *models: str) -> pool.Endpoint:
    return pool.Endpoint(pool.EndpointId(name), f"10.0.0.{number}:80", models=frozenset(models))


CHAT = [member(f"chat-{n}", n, "llama", *(["legal"] if n % 2 else [])) for n in range(8)]
CODE = [member(f"code-{n}", 100 + n, "coder") for n in range(4)]
SERVES = {endpoint.address: endpoint.models for endpoint in CHAT + CODE}


def pools() -> groups.Groups:
    """Two models; an adapter on half of the first one's endpoints."""
    chat = router.Router(pool.make("chat", CHAT), router.Settings())
    code = router.Router(pool.make("code", CODE), router.Settings(policy="ring", block_bytes=512))
    return groups.Groups([groups.Group(chat), groups.Group(code, groups.Match(models=("coder*",)))])


def body_of(path: str, model: str, rng: random.Random) -> bytes:
    text = f"question {rng.randrange(500)} " * rng.randrange(1, 30)
    fields: dict[str, object] = {"model": model}
    if path.endswith("chat/completions"):
        fields["messages"] = [{"role": "user", "content": text}]
    elif path.endswith("speech"):
        fields["input"] = text
    else:
        fields["prompt" if "completions" in path else "input"] = text
    return json.dumps(fields).encode()


def test_of_10000_requests_each_lands_on_an_endpoint_that_serves_it() -> None:
    made, rng = pools(), random.Random(1)
    landed: Counter[tuple[str, str]] = Counter()
    open_: list[exchange.Exchange] = []
    for number in range(REQUESTS):
        model = rng.choice(["llama", "legal", "coder"])
        path = rng.choice(PATHS)
        mode = rng.choice([protocol.BodyMode.BUFFERED, protocol.BodyMode.FULL_DUPLEX_STREAMED])
        one = exchange.Exchange(made, exchange.Settings())
        now = number / 200
        headers = protocol.RequestHeaders(PATH | {":path": path}, end_of_stream=False, body_mode=mode)
        one.receive(headers, now, rng.random())
        one.receive(protocol.RequestBody(body_of(path, model, rng), end_of_stream=True), now, rng.random())
        assert isinstance(one.result, choice.Choice)
        assert model in (SERVES[one.result.endpoint.address] or ())
        landed[model, str(one.result.endpoint.id)] += 1
        open_.append(one)
        if len(open_) > 60:
            open_.pop(rng.randrange(len(open_))).close()
    for one in open_:
        one.close()
    assert {name for model, name in landed if model == "legal"} == {f"chat-{n}" for n in (1, 3, 5, 7)}
    assert {name for model, name in landed if model == "llama"} == {f"chat-{n}" for n in range(8)}
    assert {name for model, name in landed if model == "coder"} == {f"code-{n}" for n in range(4)}
    assert [chooser.ledger.open_leases for chooser in made.routers] == [0, 0]


@pytest.mark.parametrize("requests", [1000, pytest.param(REQUESTS, marks=pytest.mark.heavy)])
async def test_each_lands_there_when_asked_over_grpc_too(requests: int) -> None:
    """As above, dozens at a time, each held open for a while."""
    made, rng = pools(), random.Random(2)
    counted = metrics.Metrics(made.routers[0], time.monotonic, 0.0)
    settings = server.Settings("127.0.0.1:0", 2**20, 10_000, pick_header=True)
    serving = server.Server(settings, made, exchange.Settings(), counted, time.monotonic, random.random)
    headers = {path: first_message(path) for path in PATHS}
    landed: Counter[tuple[str, str]] = Counter()
    left = iter(range(requests))
    await serving.start()
    try:
        async with ext_proc_client.connect(serving.address) as client:

            async def user() -> None:
                for _ in left:
                    model, path = rng.choice(["llama", "legal", "coder"]), rng.choice(PATHS)
                    stream = client.open()
                    await stream.send_bytes(headers[path])
                    await stream.call.read()
                    body = ext_proc.HttpBody(body=body_of(path, model, rng), end_of_stream=True)
                    await stream.send_bytes(bytes(ext_proc.ProcessingRequest(request_body=body)))
                    address = ADDRESS.findall(await stream.call.read())[
                        0
                    ].decode()  # quicker than to parse all
                    assert model in (SERVES[address] or ())
                    landed[model, address] += 1
                    await asyncio.sleep(rng.random() * 0.02)
                    await stream.half_close()
                    assert await stream.call.read() is grpc.aio.EOF

            async with asyncio.timeout(300), asyncio.TaskGroup() as group:
                for _ in range(48):
                    group.create_task(user())
    finally:
        await serving.stop(0)
    assert landed.total() == requests
    assert {model: len({a for m, a in landed if m == model}) for model in ("llama", "legal", "coder")} == {
        "llama": 8,
        "legal": 4,
        "coder": 4,
    }
    assert [chooser.ledger.open_leases for chooser in made.routers] == [0, 0]


def first_message(path: str) -> bytes:
    config = ext_proc.ProtocolConfiguration(request_body_mode=ext_proc_client.Mode.BUFFERED)
    lines = (PATH | {":path": path}).items()
    values = [core.HeaderValue(key=key, raw_value=value.encode()) for key, value in lines]
    sent = ext_proc.HttpHeaders(headers=core.HeaderMap(headers=values), end_of_stream=False)
    return bytes(ext_proc.ProcessingRequest(request_headers=sent, protocol_config=config))


def test_each_pool_has_its_own_policy_and_block_size() -> None:
    made = pools()
    chat, code = made.routers
    found = {}
    for model in ("llama", "coder"):
        one = exchange.Exchange(made, exchange.Settings())
        headers = protocol.RequestHeaders(PATH, end_of_stream=False, body_mode=protocol.BodyMode.BUFFERED)
        one.receive(headers, 0.0, 0.5)
        text = json.dumps({"model": model, "messages": [{"role": "user", "content": "x" * 4000}]})
        one.receive(protocol.RequestBody(text.encode(), end_of_stream=True), 0.0, 0.5)
        assert isinstance(one.result, choice.Choice)
        found[model] = one.result
        one.close()
    assert (found["llama"].policy, found["llama"].pool) == ("cost", "chat")
    assert (found["coder"].policy, found["coder"].pool) == ("ring", "code")
    assert found["llama"].chain_blocks == 2 * found["coder"].chain_blocks + 1
    assert chat.residency.blocks(found["llama"].endpoint.id) > 0
    assert code.residency.blocks(found["coder"].endpoint.id) > 0


def test_a_request_that_belongs_to_no_pool_has_no_opinion_and_no_lease() -> None:
    only = router.Router(pool.make("code", CODE), router.Settings())
    made = groups.Groups([groups.Group(only, groups.Match(models=("coder",)))])
    one = exchange.Exchange(made, exchange.Settings())
    headers = protocol.RequestHeaders(PATH, end_of_stream=False, body_mode=protocol.BodyMode.BUFFERED)
    one.receive(headers, 0.0, 0.5)
    body = b'{"model": "other", "messages": [{"role": "user", "content": "x"}]}'
    (reply,) = one.receive(protocol.RequestBody(body, end_of_stream=True), 0.0, 0.5)
    assert reply == protocol.Reply(protocol.Phase.REQUEST_BODY, protocol.Steer(""))
    assert one.result == choice.NoEndpoint(0, 0)
    one.close()
    assert only.ledger.open_leases == 0


def test_envoys_cluster_decides_before_the_model() -> None:
    bound = router.Router(pool.make("code", CODE), router.Settings())
    free = router.Router(pool.make("chat", CHAT), router.Settings())
    made = groups.Groups([groups.Group(free), groups.Group(bound, groups.Match(clusters=("llm-code",)))])
    for attributes, expected in (
        ({"xds.cluster_name": "llm-code"}, "code"),
        ({"xds.cluster_name": "llm-chat"}, "chat"),
        ({}, "chat"),
    ):
        one = exchange.Exchange(made, exchange.Settings())
        headers = protocol.RequestHeaders(PATH, end_of_stream=True, attributes=attributes)
        one.receive(headers, 0.0, 0.5)
        assert isinstance(one.result, choice.Choice)
        assert one.result.pool == expected
        one.close()
