"""Records what the OpenAI and Anthropic SDKs really send: python -m tests.record_sdk_bodies

Each call goes to a server on loopback that keeps the request and refuses it. The bodies land byte for byte in
tests/data/sdk_bodies/<sdk>-<version>/, one file each; index.json there tells path and headers. All text is
made up. Older versions stay, as their users do: a directory more after an SDK update shows by its difference
to the last one what changed, and tests/unit/test_sdk_bodies.py says whether it matters. To record a version
that is not installed, put it first on PYTHONPATH (pip install --target DIR openai==1.90.0).
"""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pydantic
from openai.types.chat import ChatCompletionMessage

BODIES = Path(__file__).parent / "data" / "sdk_bodies"
MODEL = "qwen3-32b"
SYSTEM = "You plan walks for a rambling club. Answer in short sentences. " * 12
QUESTION = "Which path leads from the old mill to the lighthouse without crossing the moor?"
ANSWER = "Take the towpath to the second lock, then the hedge lane. It is four miles \u2014 about 90 minutes."
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PARAMETERS = {
    "type": "object",
    "properties": {
        "model": {"type": "string", "description": "kind of map"},
        "place": {"type": "string", "description": 'a name, such as "Old Mill"'},
    },
    "required": ["place"],
}
TOOLS = [
    {"type": "function", "function": {"name": "find_place", "description": "It.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}},
]
FLAT_TOOLS = [
    {"type": "function", "name": "find_place", "description": "Where it is.", "parameters": PARAMETERS}
]
CLAUDE_TOOLS = [
    {"name": "find_place", "description": "Where it is.", "input_schema": PARAMETERS},
    {"name": "tide", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
]


class Walk(pydantic.BaseModel):
    start: str
    miles: float
    stops: list[str]


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def chat_calls(client: openai.OpenAI) -> Iterator[tuple[str, Callable[[], Any]]]:
    def chat(messages: list[Any], **more: Any) -> Callable[[], Any]:
        return lambda: client.chat.completions.create(model=MODEL, messages=messages, **more)

    opening = [turn("system", SYSTEM), turn("user", QUESTION)]
    longer = [*opening, turn("assistant", ANSWER), turn("user", "And at high tide?")]
    # The SDK's own object, handed back as users do.
    called = ChatCompletionMessage.model_validate(
        turn(
            "assistant",
            None,
            tool_calls=[
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "find_place", "arguments": '{"place": "Mill", "model": "x"}'},
                }
            ],
        )
    )  # fmt: skip
    result = turn("tool", '{"lat": 54.1, "lon": -2.3}', tool_call_id="call_1")
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/map.png", "detail": "low"}}
    inline = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    text = {"type": "text", "text": "What does this map show?"}
    yield "chat_plain", chat(opening, temperature=0.2)
    yield "chat_plain_same", chat(opening, max_completion_tokens=64, seed=7, user="u-1", metadata={"a": "b"})
    yield "chat_other_question", chat([opening[0], turn("user", "Where do the terns nest?")])
    yield "chat_two_turns", chat(longer)
    yield "chat_stream", chat(longer, stream=True, stream_options={"include_usage": True})
    yield "chat_parts", chat([opening[0], turn("user", [{"type": "text", "text": QUESTION}])])
    yield "chat_tools", chat(opening, tools=TOOLS, tool_choice="auto", parallel_tool_calls=False)
    yield "chat_tools_used", chat([*opening, called], tools=TOOLS)
    yield "chat_tools_answered", chat([*opening, called, result], tools=TOOLS, stream=True)
    yield "chat_image_url", chat([opening[0], turn("user", [text, picture])])
    yield "chat_image_data", chat([opening[0], turn("user", [text, inline])])
    yield (
        "chat_structured",
        chat(
            opening,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "walk", "schema": Walk.model_json_schema()},
            },
        ),
    )
    parsing = getattr(client.chat.completions, "parse", None) or client.beta.chat.completions.parse
    yield "chat_parsed", lambda: parsing(model=MODEL, messages=opening, response_format=Walk)
    yield (
        "chat_vllm_extras",
        chat(
            opening,
            reasoning_effort="low",
            extra_body={
                "chat_template_kwargs": {"enable_thinking": False},
                "cache_salt": "tenant-7",
                "top_k": 20,
            },
        ),
    )
    yield "chat_cache_key", chat(opening, extra_body={"prompt_cache_key": "club-1"})


