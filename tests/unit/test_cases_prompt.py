"""What is the same prompt and what is another, for every API. The ids P01 .. P19 stand in comments; what
test_prompt_chat, test_prompt_completions and test_chain cover for one API is here for all.
"""

import json
from typing import Any

import pytest

from extproc import prompt
from tests import prompts
from tests.prompts import hashes, keyed, read

CHAT, MESSAGES, RESPONSES = prompts.CHAT, "/v1/messages", "/v1/responses"
LONG = "Walk along the river until the second lock. " * 20


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def fields(path: str, content: Any = LONG, **more: Any) -> dict[str, Any]:
    """A request of one user message to one of the three conversational APIs."""
    long = "input" if path == RESPONSES else "messages"
    return {"model": "m", long: [user(content)], **more}


def same(one: prompt.Prompt, other: prompt.Prompt) -> bool:
    return (one.seeds, one.text) == (other.seeds, other.text)


def shared_blocks(one: prompt.Prompt, other: prompt.Prompt) -> int:
    pairs = zip(hashes(one), hashes(other), strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(hashes(one)), len(hashes(other))))


EVERY = [
    (CHAT, fields(CHAT)),
    (MESSAGES, fields(MESSAGES)),
    (RESPONSES, fields(RESPONSES)),
    ("/v1/messages/count_tokens", fields(MESSAGES)),
    ("/v1/completions", {"model": "m", "prompt": LONG}),
    ("/v1/embeddings", {"model": "m", "input": LONG}),
    ("/v1/embeddings", fields(CHAT)),
    ("/inference/v1/generate", {"model": "m", "token_ids": list(range(200))}),
    ("/tokenize", {"model": "m", "prompt": LONG}),
    ("/tokenize", fields(CHAT)),
    ("/detokenize", {"model": "m", "tokens": list(range(200))}),
    ("/v1/rerank", {"model": "m", "query": LONG, "documents": ["a", "b"]}),
    ("/v1/score", {"model": "m", "text_1": LONG, "text_2": ["a", "b"]}),
    ("/classify", {"model": "m", "input": LONG}),
    ("/pooling", {"model": "m", "input": [LONG, "b"]}),
    ("/pooling", fields(CHAT)),
]
TALKS = [CHAT, MESSAGES, RESPONSES]
every = pytest.mark.parametrize(("path", "body"), EVERY, ids=[f"{p}-{list(b)[1]}" for p, b in EVERY])
talks = pytest.mark.parametrize("path", TALKS)


@every
def test_key_order_white_space_and_sampling_make_no_difference(
    path: str, body: dict[str, Any]
) -> None:  # P01
    noise = {
        "temperature": 0.7,
        "max_tokens": 9,
        "stream": True,
        "seed": 4,
        "metadata": {"a": 1},
        "user": "u",
    }
    other = dict(reversed({**body, **noise}.items()))
    assert same(keyed(body, path), keyed(json.dumps(other, indent=3).encode(), path))


@every
def test_escapes_and_raw_utf8_read_alike(path: str, body: dict[str, Any]) -> None:  # P02
    spoken = json.loads(json.dumps(body).replace("river", "fl\u00fcsschen \U0001f6a3"))
    one = json.dumps(spoken, ensure_ascii=True).encode()
    other = json.dumps(spoken, ensure_ascii=False).encode()
    assert (one == other) == ("river" not in json.dumps(body))
    assert same(keyed(one, path), keyed(other, path))


@talks
def test_string_and_one_text_part_are_one_prompt(path: str) -> None:  # P02
    kind = "input_text" if path == RESPONSES else "text"
    assert same(keyed(fields(path, [{"type": kind, "text": LONG}]), path), keyed(fields(path), path))


def tools(path: str, name: str) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}}
    if path == MESSAGES:
        return [{"name": name, "input_schema": schema}]
    if path == RESPONSES:
        return [{"type": "function", "name": name, "parameters": schema}]
    return [{"type": "function", "function": {"name": name, "parameters": schema}}]


@talks
def test_other_tools_divide_from_where_they_differ_and_none_from_the_start(path: str) -> None:  # P03
    bare, f, g = (
        keyed(fields(path, **more), path)
        for more in ({}, {"tools": tools(path, "f")}, {"tools": tools(path, "g")})
    )
    assert shared_blocks(bare, f) == 0
    assert shared_blocks(f, g) <= 9  # both begin alike, by less than the tool
    assert not set(hashes(f)[9:]) & set(hashes(g)[9:])


