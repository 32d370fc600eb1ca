"""The text of an endpoints file: what is read and what is refused, with a reason that names the place."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc import pool
from extproc.endpoints import file
from extproc.endpoints.source import MEMBERS_MAX


def test_yaml_and_json_give_the_same_members_in_order_of_name():
    document = {
        "endpoints": [
            {"name": "b", "address": "10.0.0.2:8000", "weight": 3, "ready": False, "models": ["m", "a"]},
            {"name": "a", "address": "[FD00::1]:8000"},
        ]
    }
    yaml_text = (
        "endpoints:\n"
        '  - {name: b, address: "10.0.0.2:8000", weight: 3, ready: false, models: [m, a]}\n'
        '  - {name: a, address: "[FD00::1]:8000"}\n'
    )
    wanted = (
        pool.Endpoint(pool.EndpointId("a"), "[fd00::1]:8000"),
        pool.Endpoint(pool.EndpointId("b"), "10.0.0.2:8000", 3, ready=False, models=frozenset({"m", "a"})),
    )
    assert file.parse(json.dumps(document).encode()) == wanted
    assert file.parse(json.dumps(document, indent=2).encode()) == wanted
    assert file.parse(yaml_text.encode()) == wanted
    assert (
        file.parse(b'{endpoints: [{name: a, address: "[fd00::1]:8000"}]}') == wanted[:1]
    )  # YAML's own braces


def test_an_empty_list_is_a_good_file_and_an_empty_file_is_not():
    assert file.parse(b"endpoints: []") == ()
    for empty in (b"", b"\n", b"endpoints:", b"{}", b"[]", b"null", b"---\n"):
        with pytest.raises(ValueError):
            file.parse(empty)


def member(**changes):
    return {"name": "a", "address": "10.0.0.1:8000", **changes}


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([member(address="vllm:8000")], r"endpoints\[0\].address"),
        ([member(), member(name="b", address="10.0.0.1")], r"endpoints\[1\].address"),
        ([member(), member(address="10.0.0.2:1")], "the name 'a' is given more than once"),
        ([member(), member(name="b")], "the address '10.0.0.1:8000' is given more than once"),
        ([member(weight=0)], "weight"),
        ([member(weight=101)], "weight"),
        ([member(weight="3")], "weight"),
        ([member(name="")], "name"),
        ([member(name="a\n")], "name"),
        ([member(name="a b")], "name"),
        ([member(name="x" * 254)], "name"),
        ([member(adress="10.0.0.1:8000")], "adress"),
        ([member(ready="yes")], "ready"),
        ([{"name": "a"}], "address"),
        ([None], r"endpoints\[0\]"),
        ("a", "endpoints"),
        ([member(name=f"n{i}", address=f"10.0.{i % 250}.1:{i + 1}") for i in range(MEMBERS_MAX + 1)], "4096"),
    ],
)
def test_a_file_with_one_mistake_is_refused_whole(members, reason):
    with pytest.raises(ValueError, match=reason):
        file.parse(json.dumps({"endpoints": members}).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"endpoints: [",
        b"endpoints: []\nendpoints: []",
        b"a: &a [x]\nendpoints: []",
        b"x: &x {name: a}\nendpoints:\n- <<: *x\n  address: '10.0.0.1:1'",
        b"endpoints: []\nmore: 1",
        b"endpoints: [{name: a, address: '10.0.0.1:1', weight: 0x_}]",
        b"endpoints: [{name: 2001-99-99, address: '10.0.0.1:1'}]",
        b"endpoints: !!python/object/apply:os.system [true]",
        b"? [a]\n: b",
        b"\xff\xfe\x00",
        b"\x00",
        b"endpoints: " + b"[" * 100_000,
        b"- " * 100_000,
        b"{" * 100_000,
        b'{"endpoints": ' + b"[" * 100_000,
        b"*a",
        b"a: *b",
        b"--- 1\n--- 2",
    ],
)
def test_what_is_not_such_a_file_is_a_value_error(text):
    with pytest.raises(ValueError):
        file.parse(text)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_bytes_do_anything_but_members_or_a_value_error(data):
    for text in (data, b"endpoints: " + data, b'{"endpoints": ' + data):
        with contextlib.suppress(ValueError):
            file.parse(text)