def openai_calls(client: openai.OpenAI) -> Iterator[tuple[str, Callable[[], Any]]]:
    def complete(prompt: Any, **more: Any) -> Callable[[], Any]:
        return lambda: client.completions.create(model=MODEL, prompt=prompt, max_tokens=16, **more)

    def respond(given: Any, **more: Any) -> Callable[[], Any]:
        return lambda: client.responses.create(model=MODEL, input=given, **more)

    def embed(given: Any) -> Callable[[], Any]:
        return lambda: client.embeddings.create(model=MODEL, input=given, encoding_format="float")

    yield "completions_string", complete(SYSTEM)
    yield "completions_list", complete([SYSTEM, QUESTION], stream=True)
    yield "completions_token_ids", complete(list(range(100, 400)))
    yield "completions_token_lists", complete([list(range(100, 400)), [7, 8]])
    items = [turn("user", QUESTION), turn("assistant", ANSWER), turn("user", "And at high tide?")]
    call = {"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "tide", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "high at noon"}
    yield "responses_string", respond(QUESTION, instructions=SYSTEM)
    yield "responses_items", respond([items[0]], instructions=SYSTEM, store=False)
    yield "responses_turns", respond(items, instructions=SYSTEM, stream=True)
    yield "responses_tools", respond([items[0]], instructions=SYSTEM, tools=FLAT_TOOLS)
    yield "responses_tools_used", respond([items[0], call, result], instructions=SYSTEM, tools=FLAT_TOOLS)
    yield "responses_continued", respond("And at high tide?", previous_response_id="resp_0123abc")
    yield "responses_image", respond(
        [turn("user", [{"type": "input_text", "text": "What is this?"},
                       {"type": "input_image", "image_url": "https://example.org/map.png"}])]
    )  # fmt: skip
    yield "embeddings_string", embed(QUESTION)
    yield "embeddings_list", embed([QUESTION, SYSTEM])
    yield "embeddings_token_ids", embed([1, 2, 3, 4])


def anthropic_calls(client: anthropic.Anthropic) -> Iterator[tuple[str, Callable[[], Any]]]:
    def say(messages: list[Any], **more: Any) -> Callable[[], Any]:
        return lambda: client.messages.create(model=MODEL, max_tokens=64, messages=messages, **more)

    opening = [turn("user", QUESTION)]
    longer = [*opening, turn("assistant", ANSWER), turn("user", "And at high tide?")]
    blocks = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    use = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "find_place",
        "input": {"place": "Mill", "model": "x"},
    }
    thought = {"type": "thinking", "thinking": "The mill first.", "signature": "c2ln"}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "54.1 north"}],
    }
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    used = [*opening, turn("assistant", [thought, use]), turn("user", [result])]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    yield "messages_plain", say(opening, system=SYSTEM)
    yield "messages_system_blocks", say(opening, system=blocks)
    yield "messages_two_turns", say(longer, system=blocks)
    yield (
        "messages_stream",
        lambda: client.messages.stream(
            model=MODEL, max_tokens=64, messages=longer, system=blocks
        ).__enter__(),
    )
    yield "messages_tools", say(opening, system=SYSTEM, tools=CLAUDE_TOOLS)
    yield "messages_tools_used", say(used, system=SYSTEM, tools=CLAUDE_TOOLS, thinking=thinking)
    yield "messages_tools_off", say(opening, system=SYSTEM, tools=CLAUDE_TOOLS, tool_choice={"type": "none"})
    yield "messages_image", say([turn("user", [{"type": "text", "text": "What is this?"}, image])])
    yield (
        "messages_beta",
        lambda: client.beta.messages.create(
            model=MODEL, max_tokens=64, messages=opening, system=SYSTEM, betas=["context-1m-2025-08-07"]
        ),
    )
    yield "messages_count", lambda: client.messages.count_tokens(model=MODEL, messages=opening, system=SYSTEM)
    yield (
        "messages_vllm_extras",
        say(opening, system=SYSTEM, extra_body={"chat_template_kwargs": {"enable_thinking": False}}),
    )


class _Keeper(http.server.BaseHTTPRequestHandler):
    kept: dict[str, Any]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {
            name.lower(): value
            for name, value in self.headers.items()
            if name.lower() in {"content-type", "content-encoding"}
        }
        type(self).kept = {"path": self.path, "headers": headers, "body": body}
        refusal = b'{"error": {"type": "invalid_request_error", "message": "kept"}}'
        self.send_response(400)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(refusal)))
        self.end_headers()
        self.wfile.write(refusal)

    def log_message(self, *_: Any) -> None:
        pass


def record(sdk: str, calls: Iterator[tuple[str, Callable[[], Any]]]) -> None:
    """Make the calls; write every body, and the index."""
    directory = BODIES / sdk
    directory.mkdir(parents=True, exist_ok=True)
    index = {}
    for name, call in calls:
        with contextlib.suppress(openai.BadRequestError, anthropic.BadRequestError):
            call()
        index[name] = _Keeper.kept
        (directory / f"{name}.json").write_bytes(index[name].pop("body"))
    (directory / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def main() -> None:
    """Record the installed versions of both SDKs."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Keeper)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as one,
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as other,
    ):
        record(f"openai-{openai.__version__}", itertools.chain(chat_calls(one), openai_calls(one)))
        record(f"anthropic-{anthropic.__version__}", anthropic_calls(other))
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()
