import json
from typing import Any

import pytest

from extproc import prompt

PATH = "/v1/completions"


def read(value: Any, *, whole: bool = True) -> prompt.Prompt | prompt.Unkeyed:
    body = value if isinstance(value, bytes) else json.dumps({"model": "m", "prompt": value}).encode()
    return prompt.read(PATH, body, prompt.Settings(bytes_max=1 << 20), whole=whole)


def test_string_and_list_of_one_have_the_same_prompt() -> None:
    assert read("once upon") == read(["once upon"])
    assert isinstance(read("once upon"), prompt.Prompt)


def test_list_of_three_is_keyed_by_its_first() -> None:
    assert read(["once upon", "a", "b"]) == read("once upon")


def test_token_ids_and_list_of_one_list_have_the_same_prompt() -> None:
    assert read([1, 2, 70_000]) == read([[1, 2, 70_000], [4]])
    assert isinstance(read([1]), prompt.Prompt)


def test_token_ids_are_told_apart_by_every_digit() -> None:
    assert read([1, 23]) != read([12, 3])


def test_text_of_the_same_bytes_is_no_token_id() -> None:
    ids, text = read([0x61]), read("a\0\0\0")
    assert isinstance(ids, prompt.Prompt)
    assert isinstance(text, prompt.Prompt)
    assert ids.text != text.text


def test_chat_and_completion_of_one_text_share_nothing() -> None:
    chat = prompt.read(
        "/v1/chat/completions",
        b'{"model":"m","messages":[{"role":"user","content":"x"}]}',
        prompt.Settings(bytes_max=999),
        whole=True,
    )
    text = read("x")
    assert isinstance(chat, prompt.Prompt)
    assert isinstance(text, prompt.Prompt)
    assert chat.seeds != text.seeds


def test_last_number_of_a_cut_list_is_left_out() -> None:
    cut, shorter = read(b'{"model":"m","prompt":[1,2,34', whole=False), read([1, 2])
    assert isinstance(cut, prompt.Prompt)
    assert isinstance(shorter, prompt.Prompt)
    assert cut.text == shorter.text


@pytest.mark.parametrize("value", [None, 5, {}, [], [None], [-1], [2**40], [1.5], [[]], [True, "x"]])
def test_prompt_of_unknown_shape_never_raises(value: Any) -> None:
    assert isinstance(read(value), prompt.Unkeyed | prompt.Prompt)


@pytest.mark.parametrize("value", [None, 5, {}, [], [None], [-1], [2**40], [1.5], [[]]])
def test_prompt_of_unknown_shape_has_no_chain(value: Any) -> None:
    assert read(value) is prompt.Unkeyed.SHAPE
