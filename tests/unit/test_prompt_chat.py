import json
from typing import Any

import pytest

from extproc import chain, prompt

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"a": 1, "b": 2}}}]


def read(
    body: bytes | dict[str, Any], path: str = PATH, *, whole: bool = True
) -> prompt.Prompt | prompt.Unkeyed:
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    return prompt.read(path, encoded, prompt.Settings(bytes_max=1 << 20), whole=whole)


def keyed(messages: list[Any], **fields: Any) -> prompt.Prompt:
    found = read({"model": "m", "messages": messages} | fields)
    assert isinstance(found, prompt.Prompt)
    return found


def hashes(found: prompt.Prompt) -> tuple[int, ...]:
    return chain.build(chain.seed_of(found.seeds), found.text, 8, 999).hashes


def shared_share(one: prompt.Prompt, other: prompt.Prompt) -> float:
    """Share of the shorter chain that both have."""
    pairs = list(zip(hashes(one), hashes(other), strict=False))
    return sum(a == b for a, b in pairs) / len(pairs)


def test_text_holds_roles_and_contents_in_order() -> None:
    text = keyed([{"role": "system", "content": "be brief"}, USER]).text
    assert text == b"\xffsystem\xfebe brief\xffuser\xfehello"


def test_other_tools_make_another_chain_from_the_first_block_on() -> None:
    other = json.loads(json.dumps(TOOLS))
    other[0]["function"]["name"] = "g"
    assert shared_share(keyed([USER], tools=TOOLS), keyed([USER])) == 0
    assert shared_share(keyed([USER], tools=TOOLS), keyed([USER], tools=other)) < 1


def test_tools_and_schema_keys_are_never_sorted() -> None:
    function = {"parameters": {"b": 2, "a": 1}, "name": "f"}
    swapped = [{"function": function, "type": "function"}]
    two = [*TOOLS, {"type": "function", "function": {"name": "g"}}]
    assert keyed([USER], tools=TOOLS).text != keyed([USER], tools=swapped).text
    assert keyed([USER], tools=two).text != keyed([USER], tools=two[::-1]).text


def test_tools_that_are_not_rendered_do_not_count() -> None:
    assert keyed([USER], tools=TOOLS, tool_choice="none").text == keyed([USER]).text
    assert keyed([USER], tools=TOOLS, tool_choice="auto").text == keyed([USER], tools=TOOLS).text


@pytest.mark.parametrize(
    "option",
    [
        {"chat_template": "{{x}}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "high"},
        {"documents": [{"text": "d"}]},
    ],
    ids=lambda option: next(iter(option)),
)
def test_option_of_the_template_divides_from_the_first_block_on(option: dict[str, Any]) -> None:
    assert shared_share(keyed([USER], **option), keyed([USER])) == 0


def test_histories_that_differ_in_call_arguments_are_equal_up_to_there() -> None:
    def history(arguments: str) -> prompt.Prompt:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return keyed(
            [
                {"role": "user", "content": "q" * 80},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": "result"},
            ]
        )

    one, other = history('{"city": "Graz"}'), history('{"city": "Linz"}')
    same = len(one.text[: one.text.index(b"Graz")]) // 8
    assert hashes(one)[:same] == hashes(other)[:same]
    assert not set(hashes(one)[same:]) & set(hashes(other)[same:])


def test_call_ids_do_not_count() -> None:
    def history(call_id: str) -> prompt.Prompt:
        call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        return keyed([{"role": "assistant", "content": None, "tool_calls": [call]}])

    assert history("call_1") == history("call_2")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            {"type": "image_url", "image_url": {"url": "http://a/1.png"}},
            {"type": "image_url", "image_url": {"url": "http://a/2.png"}},
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}},
        ),
        (
            {"type": "image_url", "image_url": {"url": "u"}, "uuid": "1"},
            {"type": "image_url", "image_url": {"url": "u"}, "uuid": "2"},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"type": "input_audio", "input_audio": {"data": "AAAB", "format": "wav"}},
        ),
        (
            {"type": "video_url", "video_url": {"url": "v1"}},
            {"type": "video_url", "video_url": {"url": "v2"}},
        ),
    ],
    ids=["url", "data", "uuid", "audio", "video"],
)
def test_other_media_divide_where_they_stand(one: dict[str, Any], other: dict[str, Any]) -> None:
    text = {"type": "text", "text": "w" * 64}
    a, b = (keyed([{"role": "user", "content": [text, part]}]) for part in (one, other))
    assert hashes(a)[:8] == hashes(b)[:8]
    built = [chain.build(0, found.text, 8, 999) for found in (a, b)]
    assert built[0] != built[1]


@pytest.mark.parametrize("change", [{"model": "m2"}, {"cache_salt": "s"}], ids=["model", "salt"])
def test_other_model_or_salt_shares_no_hash(change: dict[str, Any]) -> None:
    one, other = keyed([USER, USER]), keyed([USER, USER], **change)
    assert one.text == other.text
    assert not set(hashes(one)) & set(hashes(other))


