"""Laws over what the OpenAI and Anthropic SDKs really send, byte for byte (tests/data/sdk_bodies)."""

import itertools
import json
from typing import Any

import pytest

from extproc import prompt
from tests import prompts, sdk_bodies
from tests.sdk_bodies import RECORDED, SDKS, Recorded

OPENAI = [sdk for sdk in SDKS if sdk.startswith("openai")]
LONG = {"messages", "input", "prompt"}
RENDERED_FIRST = {"tools", "tool_choice", "system", "instructions", "chat_template_kwargs"}
RENDERED_FIRST |= {"reasoning_effort", "cache_salt", "previous_response_id"}
CONTINUED = "responses_continued"


def keyed(one: Recorded) -> prompt.Prompt:
    return prompts.keyed(one.body, one.path)


def of(name: str) -> list[Recorded]:
    """That request by every SDK version that makes it."""
    return [one for one in RECORDED if one.name == name]


def same(one: prompt.Prompt, other: prompt.Prompt) -> bool:
    return (one.seeds, one.text) == (other.seeds, other.text)


def test_recordings_are_there() -> None:
    assert len(OPENAI) >= 2
    assert len(SDKS) > len(OPENAI)
    assert len(RECORDED) >= 60


def test_order_of_keys_is_what_body_py_says() -> None:
    def order(sdk: str, name: str) -> list[str]:
        known = ["messages", "model", "system", "tools"]
        return [key for key in prompts.fields_of(sdk_bodies.recorded(sdk, name).body) if key in known]

    assert order("openai-1.90.0", "chat_tools") == ["messages", "model", "tools"]
    assert order("openai-3.57.0", "chat_tools") == ["model", "messages", "tools"]
    for sdk in set(SDKS) - set(OPENAI):
        assert order(sdk, "messages_tools") == ["messages", "model", "system", "tools"]


@pytest.mark.parametrize("one", [one for one in RECORDED if one.name != CONTINUED], ids=str)
def test_every_request_has_a_prompt_of_its_api(one: Recorded) -> None:
    found = keyed(one)
    assert found.api == one.name.partition("_")[0]
    assert found.model == "qwen3-32b"
    assert found.text
    assert sum(size for _, size in found.segments) == len(found.text)
    assert found.prefills == (one.name != "messages_count")
    assert not found.cut


@pytest.mark.parametrize("one", of(CONTINUED), ids=str)
def test_continued_answer_names_it_and_has_no_chain(one: Recorded) -> None:
    found = prompts.read(one.body, one.path)
    assert isinstance(found, prompt.Prompt)
    assert found.previous_response == "resp_0123abc"
    assert found.unkeyed is prompt.Unkeyed.PREVIOUS


EQUAL = [
    ("chat_plain", "chat_plain_same", "chat_parts", "chat_structured", "chat_parsed", "chat_cache_key"),
    ("chat_two_turns", "chat_stream"),
    ("completions_string", "completions_list"),
    ("completions_token_ids", "completions_token_lists"),
    ("responses_string", "responses_items"),
    ("embeddings_string", "embeddings_list"),
    ("messages_plain", "messages_system_blocks", "messages_beta", "messages_count", "messages_tools_off"),
    ("messages_two_turns", "messages_stream"),
]


@pytest.mark.parametrize("names", EQUAL, ids=lambda names: names[0])
def test_equal_content_has_one_chain_whatever_the_shape_and_the_sdk(names: tuple[str, ...]) -> None:
    first, *others = [keyed(one) for name in names for one in of(name)]
    assert len(others) >= len(names) - 1
    for other in others:
        assert same(first, other)


@pytest.mark.parametrize("name", sorted({one.name for one in RECORDED}))
def test_every_version_of_an_sdk_means_the_same(name: str) -> None:
    if name == CONTINUED:
        return
    first, *others = [keyed(one) for one in of(name)]
    assert all(same(first, other) for other in others)


def test_different_content_has_different_chains() -> None:
    shapes_of_first = {name for names in EQUAL for name in names[1:]}
    distinct = [
        keyed(of(name)[0]) for name in sorted({one.name for one in RECORDED} - shapes_of_first - {CONTINUED})
    ]
    assert len(distinct) > 20
    for one, other in itertools.combinations(distinct, 2):
        assert not same(one, other)


