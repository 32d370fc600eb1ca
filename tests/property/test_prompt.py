import copy
import json
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from extproc import chain, prompt
from tests.property import chat_bodies

CHAT = "/v1/chat/completions"
MANY = 1 << 30
RENDERED_FIRST = {"tools", "tool_choice", "chat_template_kwargs", "cache_salt"}


def read(body: bytes, *, whole: bool = True, path: str = CHAT) -> prompt.Prompt | prompt.Unkeyed:
    return prompt.read(path, body, settings=prompt.Settings(bytes_max=MANY), whole=whole)


def keyed(body: bytes) -> prompt.Prompt:
    found = read(body)
    assert isinstance(found, prompt.Prompt)
    return found


def chain_of(found: prompt.Prompt) -> chain.Chain:
    return chain.build(chain.seed_of(found.seeds), found.text, 4, MANY)


def is_start(cut: prompt.Prompt, whole: prompt.Prompt) -> bool:
    short, long = chain_of(cut).hashes, chain_of(whole).hashes
    return cut.seeds == whole.seeds and short == long[: len(short)] and whole.text.startswith(cut.text)


@settings(max_examples=30, deadline=None)
@given(st.data(), chat_bodies.fields())
def test_chain_of_a_body_cut_anywhere_is_a_start_of_the_whole_chain(
    data: st.DataObject, fields: dict[str, Any]
) -> None:
    body = data.draw(chat_bodies.encoded(fields))
    whole = keyed(body)
    for length in range(len(body)):
        cut = read(body[:length], whole=False)
        assert isinstance(cut, prompt.Unkeyed) or is_start(cut, whole), body[:length]


@settings(max_examples=25, deadline=None)
@given(st.data(), chat_bodies.fields())
def test_cut_body_with_fields_in_any_order_is_unkeyed_or_a_start(
    data: st.DataObject, fields: dict[str, Any]
) -> None:
    order = data.draw(st.permutations(list(fields)))
    # Nothing can tell that tools are still to come: where they do, a start can't be promised.
    assume(not RENDERED_FIRST & set(order[order.index("messages") :]))
    body = data.draw(chat_bodies.encoded({key: fields[key] for key in order}))
    whole = keyed(body)
    for length in range(len(body)):
        cut = read(body[:length], whole=False)
        assert isinstance(cut, prompt.Unkeyed) or is_start(cut, whole), body[:length]


@settings(max_examples=30, deadline=None)
@given(st.lists(chat_bodies.TEXT, max_size=4).map("x".join), st.sampled_from([[], ["second"]]))
def test_completions_prompt_cut_anywhere_is_a_start(text: str, rest: list[str]) -> None:
    fields = {"model": "m", "prompt": [text, *rest]}
    body = json.dumps(fields).encode()
    whole = read(body, path="/v1/completions")
    assert isinstance(whole, prompt.Prompt)
    for length in range(len(body)):
        cut = read(body[:length], whole=False, path="/v1/completions")
        assert isinstance(cut, prompt.Unkeyed) or is_start(cut, whole), body[:length]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
def test_token_ids_cut_anywhere_are_a_start(ids: list[int]) -> None:
    body = json.dumps({"model": "m", "prompt": ids}).encode()
    whole = read(body, path="/v1/completions")
    assert isinstance(whole, prompt.Prompt)
    for length in range(len(body)):
        cut = read(body[:length], whole=False, path="/v1/completions")
        assert isinstance(cut, prompt.Unkeyed) or is_start(cut, whole), body[:length]


@settings(max_examples=25, deadline=None)
@given(st.data(), chat_bodies.fields(), chat_bodies.SAMPLING)
def test_spelling_key_order_and_sampling_do_not_matter(
    data: st.DataObject, fields: dict[str, Any], other: dict[str, Any]
) -> None:
    one = data.draw(chat_bodies.encoded(fields))
    same = {key: fields[key] for key in data.draw(st.permutations(list(fields)))} | other
    assert keyed(data.draw(chat_bodies.encoded(same))) == keyed(one)


@settings(max_examples=25, deadline=None)
@given(st.data(), chat_bodies.fields())
def test_string_content_equals_one_text_part(data: st.DataObject, fields: dict[str, Any]) -> None:
    parted = copy.deepcopy(fields)
    for message in parted["messages"]:
        if isinstance(message.get("content"), str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    assert keyed(data.draw(chat_bodies.encoded(parted))) == keyed(data.draw(chat_bodies.encoded(fields)))


@settings(max_examples=25, deadline=None)
@given(st.data(), chat_bodies.fields(), chat_bodies.MESSAGE)
def test_appended_message_keeps_every_earlier_hash(
    data: st.DataObject, fields: dict[str, Any], message: dict[str, Any]
) -> None:
    longer = fields | {"messages": [*fields["messages"], message]}
    one = keyed(data.draw(chat_bodies.encoded(fields)))
    other = keyed(data.draw(chat_bodies.encoded(longer)))
    assert is_start(one, other)
    assert len(one.text) < len(other.text)


PLAIN = st.lists(st.tuples(st.sampled_from(["user", "u", "ser"]), st.text("abu\xfe", max_size=3)), min_size=1)


@settings(max_examples=60, deadline=None)
@given(PLAIN, PLAIN)
def test_texts_are_equal_only_where_roles_and_contents_are(
    one: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    texts = []
    for messages in (one, other):
        listed = [{"role": role, "content": content} for role, content in messages]
        texts.append(keyed(json.dumps({"model": "m", "messages": listed}).encode()).text)
    assert (texts[0] == texts[1]) == (one == other)


@settings(deadline=None)
@given(
    body=st.binary(max_size=200),
    whole=st.booleans(),
    path=st.sampled_from([CHAT, "/v1/completions", "/", "", "?", "\udc80//render", "/v1/models"]),
)
def test_any_bytes_are_read_without_an_error(body: bytes, *, whole: bool, path: str) -> None:
    assert isinstance(read(body, whole=whole, path=path), prompt.Prompt | prompt.Unkeyed)


@settings(deadline=None)
@given(st.data(), st.sampled_from([CHAT, "/v1/completions"]))
def test_any_json_in_any_field_is_read_without_an_error(data: st.DataObject, path: str) -> None:
    fields = data.draw(
        st.fixed_dictionaries(
            {"model": st.just("m") | chat_bodies.JSON},
            optional={
                "messages": chat_bodies.JSON
                | st.lists(
                    chat_bodies.JSON
                    | st.fixed_dictionaries(
                        {"role": st.just("user") | chat_bodies.JSON},
                        optional={"content": chat_bodies.JSON, "tool_calls": chat_bodies.JSON},
                    )
                ),
                "prompt": chat_bodies.JSON,
                "tools": chat_bodies.JSON,
                "documents": chat_bodies.JSON,
                "cache_salt": chat_bodies.JSON,
            },
        )
    )
    body = data.draw(chat_bodies.encoded(fields))
    cut = data.draw(st.integers(0, len(body)))
    for part, whole in ((body, True), (body[:cut], False), (body[cut:], True), (body[:cut], True)):
        assert isinstance(read(part, whole=whole, path=path), prompt.Prompt | prompt.Unkeyed)
