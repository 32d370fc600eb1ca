"""Laws of prompts for every API: cut at any byte, over any budget, in any order of keys, without spans."""

import json
import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import prompt
from extproc.prompt import volatile
from tests import prompts
from tests.property import chat_bodies
from tests.property.chat_bodies import JSON, TEXT, shuffled

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
CACHE = {"cache_control": st.just({"type": "ephemeral"})}
TEXTS = st.lists(
    shuffled(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}, optional=CACHE)), max_size=3
)


def part(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return shuffled(st.fixed_dictionaries({"type": st.just(kind), **fields}, optional=CACHE))


OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
BLOCK = st.one_of(
    part("text", text=TEXT),
    part("thinking", thinking=TEXT, signature=TEXT),
    part("tool_use", id=TEXT, name=TEXT, input=OBJECT),
    part("tool_result", tool_use_id=TEXT, content=TEXT | TEXTS),
    part("image", source=OBJECT),
    part("new_kind", text=TEXT, more=JSON),
    shuffled(st.fixed_dictionaries({"text": TEXT}, optional={"image_url": TEXT})),
)
ROLE = st.sampled_from(["user", "assistant"])
SPOKEN = st.fixed_dictionaries({"role": ROLE, "content": TEXT | st.lists(BLOCK, max_size=3)})
TALK = st.lists(shuffled(SPOKEN), min_size=1, max_size=3)
ITEM = st.one_of(
    shuffled(st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": TEXT | TEXTS})),
    part("message", role=st.just("assistant"), content=TEXTS, id=TEXT),
    part("function_call", call_id=TEXT, name=TEXT, arguments=TEXT, id=TEXT),
    part("function_call_output", call_id=TEXT, output=TEXT),
    part("reasoning", id=TEXT, summary=st.lists(OBJECT, max_size=2)),
)


def in_order(*groups: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies whose groups of optional fields come one after the other, each in any order; the model first."""
    return st.tuples(*(shuffled(st.fixed_dictionaries({}, optional=group)) for group in groups)).map(
        lambda drawn: {"model": "m"} | {key: value for group in drawn for key, value in group.items()}
    )


NOISE = {"temperature": st.floats(0, 2), "stream": st.booleans(), "metadata": OBJECT}
TOOLS = st.lists(OBJECT, max_size=2)
# In the order in which they are rendered; what can follow only where its group has not begun.
RENDERED: list[tuple[str, st.SearchStrategy[dict[str, Any]]]] = [
    (
        MESSAGES,
        st.builds(
            dict.__or__,
            in_order(
                {**NOISE, "cache_salt": TEXT, "tool_choice": st.just({"type": "none"}) | OBJECT},
                {"chat_template_kwargs": OBJECT},
                {"output_config": st.fixed_dictionaries({}, optional={"effort": TEXT, "format": OBJECT})},
                {"tools": TOOLS},
                {"system": TEXT | TEXTS},
            ),
            st.builds(lambda talk: {"messages": talk}, TALK),
        ),
    ),
    (
        RESPONSES,
        st.builds(
            dict.__or__,
            in_order(
                {**NOISE, "cache_salt": TEXT, "tool_choice": st.sampled_from(["none", "auto"])},
                {"reasoning": OBJECT},
                {"prompt": OBJECT},
                {"tools": TOOLS},
                {"instructions": TEXT},
            ),
            st.builds(lambda given: {"input": given}, TEXT | st.lists(ITEM, min_size=1, max_size=3)),
        ),
    ),
    (
        "/rerank",
        st.builds(
            dict.__or__,
            in_order({**NOISE, "cache_salt": TEXT}, {"query": TEXT}),
            st.builds(lambda given: {"documents": given}, st.lists(TEXT | OBJECT, max_size=3)),
        ),
    ),
    (
        "/v1/embeddings",
        st.builds(
            dict.__or__,
            in_order({**NOISE, "cache_salt": TEXT}),
            st.builds(lambda given: {"input": given}, TEXT | st.lists(TEXT, min_size=1, max_size=3)),
        ),
    ),
]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(RENDERED), st.sampled_from([{}, {"top_p": 0.5, "n": 1}]))
def test_cut_anywhere_is_unkeyed_or_a_start(
    data: st.DataObject, api: tuple[str, Any], more: dict[str, Any]
) -> None:
    path, strategy = api
    fields = data.draw(strategy) | more
    body = data.draw(chat_bodies.encoded(fields))
    whole = prompts.read(body, path)
    if isinstance(whole, prompt.Unkeyed):
        return
    for length in range(len(body)):
        assert prompts.is_start(prompts.read(body[:length], path, whole=False), whole), body[:length]


BIG = st.integers(1, 60).map(lambda n: " ".join(f"word{k}" for k in range(40 * n)))
DECOY = st.sampled_from(["model", "tools", "system", "tool_choice", "x"])
DECOYS = st.dictionaries(
    DECOY, st.sampled_from(["m2", [], {"model": "m3", "a": 1, "tools": [1]}]), max_size=3
)


def conversation(path: str) -> st.SearchStrategy[dict[str, Any]]:
    """Long ones, with nested keys that are named like the top level's."""
    use = st.builds(lambda a: {"type": "tool_use", "name": "f", "input": {"z": 1} | a}, DECOYS)
    spoken = st.builds(
        lambda text, used: [{"type": "text", "text": text}, *used], BIG, st.lists(use, max_size=12)
    )
    messages = st.lists(
        st.builds(lambda said: {"role": "user", "content": said}, spoken), min_size=1, max_size=3
    )
    long = "input" if path == RESPONSES else "messages"
    tool = st.builds(lambda a: {"name": "f", "parameters": {"type": "object", **a}}, DECOYS)
    late = {
        "tools": st.lists(tool, max_size=3),
        "metadata": DECOYS,
        "stream": st.booleans(),
        "cache_salt": st.just("s"),
        "chat_template_kwargs": DECOYS,
    }
    if path == MESSAGES:
        late["system"] = BIG.map(lambda text: text[:3000])
    if path == RESPONSES:
        late["instructions"] = BIG.map(lambda text: text[:3000])
    return st.builds(
        lambda talk, more: {long: talk, "model": "m"} | more,
        messages,
        st.fixed_dictionaries({}, optional=late),
    )


@settings(max_examples=50, deadline=None)
@given(st.data(), st.sampled_from([prompts.CHAT, MESSAGES, RESPONSES]), st.integers(200, 12_000))
def test_over_the_budget_in_any_order_is_unkeyed_or_a_start_of_what_a_huge_budget_reads(
    data: st.DataObject, path: str, budget: int
) -> None:
    fields = data.draw(conversation(path))
    order = data.draw(st.permutations(list(fields)) | st.just(list(fields)))
    body = data.draw(chat_bodies.encoded({key: fields[key] for key in order}))
    whole = prompts.keyed(body, path)
    found = prompts.read(body, path, bytes_max=budget)
    assert prompts.is_start(found, whole)
    assert isinstance(found, prompt.Unkeyed) or len(found.text) <= 2 * (budget + prompt.TAIL_BYTES_MAX)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([prompts.CHAT, MESSAGES, RESPONSES]), st.integers(300, 3000))
def test_over_the_budget_in_sdk_order_has_a_key_in_spite_of_nested_keys_of_the_same_name(
    data: st.DataObject, path: str, budget: int
) -> None:
    fields = data.draw(conversation(path))
    body = json.dumps(fields).encode()
    assert isinstance(prompts.read(body, path, bytes_max=budget), prompt.Prompt)


# ---- volatile spans ----

LETTERS = st.text("abx", max_size=40) | st.text("ab", max_size=20)
SPANS = st.lists(
    st.builds(
        volatile.Span,
        st.text("abx", min_size=1, max_size=3) | st.sampled_from(["aa", "aba", "abab", "xax"]),
        st.text("abx", max_size=2),
        st.integers(1, 8),
    ),
    max_size=3,
)


def _slowly(text: str, span: volatile.Span) -> str:
    """The definition of a span, read letter by letter."""
    kept, at = "", 0
    while at < len(text):
        if not text.startswith(span.start, at):
            kept, at = kept + text[at], at + 1
            continue
        inner = at + len(span.start)
        ends = [len(text)] if not span.end else range(inner, len(text) - len(span.end) + 1)
        end = next((e for e in ends if not span.end or text.startswith(span.end, e)), None)
        if end is None or end - inner > span.chars_max:
            kept, at = kept + span.start, inner
        else:
            at = end + len(span.end)
    return kept


@settings(max_examples=200, deadline=None)
@given(LETTERS, SPANS)
def test_spans_are_left_out_as_defined(text: str, spans: list[volatile.Span]) -> None:
    slowly = text
    for span in spans:
        slowly = _slowly(slowly, span)
    assert volatile.without(text, spans, cut=False) == slowly


@settings(max_examples=200, deadline=None)
@given(LETTERS, SPANS)
def test_text_cut_anywhere_leaves_a_start(text: str, spans: list[volatile.Span]) -> None:
    whole = volatile.without(text, spans, cut=False)
    for length in range(len(text) + 1):
        assert whole.startswith(volatile.without(text[:length], spans, cut=True)), text[:length]


def test_time_does_not_grow_with_the_reach_of_a_span() -> None:
    """Many starts without an end in reach: the worst text for a span of 64 Ki characters."""
    text = "<id>" * 50_000 + "x" * 200_000 + "</id>"

    def least_s(chars_max: int) -> float:
        spans = [volatile.Span("<id>", "</id>", chars_max)]
        times = []
        for _ in range(5):
            start = time.perf_counter()
            volatile.without(text, spans, cut=False)
            times.append(time.perf_counter() - start)
        return min(times)

    assert least_s(65_536) < 10 * least_s(8)
