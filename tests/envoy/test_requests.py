"""What clients send passes unchanged and what replicas answer comes back, in every body mode."""

import asyncio
import gzip
import io
import json

import openai
import pytest
import pytest_asyncio

from extproc.exchange import BodyMode
from tests.envoy import account, client
from tests.envoy import fleet as fleets

MODES = [BodyMode.BUFFERED_PARTIAL, BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED]
MODEL = fleets.MODEL
HELLO = [{"role": "user", "content": "hello " * 300}]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=MODES, ids=lambda mode: mode.name)
async def door(request, tmp_path_factory):
    """A fleet of each body mode. With a timeout that no slow machine reaches: tests here expect steering."""
    directory = tmp_path_factory.mktemp("door")
    async with fleets.fleet(directory, body_mode=request.param) as running:
        running.mode = request.param
        yield running


async def _post(running, body, **headers):
    """(status, headers, body) of a chat request with this body, bytes or an async iterator."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"{running.url}/v1/chat/completions"
    if isinstance(body, bytes):
        body = io.BytesIO(body)
    async with running.http.post(url, data=body, headers={"content-type": "application/json"} | names) as got:
        return got.status, got.headers, await got.read()


# ---- the OpenAI SDK ----


async def test_the_openai_sdk_works_as_without_a_gateway(door):
    async with client.openai_client(door) as ai:
        whole = await ai.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)
        stream = await ai.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
        events = [event async for event in stream]
        assert "".join(e.choices[0].delta.content or "" for e in events if e.choices) == (
            whole.choices[0].message.content
        )
        assert events[-1].usage.completion_tokens == whole.usage.completion_tokens == 5
        assert events[-1].usage.prompt_tokens_details.cached_tokens > 0  # the same endpoint again

        text = await ai.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=7)
        parts = await ai.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=7, stream=True)
        assert "".join([part.choices[0].text async for part in parts]) == text.choices[0].text

        assert [model.id async for model in ai.models.list()] == [MODEL]
        with pytest.raises(openai.NotFoundError, match="`nobody` does not exist"):
            await ai.chat.completions.create(model="nobody", messages=HELLO)


async def test_an_answer_is_streamed_as_it_is_made_and_not_gathered(fleet):
    async with fleet(speed=0.2) as running, client.openai_client(running) as ai:
        stream = await ai.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1000, stream=True)
        for _ in range(3):
            assert (await anext(stream)).choices
        # the other tokens, 0.1 s each, are still to be made
        assert list(account.really_inflight(running).values()).count(1) == 1
        running.pace(500)
        assert len([event async for event in stream]) > 900


# ---- bodies ----


@pytest.mark.parametrize("body_bytes", [100, 32_769, 3 * 2**20], ids=["100 B", "32769 B", "3 MB"])
async def test_a_body_of_any_size_arrives_unchanged_with_its_length(door, body_bytes):
    body = client.padded(body_bytes)
    assert len(body) == body_bytes
    status, headers, _ = await _post(door, body)
    assert status == 200
    assert headers["x-sim-body-sha256"] == client.sha256(body)
    if door.mode is not BodyMode.FULL_DUPLEX_STREAMED:  # where Envoy itself drops it
        assert headers["x-sim-content-length"] == str(body_bytes)
        assert headers["x-sim-transfer-encoding"] == ""


AWKWARD = {
    "floats and big integers": b'{"model":"codellama-13b","temperature":0.10000000000000000001,'
    b'"seed":123456789012345678901234567890,"top_p":1e-0,"messages":[{"content":"hi","role":"user"}],'
    b'"max_tokens":1}',
    "key order, blanks, repeated keys": b' {"max_tokens" : 1,\r\n\t"max_tokens":1, "messages":[ {"role":'
    b'"user" ,"content":"a"} ] , "model":"codellama-13b" } \n',
    "escapes": b'{"model":"codellama-13b","max_tokens":1,"messages":[{"role":"user",'
    b'"content":"\\u00e9\xc3\xa9\xf0\x9f\x98\x80\\ud83d\\ude00\\/\\u0000"}]}',
}  # fmt: skip


@pytest.mark.parametrize("body", AWKWARD.values(), ids=AWKWARD)
async def test_a_body_is_not_written_anew(door, body):
    status, headers, _ = await _post(door, body)
    assert (status, headers["x-sim-body-sha256"]) == (200, client.sha256(body))


BROKEN = {
    "cut": b'{"model":"codellama-13b","messages":[{"role":"user","content":"hel',
    "null": b"null",
    "list": b"[1,2]",
    "not JSON": b"\x00\xff\xfe garbage",
    "blank": b" ",
    "messages as text": b'{"model":"codellama-13b","messages":"hi"}',
    "content as number": b'{"model":"codellama-13b","messages":[{"role":"user","content":5}]}',
    "deep": b'{"messages":' + b"[" * 20_000,
    "lone surrogate": b'{"model":"codellama-13b","messages":[{"role":"user","content":"\\ud800"}]',
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
async def test_a_bad_body_reaches_a_replica_and_its_own_error_the_client(door, body):
    faults = await door.metric("kvring_no_opinion_total", reason="fault")
    status, headers, answer = await _post(door, body)
    assert status == 400
    assert "error" in json.loads(answer)
    assert headers["x-replica"].startswith("replica-")
    assert headers["x-sim-body-sha256"] == client.sha256(body)
    assert await door.metric("kvring_no_opinion_total", reason="fault") == faults


async def test_an_encoded_body_passes_as_it_is(door):
    body = gzip.compress(client.chat_body("hello"))
    _, headers, _ = await _post(door, body, content_encoding="gzip")
    assert headers["x-sim-body-sha256"] == client.sha256(body)


async def test_an_empty_body_a_get_and_an_unknown_path_reach_a_replica(door):
    unkeyed = await door.metric("kvring_unkeyed_total")
    assert (await _post(door, b""))[0] == 400
    for method, path, status in [
        ("GET", "/v1/models", 200),
        ("HEAD", "/v1/models", 200),
        ("DELETE", "/v1/models", 405),
        ("GET", "/no/such/path?x=%00%ff", 404),
        ("POST", "/v1/audio/transcriptions", 404),
    ]:
        async with door.http.request(method, door.url + path) as answer:
            assert (answer.status, answer.headers["x-replica"][:8]) == (status, "replica-")
    assert await door.metric("kvring_unkeyed_total") == unkeyed + 6


async def test_a_body_that_comes_byte_by_byte_arrives_whole_and_is_keyed(door):
    prompt = "byte by byte " * 400
    home = (await door.chat(prompt)).served_by
    body = client.chat_body(prompt)
    keyed_before = await door.metric("kvring_choices_total") - await door.metric("kvring_unkeyed_total")
    async with client.raw(door) as raw:
        await raw.head(transfer_encoding="chunked", connection="close")
        for index in range(2048):
            await raw.chunk(body[index : index + 1])
        await raw.chunk(body[2048:])
        await raw.chunk(b"")
        status, headers, _ = await raw.answer()
    assert (status, headers["x-sim-body-sha256"]) == (200, client.sha256(body))
    if door.mode is not BodyMode.FULL_DUPLEX_STREAMED:  # which decides after decision_timeout_s, if need be
        assert headers["x-kvring-endpoint"] == home
    keyed = await door.metric("kvring_choices_total") - await door.metric("kvring_unkeyed_total")
    assert keyed == keyed_before + 1


async def test_a_slow_upload_is_no_timeout(door):
    body = client.chat_body("slow " * 500)

    async def slow():
        yield body[:700]
        await asyncio.sleep(1)
        yield body[700:]

    status, headers, _ = await _post(door, slow())
    assert (status, headers["x-sim-body-sha256"]) == (200, client.sha256(body))


async def test_20_concurrent_bodies_are_not_mixed_up(door):
    bodies = [client.padded(3000 + 20_011 * number, seed=number) for number in range(20)]
    got = await asyncio.gather(*[_post(door, body) for body in bodies])
    assert [headers["x-sim-body-sha256"] for _, headers, _ in got] == [client.sha256(body) for body in bodies]
    assert {status for status, _, _ in got} == {200}


async def test_a_body_over_kvrings_own_limit_is_keyed_by_its_start_and_arrives_whole(door):
    """kvring reads prompt_bytes_max, 2 MiB; Envoy shows it up to 8 MiB, in duplex all."""
    body = client.padded(6 * 2**20)
    status, headers, _ = await _post(door, body)
    assert (status, headers["x-sim-body-sha256"]) == (200, client.sha256(body))
    await account.settled(door)