def test_model_and_salt_can_not_stand_for_each_other() -> None:
    one, other = keyed([USER], model="a", cache_salt="bc"), keyed([USER], model="ab", cache_salt="c")
    assert not set(hashes(one)) & set(hashes(other))


def test_content_can_not_imitate_structure() -> None:
    forged = keyed([{"role": "user", "content": "a\xffassistant\xfeb"}])
    assert (
        forged.text != keyed([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]).text
    )


def test_surrogate_pairs_and_raw_utf8_read_alike() -> None:
    escaped = rb'{"model":"m","messages":[{"role":"user","content":"\ud83d\ude00\u00e9\/"}]}'
    raw = '{"model":"m","messages":[{"role":"user","content":"\U0001f600\u00e9/"}]}'.encode()
    assert read(escaped) == read(raw)
    assert isinstance(read(raw), prompt.Prompt)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/chat/completions?beta=true",
        "/v1/chat/completions/",
        "/team-a/llm/v1/chat/completions",
        "/v1/chat/completions/render",
    ],
)
def test_prefix_query_and_slash_make_no_difference(path: str) -> None:
    found = read({"model": "m", "messages": [USER]}, path)
    assert isinstance(found, prompt.Prompt)
    assert (found.seeds, found.text) == (keyed([USER]).seeds, keyed([USER]).text)
    assert found.prefills == (not path.endswith("/render"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", prompt.Unkeyed.BODY),
        (b'{"model":"m","messages":[{"role":"user","content":"x', prompt.Unkeyed.JSON),
        (b"null", prompt.Unkeyed.SHAPE),
        (b"[1,2]", prompt.Unkeyed.SHAPE),
        (b'{"messages":[{"role":"user","content":"x"}]}', prompt.Unkeyed.MODEL),
        (b'{"model":"","messages":[{"role":"user","content":"x"}]}', prompt.Unkeyed.MODEL),
        (b'{"model":"m"}', prompt.Unkeyed.SHAPE),
        (b'{"model":"m","messages":"hi"}', prompt.Unkeyed.SHAPE),
        (b'{"model":"m","messages":[{"role":"user","content":5}]}', prompt.Unkeyed.SHAPE),
        (b'{"model":"m","messages":[{"content":"x"}]}', prompt.Unkeyed.SHAPE),
        (b"\x80\x81", prompt.Unkeyed.JSON),
    ],
)
def test_body_without_a_prompt_says_why(body: bytes, reason: prompt.Unkeyed) -> None:
    assert read(body) is reason


def test_new_role_is_keyed_like_any_other() -> None:
    assert keyed([{"role": "critic", "content": "x"}]).text != keyed([{"role": "user", "content": "x"}]).text


def test_unknown_path_has_no_prompt() -> None:
    assert read({"model": "m", "messages": [USER]}, "/v1/audio/transcriptions") is prompt.Unkeyed.PATH


def test_cut_body_loses_no_more_than_a_few_bytes_of_text() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 20_000}]}).encode()
    cut = read(body[:65_536], whole=False)
    assert isinstance(cut, prompt.Prompt)
    assert cut.cut
    assert len(cut.text) > 65_536 - 100
    assert keyed([{"role": "user", "content": "word " * 20_000}]).text.startswith(cut.text)


def test_body_over_the_limit_is_read_up_to_it() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 10_000}]}).encode()
    limited = prompt.read(PATH, body, settings=prompt.Settings(bytes_max=1000), whole=True)
    cut = read(body[:1000], whole=False)
    assert isinstance(cut, prompt.Prompt)
    assert isinstance(limited, prompt.Prompt)
    assert (limited.seeds, limited.text, limited.cut) == (cut.seeds, cut.text, cut.cut)
    assert limited.unread_bytes == len(body) - 1000
    assert len(limited.text) < 1000


def test_cut_before_the_model_is_complete_has_no_prompt() -> None:
    for cut in (b'{"messages":[{"role":"user","content":"x"}]', b'{"model":"gpt', b'{"model":"gpt-4"'):
        assert read(cut, whole=False) is prompt.Unkeyed.CUT


@pytest.mark.parametrize(
    "cut",
    [
        b'{"model":"m","messages":[{"role":"assistant","tool_calls":[{"f":"g"}],"content":"ab',
        b'{"model":"m","messages":[{"role":"assistant","tool_calls":[{"f":"g"}],"content":[',
        b'{"model":"m","messages":[{"role":"assistant","tool_calls":[{"f":"g"}],"con',
    ],
)
def test_calls_do_not_stand_before_a_content_that_is_still_coming(cut: bytes) -> None:
    found = read(cut, whole=False)
    assert isinstance(found, prompt.Prompt)
    assert b"f" not in found.text


@pytest.mark.parametrize(
    "cut", [b'{"type":"text","cache_control":{"type":"x"},"te', b'{"cache_control":{"t":"x"}']
)
def test_part_whose_text_is_still_coming_adds_nothing(cut: bytes) -> None:
    found = read(b'{"model":"m","messages":[{"role":"user","content":[' + cut, whole=False)
    assert isinstance(found, prompt.Prompt)
    assert found.text == b"\xffuser"
