"""Token counts of answers: every form in which engines report them, cut anywhere, and what is no report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import usage
from extproc.usage import Usage

OPENAI = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}
REPORT = b'"usage": {"a": {"\\\\\\"}": 1}, "prompt_tokens": 9}'
TEXT = 'é "quotes" {braces} \\ 😀 "usage": {"prompt_tokens": 1}'


def sse(*events: object, name: bool = False) -> bytes:
    """Events as an engine streams them, multi-byte text in them."""
    lines = [
        (f"event: {event['type']}\n" if name else "") + f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        for event in events
        if isinstance(event, dict)
    ]
    return "".join(lines).encode() + (b"" if name else b"data: [DONE]\n\n")


ANSWERS = {
    "chat": (
        json.dumps(
            {"choices": [{"message": {"content": TEXT}}], "usage": OPENAI}, ensure_ascii=False
        ).encode(),
        Usage(9, 8, 4),
    ),
    "chat, spaced, usage first": (
        b'{\r\n "usage" : {"prompt_tokens" :9,"completion_tokens": 4 } ,"choices":[]}',
        Usage(9, None, 4),
    ),
    "chat stream": (
        sse({"choices": [{"delta": {"content": TEXT}}], "usage": None}, {"choices": [], "usage": OPENAI}),
        Usage(9, 8, 4),
    ),
    "counts so far": (
        sse(
            {"usage": {"prompt_tokens": 9, "completion_tokens": 1}},
            {"usage": {"prompt_tokens": 9, "completion_tokens": 2}},
        ),
        Usage(9, None, 2),
    ),
    "responses": (
        sse(
            {
                "type": "response.completed",
                "response": {
                    "usage": {
                        "input_tokens": 9,
                        "input_tokens_details": {"cached_tokens": 3},
                        "output_tokens": 4,
                    }
                },
            }
        ),
        Usage(9, 3, 4),
    ),
    "anthropic": (
        (
            b'{"content":[{"type":"tool_use","input":{"usage":"often"}}],"usage":{"input_tokens":2,'
            b'"cache_read_input_tokens":5,"cache_creation_input_tokens":1,"output_tokens":4}}'
        ),
        Usage(8, 5, 4),
    ),
    "anthropic stream": (
        sse(
            {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}},
            {"type": "content_block_delta", "delta": {"text": TEXT}},
            {"type": "message_delta", "usage": {"output_tokens": 4}},
            name=True,
        ),
        Usage(9, None, 4),
    ),
    "embeddings": (b'{"data":[],"usage":{"prompt_tokens":9,"total_tokens":9}}', Usage(9, None, None)),
    "an event of two lines": (
        b'data: {"usage": {"prompt_tokens": 9,\ndata: "completion_tokens": 4}}\n\n',
        Usage(9, None, 4),
    ),
    "null": (b'{"usage":null}', None),
    "text": (b'{"usage":"a lot"}', None),
    "a number": (b'{"usage": 12}', None),
    "a list": (b'{"usage":[{"prompt_tokens":9}]}', None),
    "odd counts": (
        (
            b'{"usage":{"prompt_tokens":"9","completion_tokens":true,"output_tokens":-1,"input_tokens":1e3,'
            b'"prompt_tokens_details":null}}'
        ),
        None,
    ),
    "too large a count": (b'{"usage":{"prompt_tokens":123456789012345678901234567890}}', None),
    "no JSON": (b'"usage": {"prompt_tokens": 9,, }', None),
    "unfinished": (b'{"usage":{"prompt_tokens":9', None),
    "odd, then good": (b'"usage":"x" "usage":{"prompt_tokens":9}', Usage(9)),
    "in a string only": (json.dumps({"content": TEXT}).encode(), None),
    "compressed": (b"\x1f\x8b\x08\x00" + bytes(range(256)), None),
    "nothing": (b"", None),
}


def read(pieces: list[bytes]) -> Usage | None:
    reader = usage.Reader()
    for piece in pieces:
        reader.feed(piece)
    return reader.usage


@pytest.mark.parametrize(("answer", "told"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_read_alike_whole_byte_by_byte_and_cut_in_two_anywhere(
    answer: bytes, told: Usage | None
) -> None:
    assert read([answer]) == told
    assert read([answer[at : at + 1] for at in range(len(answer))]) == told
    for at in range(len(answer)):
        assert read([answer[:at], answer[at:]]) == told


@settings(deadline=None)
@given(
    st.lists(
        st.binary(max_size=60)
        | st.sampled_from([b'"usage":{', b'"usage"', b"\\", b'"', b"{", b"}", b" :", REPORT]),
        max_size=30,
    )
)
def test_whatever_bytes_come_they_are_read_alike_however_cut_and_little_is_kept(pieces: list[bytes]) -> None:
    reader = usage.Reader()
    for piece in pieces:
        reader.feed(piece)
        assert len(reader._kept) <= usage._BYTES_MAX
    whole = b"".join(pieces)
    assert reader.usage == read([whole]) == read([whole[at : at + 1] for at in range(len(whole))])


@pytest.mark.parametrize("begun", [b'"usage"', b'"usage":{', b'"usage":{"', b'"usage":{"\\\\'])
def test_each_byte_of_a_report_is_looked_at_once_however_it_is_cut(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    for name in ("_SOLID", "_MARK"):
        monkeypatch.setattr(usage, name, Counted(getattr(usage, name), looked))
    rest = b" " * 1500 if begun == b'"usage"' else b'a\\\\,{"b\\"' * 150
    read([begun, *(rest[at : at + 1] for at in range(len(rest)))])
    assert len(rest) <= sum(looked) <= 3 * len(begun + rest)


class Counted:
    """A pattern that notes how many bytes it was given to look at."""

    def __init__(self, pattern: re.Pattern[bytes], looked: list[int]) -> None:
        self._pattern, self._looked = pattern, looked

    def search(self, text: bytes, start: int, end: int) -> re.Match[bytes] | None:
        self._looked.append(end - start)
        return self._pattern.search(text, start, end)

    def finditer(self, text: bytes, start: int, end: int) -> Iterator[re.Match[bytes]]:
        self._looked.append(end - start)
        return self._pattern.finditer(text, start, end)


def test_a_report_that_never_ends_is_given_up_and_a_later_one_is_read() -> None:
    endless = b'{"usage":{"x":"' + b"a" * 5000
    assert read([endless, b'"usage":{"prompt_tokens":9}']) == Usage(9)
    reader = usage.Reader()
    for _ in range(1000):
        reader.feed(b'{"usage":{' * 100)
        assert len(reader._kept) <= usage._BYTES_MAX
