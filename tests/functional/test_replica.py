"""The simulated replica as its clients see it: the OpenAI SDK, a scraper, raw HTTP, a process to start."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import io
import json
import signal
import socket
import sys
import time

import aiohttp
import anthropic
import openai
import pytest
from prometheus_client import parser

from extproc.sim import performance, replica
from tests import shared_data

A100 = performance.PRESETS["codellama-13b-a100-40"]
FAST = replica.Settings(speed=50.0)
PARKED = replica.Settings(speed=0.001)  # no step ends, however slow a busy machine is
LONG = "A system prompt that every request of this test repeats. " * 60  # 855 tokens


@contextlib.asynccontextmanager
async def serving(settings: replica.Settings = FAST, **limits):
    """A replica and an HTTP client of it."""
    async with (
        replica.Replica(dataclasses.replace(A100, **limits), settings) as server,
        aiohttp.ClientSession(f"http://{server.address}") as http,
    ):
        yield server, http


@contextlib.asynccontextmanager
async def sdk(settings: replica.Settings = FAST, **limits):
    """A replica and an OpenAI client of it."""
    async with (
        replica.Replica(dataclasses.replace(A100, **limits), settings) as server,
        openai.AsyncOpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0) as client,
    ):
        yield server, client


async def until(condition, timeout_s: float = 60.0) -> None:
    """Returns once `condition()` holds; fails after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "condition never held"
        await asyncio.sleep(0.005)


def messages(text: str = "hello", system: str = LONG) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


async def test_a_chat_answer_has_the_sdks_shape_and_counts_its_tokens():
    async with sdk() as (_, client):
        answer = await client.chat.completions.create(
            model="codellama-13b", messages=messages(), max_tokens=7
        )
    (choice,) = answer.choices
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "codellama-13b")
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    assert len(choice.message.content) == 7 * 4
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7
    assert answer.usage.prompt_tokens > len(LONG) // 4
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_a_repeated_prefix_is_reported_as_cached_in_full_blocks():
    async with sdk() as (server, client):
        usages = [
            (await client.chat.completions.create(model="codellama-13b", messages=messages(text))).usage
            for text in ("first", "second")
        ]
        cached = usages[1].prompt_tokens_details.cached_tokens
        assert usages[0].prompt_tokens_details.cached_tokens == 0
        assert cached % 16 == 0
        assert len(LONG) // 4 - 16 < cached < usages[1].prompt_tokens
        assert server.engine.tally.prefix_hits == cached


async def test_a_conversation_finds_its_generated_answer_in_the_cache():
    async with sdk() as (_, client):
        turns = messages("first question")
        answer = await client.chat.completions.create(model="codellama-13b", messages=turns, max_tokens=64)
        turns += [
            {"role": "assistant", "content": answer.choices[0].message.content},
            {"role": "user", "content": "second question"},
        ]
        usage = (await client.chat.completions.create(model="codellama-13b", messages=turns)).usage
    known = answer.usage.total_tokens - 1
    assert usage.prompt_tokens_details.cached_tokens == known // 16 * 16


async def test_adapters_and_salts_share_no_cache():
    settings = dataclasses.replace(FAST, adapters=("sql",))
    async with sdk(settings) as (_, client):
        cached = []
        for model, salt in (
            ("codellama-13b", None),
            ("sql", None),
            ("codellama-13b", "tenant-a"),
            ("sql", None),
        ):
            answer = await client.chat.completions.create(
                model=model, messages=messages(), extra_body={"cache_salt": salt} if salt else None
            )
            assert answer.model == model
            cached.append(answer.usage.prompt_tokens_details.cached_tokens > 0)
    assert cached == [False, False, False, True]


