"""Strategies for chat bodies: fields in an order, with unicode, escapes, parts, calls and nulls."""

import json
from typing import Any

from hypothesis import strategies as st

TEXT = st.text(max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def shuffled(draw: st.DrawFn, fields: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """One of `fields` with its keys in any order."""
    return dict(draw(st.permutations(list(draw(fields).items()))))


def _part() -> st.SearchStrategy[dict[str, Any]]:
    cache = {"cache_control": st.just({"type": "ephemeral"})}
    return shuffled(
        st.one_of(
            st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}, optional=cache),
            st.fixed_dictionaries(
                {"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": TEXT})},
                optional=cache,
            ),
            st.fixed_dictionaries(
                {"type": st.just("input_audio"), "input_audio": st.fixed_dictionaries({"data": TEXT})}
            ),
        )
    )


def _call() -> st.SearchStrategy[dict[str, Any]]:
    function = shuffled(st.fixed_dictionaries({"name": TEXT, "arguments": TEXT | JSON}))
    return shuffled(st.fixed_dictionaries({"id": TEXT, "type": st.just("function"), "function": function}))


MESSAGE = shuffled(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | TEXT},
        optional={
            "content": st.none() | TEXT | st.lists(_part(), max_size=3),
            "tool_calls": st.lists(_call(), max_size=2),
            "tool_call_id": TEXT,
            "name": TEXT,
        },
    )
)
MESSAGES = st.lists(MESSAGE, min_size=1, max_size=4)

# Rendered before the messages, or a seed.
BEFORE = shuffled(
    st.fixed_dictionaries(
        {},
        optional={
            "tools": st.lists(JSON, max_size=2),
            "tool_choice": st.sampled_from(["auto", "none"]),
            "chat_template_kwargs": st.dictionaries(TEXT, JSON, max_size=2),
            "cache_salt": TEXT,
        },
    )
)

# Never rendered.
SAMPLING = shuffled(
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0, 2),
            "max_tokens": st.integers(1, 9999),
            "stream": st.booleans(),
            "seed": st.integers(),
            "metadata": st.dictionaries(TEXT, TEXT, max_size=2),
            "user": TEXT,
        },
    )
)


def fields() -> st.SearchStrategy[dict[str, Any]]:
    """A body whose rendered fields come in the order of rendering, the model first."""
    return st.builds(
        lambda before, sampling, messages, more: (
            {"model": "m"} | sampling | before | {"messages": messages} | more
        ),
        BEFORE,
        SAMPLING,
        MESSAGES,
        SAMPLING,
    )


@st.composite
def encoded(draw: st.DrawFn, value: Any) -> bytes:
    """`value` as JSON, in one of the ways clients write it."""
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])),
    )
    return text.encode()