GROWS = [
    ("chat_plain", "chat_two_turns"),
    ("chat_tools", "chat_tools_used"),
    ("chat_tools_used", "chat_tools_answered"),
    ("responses_items", "responses_turns"),
    ("responses_tools", "responses_tools_used"),
    ("messages_system_blocks", "messages_two_turns"),
    ("messages_tools", "messages_tools_used"),
]


@pytest.mark.parametrize(("shorter", "longer"), GROWS)
def test_appended_turns_keep_every_earlier_hash(shorter: str, longer: str) -> None:
    for one, other in zip(of(shorter), of(longer), strict=True):
        first, second = keyed(one), keyed(other)
        assert prompts.is_start(first, second)
        assert len(first.text) < len(second.text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("chat_plain", "chat_tools"),
        ("chat_plain", "chat_vllm_extras"),
        ("messages_plain", "messages_tools"),
        ("messages_plain", "messages_vllm_extras"),
        ("responses_items", "responses_tools"),
    ],
)
def test_what_is_rendered_first_divides_from_the_first_block(one: str, other: str) -> None:
    first, second = keyed(of(one)[0]), keyed(of(other)[0])
    assert not set(prompts.hashes(first)) & set(prompts.hashes(second))


def test_cache_key_is_read_and_no_part_of_the_prompt() -> None:
    for one in of("chat_cache_key"):
        assert keyed(one).cache_key == "club-1"


def _claims(one: Recorded) -> prompt.Prompt:
    """What a body cut inside its long value may claim: its prompt, but for fields that come behind."""
    fields = prompts.fields_of(one.body)
    keys = list(fields)
    long = next(key for key in keys if key in LONG)
    late = [key for key in keys[keys.index(long) :] if key in RENDERED_FIRST]
    if keys.index("model") > keys.index(long):
        late = []  # a cut there is before the model: nothing is claimed
    return prompts.keyed({key: value for key, value in fields.items() if key not in late}, one.path)


@pytest.mark.parametrize("one", [one for one in RECORDED if one.name != CONTINUED], ids=str)
def test_body_cut_at_any_byte_is_unkeyed_or_a_start(one: Recorded) -> None:
    """Only where the model comes first and tools or system last is the start that of the prompt without
    them: nothing tells that they are still to come."""
    whole, claims = keyed(one), _claims(one)
    keys = list(prompts.fields_of(one.body))
    strict = not {*keys[1:]} & RENDERED_FIRST or keys[0] != "model"
    starts = 0
    for length in range(len(one.body)):
        cut = prompts.read(one.body[:length], one.path, whole=False)
        assert prompts.is_start(cut, whole if strict else claims), one.body[:length]
        starts += isinstance(cut, prompt.Prompt)
    assert starts or keys.index("model") > 0


def _lengthened(body: bytes, size: int) -> dict[str, Any]:
    """The fields, the long value longer by about `size` bytes at its end."""
    fields = prompts.fields_of(body)
    more = " ".join(f"word{n}" for n in range(size // 8))
    long = next(key for key in fields if key in LONG)
    value = fields[long]
    if isinstance(value, str):
        fields[long] = value + more
    elif isinstance(value[-1], dict):
        value.append({"role": "user", "content": more})
    elif isinstance(value[0], int):
        value += range(size // 5)
    else:
        value[0] = value[0] + more if isinstance(value[0], str) else [*value[0], *range(size // 5)]
    return fields


OVER = [
    "chat_tools_answered", "chat_vllm_extras", "chat_stream", "messages_tools_used", "messages_vllm_extras",
    "responses_tools_used", "completions_list", "completions_token_ids", "embeddings_list",
]  # fmt: skip


@pytest.mark.parametrize("one", [one for name in OVER for one in of(name)], ids=str)
def test_body_over_the_budget_is_keyed_by_the_start_of_what_a_huge_budget_reads(one: Recorded) -> None:
    body = json.dumps(_lengthened(one.body, 200_000)).encode()
    whole = prompts.keyed(body, one.path)
    # The first budgets end in the recorded part, the last ones where the end of the body is searched.
    for budget in (
        400,
        700,
        1_000,
        1_500,
        50_000,
        len(body) - 90_000,
        *range(len(body) - 300, len(body), 41),
    ):
        found = prompts.read(body, one.path, bytes_max=budget)
        assert prompts.is_start(found, whole), budget
        if budget >= 1_500:
            assert isinstance(found, prompt.Prompt), (budget, found)
            assert found.unkeyed is None
            assert len(found.text) > budget * 0.5
            assert len(found.text) < 2 * budget + prompt.TAIL_BYTES_MAX