async def test_a_chat_stream_has_a_role_a_chunk_per_token_and_usage_last():
    async with sdk() as (_, client):
        stream = await client.chat.completions.create(
            model="codellama-13b",
            messages=messages(),
            max_completion_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        whole = await client.chat.completions.create(
            model="codellama-13b", messages=messages(), max_completion_tokens=20
        )
    first, *tokens, usage = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert len(tokens) == 20
    assert [token.choices[0].finish_reason for token in tokens] == [None] * 19 + ["length"]
    text = "".join(token.choices[0].delta.content for token in tokens)
    assert text == whole.choices[0].message.content
    assert usage.choices == []
    assert usage.usage.completion_tokens == 20
    assert {chunk.id for chunk in chunks} == {first.id}


async def test_a_stream_sends_usage_only_when_asked():
    async with sdk() as (_, client):
        stream = await client.chat.completions.create(
            model="codellama-13b", messages=messages(), max_tokens=3, stream=True
        )
        assert [chunk.usage async for chunk in stream] == [None] * 4


@pytest.mark.parametrize(
    ("prompt", "prompt_tokens", "count"),
    [
        ("a text of 21 letters!", 6, 1),
        (["one prompt..", "another one."], 6, 2),
        ([101, 102, 103], 3, 1),
        ([[1, 2, 3], [4, 5]], 5, 2),
    ],
)
async def test_completions_take_text_lists_and_token_ids(prompt, prompt_tokens, count):
    async with sdk() as (_, client):
        answer = await client.completions.create(model="codellama-13b", prompt=prompt, n=2, max_tokens=5)
    assert [choice.index for choice in answer.choices] == list(range(2 * count))
    assert {len(choice.text) for choice in answer.choices} == {20}
    assert answer.usage.prompt_tokens == 2 * prompt_tokens
    assert answer.usage.completion_tokens == 2 * count * 5
    assert answer.id.startswith("cmpl-")


async def test_a_completion_stream_yields_text_and_the_default_of_16_tokens():
    async with sdk() as (_, client):
        stream = await client.completions.create(model="codellama-13b", prompt="abcd", stream=True)
        chunks = [chunk async for chunk in stream]
    assert len(chunks) == 16
    assert all(len(chunk.choices[0].text) == 4 for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


@contextlib.asynccontextmanager
async def anthropic_sdk(settings: replica.Settings = FAST, **limits):
    """A replica and an Anthropic client of it."""
    async with (
        replica.Replica(dataclasses.replace(A100, **limits), settings) as server,
        anthropic.AsyncAnthropic(
            base_url=f"http://{server.address}", api_key="none", max_retries=0
        ) as client,
    ):
        yield server, client


def anthropic_body(*turns: str, **fields):
    """A body whose turns alternate, beginning with the user's."""
    roles = ("user", "assistant")
    return {
        "model": "codellama-13b",
        "max_tokens": 12,
        "system": [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": roles[index % 2], "content": text} for index, text in enumerate(turns)],
        **fields,
    }


async def test_the_anthropic_sdk_gets_answers_and_the_split_of_cached_tokens():
    async with anthropic_sdk() as (_, client):
        body = anthropic_body("one")
        count = await client.messages.count_tokens(**{k: v for k, v in body.items() if k != "max_tokens"})
        cold, warm = [await client.messages.create(**body) for _ in range(2)]
    assert len(cold.content[0].text) == 12 * 4
    assert cold.content[0].text == warm.content[0].text
    assert (cold.stop_reason, cold.role, cold.usage.output_tokens) == ("max_tokens", "assistant", 12)
    assert (cold.usage.input_tokens, cold.usage.cache_read_input_tokens) == (count.input_tokens, 0)
    assert warm.usage.cache_read_input_tokens == (count.input_tokens - 1) // 16 * 16
    assert warm.usage.input_tokens == count.input_tokens - warm.usage.cache_read_input_tokens


async def test_an_anthropic_stream_begins_with_the_total_and_ends_with_the_split():
    async with anthropic_sdk() as (_, client):
        whole = await client.messages.create(**anthropic_body("one"))
        events = [event async for event in await client.messages.create(**anthropic_body("one"), stream=True)]
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 12,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert "".join(event.delta.text for event in events[2:14]) == whole.content[0].text
    usage = events[-2].usage
    assert events[0].message.usage.input_tokens == whole.usage.input_tokens
    assert usage.input_tokens + usage.cache_read_input_tokens == whole.usage.input_tokens
    assert usage.cache_read_input_tokens > 800


async def test_an_anthropic_prompt_and_the_chat_prompt_it_means_share_the_cache():
    tools = [{"name": "look", "description": "looks", "input_schema": {"type": "object"}}]
    turns = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "where?", "cache_control": {"type": "ephemeral"}}],
        },
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "there " * 40}]},
    ]
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc"}
    function = {"name": "look", "description": "looks", "parameters": {"type": "object"}}
    chat = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": "where?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
            ],
        },
        {"role": "tool", "tool_call_id": "x", "content": "there " * 40},
    ]
    async with serving() as (_, http):
        body = anthropic_body(tools=tools, messages=turns)
        body["system"] = [billing, *body["system"]]
        async with http.post("/v1/messages", json=body) as response:
            total = (await response.json())["usage"]["input_tokens"]
        body = {"messages": chat, "tools": [{"type": "function", "function": function}]}
        async with http.post("/v1/chat/completions", json=body) as response:
            usage = (await response.json())["usage"]
    assert usage["prompt_tokens"] == total
    assert usage["prompt_tokens_details"]["cached_tokens"] == (total - 1) // 16 * 16