@talks
def test_tools_and_schema_keys_are_never_sorted(path: str) -> None:  # P12
    one, two = tools(path, "f"), [*tools(path, "f"), *tools(path, "g")]
    swapped = json.loads(json.dumps(one), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert not same(keyed(fields(path, tools=one), path), keyed(fields(path, tools=swapped), path))
    assert not same(keyed(fields(path, tools=two), path), keyed(fields(path, tools=two[::-1]), path))


@pytest.mark.parametrize(
    ("path", "choice"), [(CHAT, "none"), (RESPONSES, "none"), (MESSAGES, {"type": "none"})]
)
@pytest.mark.parametrize("late", [False, True])
def test_tools_not_to_be_used_are_not_rendered(path: str, choice: Any, *, late: bool) -> None:
    off = fields(path, tools=tools(path, "f"), tool_choice=choice)
    body = dict(reversed(off.items())) if late else off
    assert same(keyed(body, path), keyed(fields(path), path))


# P04: histories that differ in what a tool was called with, or gave back.
CALLED = {
    "chat": (CHAT, lambda said: [user(LONG), {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": said}}]}]),
    "chat, legacy": (CHAT, lambda said: [user(LONG), {"role": "assistant", "content": None,
        "function_call": {"name": "f", "arguments": said}}]),
    "chat, result": (CHAT, lambda said: [user(LONG), {"role": "tool", "tool_call_id": "c", "content": said}]),
    "messages": (MESSAGES, lambda said: [user(LONG), {"role": "assistant", "content": [
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": said}}]}]),
    "messages, result": (MESSAGES, lambda said: [user(LONG), user([
        {"type": "tool_result", "tool_use_id": "t", "content": said}])]),
    "responses": (RESPONSES, lambda said: [user(LONG),
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": said}]),
    "responses, result": (RESPONSES, lambda said: [user(LONG),
        {"type": "function_call_output", "call_id": "c", "output": said}]),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLED)
def test_histories_are_equal_up_to_the_argument_in_which_they_differ(case: str) -> None:  # P04
    path, history = CALLED[case]
    long = "input" if path == RESPONSES else "messages"
    one, other = (
        keyed({"model": "m", long: [*history(f'{{"city": "{city}"}}'), user(LONG)]}, path)
        for city in ("Graz", "Linz")
    )
    differ = one.text.index(b"Graz") // 8
    assert len(LONG) // 8 < differ
    assert shared_blocks(one, other) == differ
    assert not set(hashes(one)[differ:]) & set(hashes(other)[differ:])


@pytest.mark.parametrize("case", [case for case in CALLED if case != "chat, legacy"])
def test_ids_of_calls_are_no_part_of_the_prompt(case: str) -> None:
    path, history = CALLED[case]
    long = "input" if path == RESPONSES else "messages"
    body = json.dumps({"model": "m", long: history("x")})
    renamed = body.replace('"id": "c"', '"id": "d"').replace('_id": "c"', '_id": "d"')
    renamed = renamed.replace('id": "t"', 'id": "u"')
    assert renamed != body
    assert same(keyed(body.encode(), path), keyed(renamed.encode(), path))


PIXELS = "iVBORw0KGgo" * 20
DATA_URL = f"data:image/png;base64,{PIXELS}A"
MEDIA = {
    "chat, data": (CHAT, {"type": "image_url", "image_url": {"url": DATA_URL}}, 'A"'),
    "chat, file": (CHAT, {"type": "file", "file": {"file_id": "file-A"}}, "-A"),
    "chat, audio": (CHAT, {"type": "input_audio", "input_audio": {"data": f"{PIXELS}A"}}, 'A"'),
    "chat, video": (CHAT, {"type": "video_url", "video_url": {"url": "http://x/A.mp4"}}, "/A"),
    "chat, uuid": (CHAT, {"type": "image_url", "image_url": None, "uuid": "A"}, '"A"'),
    "chat, no type": (CHAT, {"image_url": "http://x/A.png", "text": "same"}, "/A"),
    "chat, text and more": (CHAT, {"text": "t", "type": "image_url", "image_url": {"url": "x/A"}}, "/A"),
    "messages, base64": (MESSAGES, {"type": "image", "source": {"data": f"{PIXELS}A"}}, 'A"'),
    "messages, url": (MESSAGES, {"type": "image", "source": {"type": "url", "url": "http://x/A.png"}}, "/A"),
    "messages, document": (MESSAGES, {"type": "document", "source": {"type": "file", "file_id": "A"}}, '"A"'),
    "messages, in a result": (MESSAGES, {"type": "tool_result", "content": [
        {"type": "image", "source": {"data": "A"}}]}, '"A"'),
    "responses, url": (RESPONSES, {"type": "input_image", "image_url": "http://x/A.png"}, "/A"),
    "responses, file": (RESPONSES, {"type": "input_file", "file_id": "file-A"}, "-A"),
}  # fmt: skip


@pytest.mark.parametrize("case", MEDIA)
def test_other_media_divide_where_they_stand(case: str) -> None:  # P05
    path, part, letter = MEDIA[case]
    other = json.loads(json.dumps(part).replace(letter, letter.replace("A", "B")))
    text = {"type": "input_text" if path == RESPONSES else "text", "text": LONG}
    one, two = (keyed({**fields(path, [text, it]), "stream": True}, path) for it in (part, other))
    assert not same(one, two)
    assert shared_blocks(one, two) >= len(LONG) // 8
    long = "input" if path == RESPONSES else "messages"
    one, two = (keyed({"model": "m", long: [user([text, it]), user(LONG)]}, path) for it in (part, other))
    assert not set(hashes(one)[-80:]) & set(hashes(two)[-80:])


def test_base64_is_hashed_as_text_and_never_decoded() -> None:  # P05
    """What decodes to the same bytes is still another text, and what does not decode is as good."""

    def with_data(data: str) -> prompt.Prompt:
        return keyed(
            fields(CHAT, [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}])
        )

    assert b"QUJD" in with_data("QUJD").text
    assert not same(with_data("QQ=="), with_data("QR=="))  # both decode to "A"
    assert b"\\u00e9" not in with_data("=\u00e9=!").text
    assert "=\u00e9=!".encode() in with_data("=\u00e9=!").text


@every
@pytest.mark.parametrize("change", [{"model": "m:lora-7"}, {"cache_salt": "s"}], ids=["model", "salt"])
def test_other_model_adapter_or_salt_shares_no_hash(
    path: str, body: dict[str, Any], change: dict[str, str]
) -> None:  # P06
    one, other = keyed(body, path), keyed({**body, **change}, path)
    assert one.text == other.text
    assert len(hashes(one)) > 50
    assert not set(hashes(one)) & set(hashes(other))


def test_apis_that_render_alike_share_and_others_do_not() -> None:
    def at(path: str, body: dict[str, Any]) -> prompt.Prompt:
        return keyed(body, path)

    chat = keyed(fields(CHAT))
    assert same(at("/tokenize", fields(CHAT)), chat)
    assert same(at("/v1/messages/count_tokens", fields(MESSAGES)), at(MESSAGES, fields(MESSAGES)))
    ids = list(range(50))
    assert same(
        at("/inference/v1/generate", {"model": "m", "token_ids": ids}),
        at("/v1/completions", {"model": "m", "prompt": ids}),
    )
    assert chat.seeds != at(MESSAGES, fields(MESSAGES)).seeds


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/classify", "/pooling"])
def test_several_prompts_are_keyed_by_the_first(path: str) -> None:  # P07
    key = "prompt" if path == "/v1/completions" else "input"
    one, listed, three = (
        keyed({"model": "m", key: value}, path) for value in (LONG, [LONG], [LONG, "b", "c"])
    )
    assert same(one, listed)
    assert same(one, three)
    ids = [*range(60)]
    assert same(keyed({"model": "m", key: ids}, path), keyed({"model": "m", key: [ids, [1]]}, path))


@every
def test_byte_changed_late_keeps_the_hashes_before_it_and_early_keeps_none(
    path: str, body: dict[str, Any]
) -> None:  # P08
    if LONG not in json.dumps(body):
        return  # token ids: in test_prompt_completions

    def changed(at: int) -> prompt.Prompt:
        other = LONG[:at] + "#" + LONG[at + 1 :]
        return keyed(json.dumps(body).replace(LONG, other).encode(), path)

    whole = keyed(body, path)
    assert shared_blocks(whole, changed(0)) <= 1  # roles and marks may fill a block
    late = len(LONG) * 4 // 5
    assert shared_blocks(whole, changed(late)) >= late // 8
    assert not set(hashes(whole)[late // 8 + 3 :]) & set(hashes(changed(late))[late // 8 + 3 :])


@talks
def test_appended_turns_keep_every_hash_and_the_chain_spans_all_messages(path: str) -> None:  # P09
    long = "input" if path == RESPONSES else "messages"
    talk: list[dict[str, Any]] = []
    before: tuple[int, ...] = ()
    for number in range(12):
        talk += [
            user(f"question {number}: {LONG}"),
            {"role": "assistant", "content": f"answer {number}: {LONG}"},
        ]
        now = hashes(keyed({"model": "m", long: talk}, path))
        assert now[: len(before)] == before
        assert len(now) > len(before) + 2 * len(LONG) // 8 - 4
        before = now


BILLING = "x-anthropic-billing-header: cc_version=2.1.{n}; cc_entrypoint=cli; cch={n}f;"


@pytest.mark.parametrize(
    "place",
    [
        lambda line: (MESSAGES, fields(MESSAGES, system=[{"type": "text", "text": line},
                                                         {"type": "text", "text": "You are helpful."}])),
        lambda line: (MESSAGES, fields(MESSAGES, system=f"{line}\nYou are helpful.")),
        lambda line: (CHAT, {"model": "m", "messages": [
            {"role": "system", "content": f"{'Be brief. ' * 15}{line}\nYou are helpful."}, user(LONG)]}),
        lambda line: (RESPONSES, fields(RESPONSES, instructions=f"{line}\nYou are helpful.")),
    ],
    ids=["messages, blocks", "messages, string", "chat, at token 40", "responses"],
)  # fmt: skip
def test_billing_header_that_is_new_each_time_leaves_the_chain_alone(place: Any) -> None:  # P11
    found = []
    for number in (7, 91_000):
        path, body = place(BILLING.replace("{n}", str(number)))
        found.append(keyed(body, path))
    assert same(*found)
    assert b"billing" not in found[0].text
    assert b"You are helpful." in found[0].text


def test_configured_spans_are_left_out_and_text_around_them_is_not() -> None:
    spans = (*prompt.KNOWN, prompt.Span("<now>", "</now>", 40))

    def text(content: str) -> bytes:
        body = json.dumps(fields(CHAT, content)).encode()
        found = prompt.read(CHAT, body, prompt.Settings(spans=spans), whole=True)
        assert isinstance(found, prompt.Prompt)
        return found.text

    assert text("It is <now>12:00</now>, walk.") == text("It is <now>12:01:59.5</now>, walk.")
    assert text("It is <now>12:00</now>, walk.").endswith(b"It is , walk.")
    assert text("It is <now>12:00, walk.") != text("It is <now>12:01, walk.")  # has no end
    assert text(f"<now>{'a' * 40}</now>") != text(f"<now>{'b' * 41}</now>")  # the end is too far away


def test_system_as_string_and_as_blocks_are_one_prompt_wherever_it_stands() -> None:  # P16
    string = fields(MESSAGES, system="Be brief.")
    blocks = fields(
        MESSAGES, system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    )
    assert same(keyed(string, MESSAGES), keyed(blocks, MESSAGES))
    assert same(keyed(dict(reversed(string.items())), MESSAGES), keyed(blocks, MESSAGES))
    assert shared_blocks(keyed(string, MESSAGES), keyed(fields(MESSAGES), MESSAGES)) == 0


def test_thinking_is_no_text_and_its_signature_no_part_of_the_prompt() -> None:  # P16
    def said(part: dict[str, Any]) -> prompt.Prompt:
        return keyed(
            {"model": "m", "messages": [user("hi"), {"role": "assistant", "content": [part]}]}, MESSAGES
        )

    thought = said({"type": "thinking", "thinking": "I see.", "signature": "aa"})
    assert same(thought, said({"type": "thinking", "thinking": "I see.", "signature": "bb"}))
    assert not same(thought, said({"type": "text", "text": "I see."}))
    assert not same(thought, said({"type": "thinking", "thinking": "I hear.", "signature": "aa"}))


@pytest.mark.parametrize(
    ("path", "option"),
    [
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}),
        (CHAT, {"reasoning_effort": "high"}),
        (CHAT, {"documents": [{"text": "d"}]}),
        (CHAT, {"mm_processor_kwargs": {"num_crops": 4}}),
        (MESSAGES, {"chat_template_kwargs": {"enable_thinking": False}}),
        (MESSAGES, {"output_config": {"effort": "low", "format": {"type": "json_schema"}}}),
        (RESPONSES, {"reasoning": {"effort": "low"}}),
        (RESPONSES, {"prompt": {"id": "pmpt_1", "variables": {"a": "b"}}}),
        (RESPONSES, {"instructions": "Be brief."}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_option_that_changes_the_template_divides_from_the_first_block(
    path: str, option: dict[str, Any]
) -> None:
    assert shared_blocks(keyed(fields(path), path), keyed(fields(path, **option), path)) == 0


@pytest.mark.parametrize(
    ("path", "option"),
    [
        (CHAT, {"response_format": {"type": "json_object"}}),
        (CHAT, {"logprobs": True, "n": 2, "stop": ["x"], "store": True, "service_tier": "flex"}),
        (CHAT, {"session_id": "s-1", "request_id": "r-1", "priority": 3}),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 2000}, "metadata": {"user_id": "u"}}),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema"}}, "stop_sequences": ["x"]}),
        (RESPONSES, {"store": False, "include": ["x"], "background": False, "text": {"verbosity": "low"}}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_option_that_is_not_rendered_makes_no_difference(path: str, option: dict[str, Any]) -> None:
    assert same(keyed(fields(path), path), keyed(fields(path, **option), path))


@pytest.mark.parametrize(
    "path",
    ["/", "", "/v1/models", "/v1/audio/transcriptions", "/v1/images/edits", "/v1/chat/completions/batch",
     "/v1/messages/batches", "/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/metrics", "/health",
     "/v1/xcompletions", "/v1/chat/completions/derender", "*"],
)  # fmt: skip
def test_anything_else_is_routed_without_a_chain(path: str) -> None:  # P18
    body = {**fields(CHAT), "prompt": LONG, "input": LONG}
    assert read(body, path) is prompt.Unkeyed.PATH
    assert read(b"--boundary\r\n\r\n\x00\x01", path) is prompt.Unkeyed.PATH


@every
def test_prefix_query_slash_and_render_are_as_the_plain_path(path: str, body: dict[str, Any]) -> None:  # P19
    plain = keyed(body, path)
    bare = path.removeprefix("/v1")
    for other in (
        f"{path}?beta=true", f"{path}/", f"{path}/?a=/b&c=/render", f"/team-a/llm{path}", f"/x/y/z{bare}",
        f"{path}?", f"//{path}",
    ):  # fmt: skip
        assert keyed(body, other) == plain, other
    for other in (f"{path}/render", f"/team{path}/render/?x=1"):
        rendered = keyed(body, other)
        assert same(rendered, plain)
        assert not rendered.prefills


@pytest.mark.parametrize(
    "body",
    [
        {"input": [[user("x")]]}, {"input": [["x"]]}, {"input": ["x"]}, {"input": []}, {"input": {}},
        {"input": 5}, {"input": [None]}, {"input": [{}]}, {"input": None}, {},
    ],
    ids=str,
)  # fmt: skip
def test_responses_input_of_no_known_shape_never_raises(body: dict[str, Any]) -> None:
    found = read({"model": "m", **body}, RESPONSES)
    assert found is prompt.Unkeyed.SHAPE or isinstance(found, prompt.Prompt)


def test_rerank_and_score_are_keyed_by_what_their_pairs_share() -> None:  # P16
    def rerank(*documents: Any, query: str = LONG) -> prompt.Prompt:
        return keyed({"model": "m", "documents": list(documents), "query": query}, "/v2/rerank")

    assert shared_blocks(rerank("a"), rerank("b", {"text": "c"})) >= len(LONG) // 8
    assert shared_blocks(rerank("a"), rerank("a", query="other " * 50)) == 0

    def score(first: Any, second: Any, *names: str) -> prompt.Prompt:
        return keyed({"model": "m", names[0]: first, names[1]: second}, "/score")

    assert same(score(LONG, "b", "text_1", "text_2"), score(LONG, ["b"], "queries", "documents"))


def test_embeddings_of_messages_are_chat() -> None:
    assert same(keyed(fields(CHAT), "/v1/embeddings"), keyed(fields(CHAT)))


def test_marks_in_content_are_not_structure() -> None:
    """Content is UTF-8 in the text, where the marks never occur; a body that has the raw bytes is no JSON."""
    found = keyed(fields(CHAT, "\xff\xfe\xfd"))
    assert found.text == b"\xffuser\xfe" + "\xff\xfe\xfd".encode()
    raw = b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}'
    assert read(raw) is prompt.Unkeyed.JSON