async def test_anthropic_errors_have_anthropics_shape():
    async with anthropic_sdk(PARKED, queued_requests_max=1) as (server, client):
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            await client.messages.create(**anthropic_body("one", model="other"))
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(**anthropic_body())
        waiting = [asyncio.create_task(client.messages.create(**anthropic_body("a"))) for _ in range(2)]
        await until(lambda: server.engine.waiting == 1)
        with pytest.raises(anthropic.InternalServerError) as plain:
            await client.messages.create(**anthropic_body("one"))
        assert plain.value.status_code == 503
        with pytest.raises(anthropic.APIStatusError, match="overloaded"):
            [event async for event in await client.messages.create(**anthropic_body("one"), stream=True)]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_models_lists_the_model_and_its_adapters():
    async with sdk(dataclasses.replace(FAST, adapters=("sql",))) as (_, client):
        models = [model async for model in client.models.list()]
    assert [(model.id, model.parent) for model in models] == [
        ("codellama-13b", None),
        ("sql", "codellama-13b"),
    ]
    assert models[0].max_model_len == 11_200


async def test_tokens_of_tokenize_give_the_same_prompt_to_the_cache():
    async with serving() as (_, http):
        text = "the quick brown fox jumps over it" * 8
        async with http.post("/tokenize", json={"prompt": text}) as response:
            tokens = await response.json()
        assert tokens["count"] == len(tokens["tokens"]) == -(-len(text) // 4)
        cached = []
        for prompt in (text, tokens["tokens"]):
            async with http.post("/v1/completions", json={"prompt": prompt}) as response:
                usage = (await response.json())["usage"]
                cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 64]
        async with http.post("/tokenize", json={"messages": messages()}) as response:
            chat = await response.json()
        async with http.post("/v1/chat/completions", json={"messages": messages()}) as response:
            assert (await response.json())["usage"]["prompt_tokens"] == chat["count"]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("chat/completions", b"{", 400, "Bad Request"),
        ("chat/completions", b"[]", 400, "Bad Request"),
        ("chat/completions", b'{"messages":"\xff"}', 400, "Bad Request"),
        ("chat/completions", b"[" * 100_000, 400, "Bad Request"),
        ("chat/completions", b"{}", 400, "BadRequestError"),
        ("chat/completions", b'{"messages":[]}', 400, "BadRequestError"),
        ("chat/completions", b'{"messages":[{"content":"x"}]}', 400, "BadRequestError"),
        ("chat/completions", b'{"messages":[{"role":"user","content":5}]}', 400, "BadRequestError"),
        (
            "chat/completions",
            b'{"messages":[{"role":"user","content":""}],"max_tokens":0}',
            400,
            "BadRequestError",
        ),
        (
            "chat/completions",
            b'{"messages":[{"role":"user","content":""}],"cache_salt":""}',
            400,
            "BadRequestError",
        ),
        ("completions", b'{"prompt":"x","stream_options":{}}', 400, "BadRequestError"),
        ("completions", b'{"prompt":"x","max_tokens":11200}', 400, "BadRequestError"),
        ("completions", b'{"prompt":""}', 400, "BadRequestError"),
        ("completions", b'{"prompt":[1,-2]}', 400, "BadRequestError"),
        ("completions", b'{"prompt":[1.5]}', 400, "BadRequestError"),
        ("completions", b'{"prompt":"x","n":0}', 400, "BadRequestError"),
        ("tokenize", b"{}", 404, "Not Found"),
        ("completions", b'{"prompt":"x","model":"gpt-nothing"}', 404, "NotFoundError"),
        ("nowhere", b"{}", 404, "Not Found"),
        ("models", b"{}", 405, "Method Not Allowed"),
    ],
)
async def test_errors_have_vllms_status_and_body(path, body, status, kind):
    async with serving() as (server, http):
        async with http.post(f"/v1/{path}", data=body) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"], error["type"]) == (status, status, kind)
            assert set(error) == {"message", "type", "param", "code"}
            assert response.headers["x-replica"] == "replica-0"
        assert server.engine.running == server.engine.waiting == 0


async def test_the_sdk_raises_its_own_errors():
    async with sdk() as (_, client):
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=messages())
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await client.chat.completions.create(model="codellama-13b", messages=messages("x" * 45_000))


async def test_headers_of_a_stream_arrive_long_before_its_first_token():
    slow = replica.Settings(speed=0.01)  # 855 tokens take 7 s, were it not for the haste below
    async with serving(slow) as (server, http):
        body = {"messages": messages(), "stream": True, "max_tokens": 2}
        async with http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert server.engine.tally.generation_tokens == 0
            server.pace(5.0)
            first = await response.content.readany()
            # the role's event and the first token's come as one; on a busy machine with all that follows
            assert first.count(b"data: ") >= 2
            assert b'"role":"assistant"' in first
            assert (first + await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_speed_changes_the_pace_and_not_the_metrics():
    async with sdk(replica.Settings(speed=20.0)) as (server, client):
        begin = time.monotonic()
        await client.chat.completions.create(model="codellama-13b", messages=messages(), max_tokens=150)
        took_s = time.monotonic() - begin
        counts = server.engine.tally
    alone_s = A100.step_s(860, 0) + 149 * A100.step_s(0, 1, 930)
    assert counts.e2e_s.total == pytest.approx(alone_s, rel=0.01)
    assert took_s >= alone_s / 20


async def test_a_change_of_pace_goes_on_from_where_the_engine_is():
    async with sdk(replica.Settings(speed=0.1)) as (server, client):
        asked = client.chat.completions.create(model="codellama-13b", messages=messages(), max_tokens=1000)
        answer = asyncio.ensure_future(asked)
        await until(lambda: server.engine.running == 1)
        for speed in (2.0, 100.0):
            made = server.engine.tally.generation_tokens
            server.pace(speed)
            await until(lambda made=made: server.engine.tally.generation_tokens > made + 5)
        assert (await answer).usage.completion_tokens == 1000
        counts = server.engine.tally
    alone_s = A100.step_s(860, 0) + 999 * A100.step_s(0, 1, 1400)
    assert counts.e2e_s.total == pytest.approx(alone_s, rel=0.05)


async def test_a_client_that_leaves_while_its_answer_is_decoded_frees_its_slot():
    async with serving(replica.Settings(speed=1.0)) as (server, http):
        body = {"messages": messages(), "stream": True, "max_tokens": 2000}
        async with http.post("/v1/chat/completions", json=body) as response:
            await response.content.readany()
            assert server.engine.running == 1
            assert server.engine.kv_usage > 0
            response.close()
        await until(lambda: server.engine.running == 0)
        assert server.engine.kv_usage == 0.0
        assert server.engine.tally.finished == 0
        assert server.engine.tally.aborted == 1
        assert server.engine.tally.generation_tokens < 500


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_during_prefill_frees_its_slot_and_leaves_its_blocks(stream):
    async with serving(replica.Settings(speed=0.5)) as (server, http):
        prompt = "abcd" * 8000  # four chunks, 1.3 s
        body = {"prompt": prompt, "stream": stream, "max_tokens": 50}
        asked = asyncio.create_task(http.post("/v1/completions", json=body))
        await until(lambda: server.engine.tally.steps >= 1)
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await asked).close()
        await until(lambda: server.engine.running == 0)
        assert server.engine.kv_usage == 0.0
        assert server.engine.tally.generation_tokens == 0
        assert server.engine.tally.steps < 4
        server.pace(FAST.speed)
        async with http.post("/v1/completions", json={**body, "stream": False}) as response:
            usage = (await response.json())["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] in (2048, 4096, 6144)


async def test_overload_rejects_plain_requests_with_503_and_streams_inside_http_200():
    async with serving(PARKED, queued_requests_max=1) as (server, http):
        body = {"prompt": "abcd" * 1000, "max_tokens": 100}
        waiting = [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(2)]
        await until(lambda: server.engine.waiting == 1)
        async with http.post("/v1/completions", json=body) as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == 503
            assert "retry-after" not in response.headers
        async with http.post("/v1/completions", json={**body, "stream": True}) as response:
            assert response.status == 200
            event, done, rest = (await response.read()).split(b"\n\n")
        assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == 503
        assert (done, rest) == (b"data: [DONE]", b"")
        async with http.get("/metrics") as response:
            samples = _samples(await response.text())
        rejected = ("vllm:admission_rejections_total", "max_num_queued_reqs")
        assert samples[rejected] == 2
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_several_answers_are_rejected_as_one():
    async with serving(replica.Settings(speed=0.1), queued_requests_max=2) as (server, http):
        body = {"prompt": "abcd" * 1000, "n": 8}
        async with http.post("/v1/completions", json=body) as response:
            assert response.status == 503
        await until(lambda: server.engine.waiting == 0)


def _samples(text: str) -> dict[tuple[str, ...], float]:
    """(name, values of the labels beside engine and model) -> value."""
    return {
        (sample.name, *(v for k, v in sample.labels.items() if k not in ("engine", "model_name"))): (
            sample.value
        )
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_carry_vllms_names_and_agree_with_the_replies():
    async with sdk() as (server, client), aiohttp.ClientSession() as http:
        usages = [
            (await client.chat.completions.create(model="codellama-13b", messages=messages(text))).usage
            for text in ("a", "b", "c")
        ]
        async with http.get(f"http://{server.address}/metrics") as response:
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            text = await response.text()
    samples = _samples(text)
    cached = sum(usage.prompt_tokens_details.cached_tokens for usage in usages)
    prompt = sum(usage.prompt_tokens for usage in usages)
    assert samples["vllm:prefix_cache_hits_total",] == cached > 0
    assert samples["vllm:prefix_cache_queries_total",] == prompt
    assert samples["vllm:prompt_tokens_by_source_total", "local_compute"] == prompt - cached
    assert samples["vllm:generation_tokens_total",] == 300
    assert samples["vllm:request_success_total", "length"] == 3
    assert samples["vllm:num_requests_running",] == samples["vllm:num_requests_waiting",] == 0
    assert samples["vllm:kv_cache_usage_perc",] == 0
    assert samples["vllm:time_to_first_token_seconds_bucket", "+Inf"] == 3
    assert samples["vllm:e2e_request_latency_seconds_count",] == 3
    assert samples["vllm:num_preemptions_total",] == 0
    assert samples["process_start_time_seconds",] == pytest.approx(time.time(), abs=60)
    config = next(line for line in text.splitlines() if line.startswith("vllm:cache_config_info{"))
    for label in ('block_size="16"', 'num_gpu_blocks="700"', 'kv_cache_size_tokens="11200"', 'engine="0"'):
        assert label in config
    bounds = [
        float(bound)
        for name, bound in (key for key in samples if len(key) == 2)
        if name == "vllm:time_to_first_token_seconds_bucket"
    ]
    assert bounds[:9] == [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25]
    assert bounds[-3:] == [640, 2560, float("inf")]


async def test_metrics_are_a_part_of_what_a_real_vllm_exposes():
    dump = shared_data.path("engine/metrics.txt")  # of a real vLLM
    real = {
        family.name: (family.type, {frozenset(sample.labels) for sample in family.samples})
        for family in parser.text_string_to_metric_families(dump.read_text())
    }
    async with serving() as (_, http), http.get("/metrics") as response:
        text = await response.text()
    families = list(parser.text_string_to_metric_families(text))
    assert len(families) > 30
    for family in families:
        kind, labels = real[family.name]
        assert family.type == kind, family.name
        for sample in family.samples:
            if family.name != "vllm:cache_config_info":
                assert frozenset(sample.labels) in labels, family.name
            else:
                assert any(set(sample.labels) <= known for known in labels)


async def test_reset_prefix_cache_forgets():
    async with sdk() as (server, client), aiohttp.ClientSession() as http:
        for _ in range(2):
            answer = await client.chat.completions.create(model="codellama-13b", messages=messages())
            assert answer.usage.prompt_tokens_details.cached_tokens == 0
            async with http.post(f"http://{server.address}/reset_prefix_cache") as response:
                assert await response.json() == {"success": True}


async def test_health_ping_version_and_load_answer():
    async with serving() as (_, http):
        for method, path in (("GET", "health"), ("GET", "ping"), ("POST", "ping")):
            async with http.request(method, f"/{path}") as response:
                assert (response.status, await response.read()) == (200, b"")
        async with http.get("/version") as response:
            assert (await response.json())["version"].startswith("0.")
        async with http.get("/load") as response:
            assert await response.json() == {"server_load": 0}


async def test_faults_and_echoes_are_for_tests_only():
    body = b'{"prompt": "abcd",  "max_tokens": 1}'
    headers = {"x-sim-fault": "503", "x-gateway-destination-endpoint": "10.0.0.1:80"}
    async with serving(dataclasses.replace(FAST, faults_allowed=True)) as (server, http):
        async with http.post("/v1/completions", data=body, headers=headers) as response:
            assert response.status == 503
        assert server.engine.tally.steps == 0
        del headers["x-sim-fault"]
        async with http.post("/v1/completions", data=body, headers=headers) as response:
            assert response.status == 200
            assert response.headers["x-sim-body-sha256"] == hashlib.sha256(body).hexdigest()
            assert response.headers["x-sim-content-length"] == str(len(body))
            assert response.headers["x-sim-transfer-encoding"] == ""
            assert response.headers["x-sim-destination"] == "10.0.0.1:80"
        with pytest.raises(aiohttp.ClientError):
            await http.post("/v1/completions", data=body, headers={"x-sim-fault": "reset"})
    ignored = {"data": body, "headers": {"x-sim-fault": "503"}}
    async with serving() as (_, http), http.post("/v1/completions", **ignored) as response:
        assert response.status == 200
        assert not any(name.startswith("x-sim") for name in response.headers)


async def test_a_chunked_body_of_many_megabytes_arrives_unchanged():
    body = b'{"prompt":"abcd","metadata":{"pad":"' + b"x" * 20_000_000 + b'"}}'

    async def chunks():
        for start in range(0, len(body), 1_000_000):
            yield body[start : start + 1_000_000]

    echoing = dataclasses.replace(FAST, faults_allowed=True)
    async with serving(echoing) as (_, http), http.post("/v1/completions", data=chunks()) as response:
        assert response.status == 200
        assert response.headers["x-sim-body-sha256"] == hashlib.sha256(body).hexdigest()
        assert response.headers["x-sim-transfer-encoding"] == "chunked"


async def test_a_body_beyond_the_limit_is_413():
    body = io.BytesIO(bytes(64 * 2**20 + 1))
    async with serving() as (_, http), http.post("/v1/completions", data=body) as response:
        assert response.status == 413
        assert (await response.json())["error"]["code"] == 413


async def test_a_client_request_id_names_the_answer():
    async with serving() as (_, http):
        for given, kept in (("abc-1", True), ('"}', False)):
            headers = {"x-request-id": given}
            body = {"prompt": "abcd"}
            async with http.post("/v1/completions", json=body, headers=headers) as response:
                assert ((await response.json())["id"] == f"cmpl-{given}") is kept


async def test_stopping_cuts_open_answers_and_frees_the_port_at_once():
    settings = replica.Settings(speed=0.1)
    server = replica.Replica(A100, settings)
    await server.start()
    async with aiohttp.ClientSession(f"http://{server.address}") as http:
        body = {"prompt": "abcd" * 100, "max_tokens": 1000, "stream": True}
        response = await http.post("/v1/completions", json=body)
        async with asyncio.timeout(60):  # the answer would take minutes
            await server.stop()
        with pytest.raises(aiohttp.ClientError):
            await response.read()
        assert server.engine.running == 0


@pytest.mark.parametrize("turns", range(5))
async def test_who_connects_while_it_stops_is_not_left_waiting(turns):
    """A connection that had arrived and had no protocol yet was kept open, and nothing ever read from it."""
    loop, server = asyncio.get_running_loop(), replica.Replica(A100, FAST)
    await server.start()
    host, _, port = server.address.rpartition(":")
    with socket.socket() as client:
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.connect((host, int(port)))
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        async with asyncio.timeout(60):
            with contextlib.suppress(OSError):
                assert await loop.sock_recv(client, 1) == b""


async def test_a_restart_keeps_the_address_and_loses_the_cache():
    server = replica.Replica(A100, FAST)
    seen = []
    for _ in range(2):
        await server.start()
        async with aiohttp.ClientSession(f"http://{server.address}") as http:
            for _ in range(2):
                async with http.post("/v1/chat/completions", json={"messages": messages()}) as response:
                    usage = (await response.json())["usage"]
                    seen.append((server.address, usage["prompt_tokens_details"]["cached_tokens"] > 0))
            async with http.get("/metrics") as response:
                assert _samples(await response.text())["vllm:request_success_total", "length"] == 2
        await server.stop()
    assert [hit for _, hit in seen] == [False, True, False, True]
    assert len({address for address, _ in seen}) == 1


async def test_the_command_serves_several_replicas_until_it_is_told_to_stop():
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "extproc", "sim-replica", "--count", "3", "--name", "gpu", "--speed", "50"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        addresses = json.loads(line.removeprefix(b"ready "))["replicas"]
        assert len(set(addresses)) == 3
        async with aiohttp.ClientSession() as client:
            for index, address in enumerate(addresses):
                async with client.get(f"http://{address}/health") as response:
                    assert response.headers["x-replica"] == f"gpu-{index}"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.communicate(), 60) == (b"", None)
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    "arguments", [("--count", "0"), ("--speed", "nan"), ("--kv-tokens", "3"), ("--port", "65536")]
)
async def test_the_command_refuses_bad_values_with_their_name(arguments):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc", "sim-replica", *arguments), stderr=asyncio.subprocess.PIPE
    )
    _, text = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert arguments[0].strip("-").replace("-", "_") in text.decode().replace("-", "_")
