"""Hasher: equal starts get equal hashes, shared starts several, and nothing but counts of traffic is kept."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from extproc import choice, hasher, pool, prompt, reading, router

SYSTEM = "You are the assistant of a railway. " * 60
HEADERS = {":path": "/v1/chat/completions"}


def read(*texts: str, model: str = "m", **fields: object) -> prompt.Prompt:
    messages = [{"role": "user", "content": text} for text in texts]
    body = json.dumps({"model": model, "messages": messages} | fields).encode()
    found = reading.read(HEADERS, body, prompt.Settings(), whole=True).prompt
    assert isinstance(found, prompt.Prompt)
    return found


def words(seed: object, count: int = 400) -> str:
    rng = random.Random(str(seed))
    return " ".join(f"w{rng.randrange(10**6)}" for _ in range(count))


def start(endpoints: int = 8, **settings: object) -> hasher.Hasher:
    return hasher.Hasher("p", endpoints, router.Settings(**settings))  # type: ignore[arg-type]


def test_the_key_is_the_routers_for_equal_traffic() -> None:
    members = [pool.Endpoint(pool.EndpointId(f"e{n}"), f"10.0.0.{n}:80") for n in range(8)]
    of, by = start(), router.Router(pool.make("p", members), router.Settings())
    for number in range(60):
        asked = read(SYSTEM + words(number % 20))
        decided = by.choose(asked, number, 0.5)
        assert isinstance(decided, choice.Decision)
        hashed = of.choose(asked, number)
        told = (hashed.key, hashed.keyed_by, hashed.anchor_block, hashed.chain_blocks)
        made = decided.choice
        assert told == (made.key, made.keyed_by, made.anchor_block, made.chain_blocks)


def test_two_hashers_that_see_the_same_traffic_agree_and_a_conversation_keeps_its_hash() -> None:
    one, other = start(), start()
    seen: dict[int, set[int | None]] = {}
    for turn in range(1, 6):
        for talk in range(20):
            asked = read(SYSTEM, *(words((talk, each)) for each in range(turn)))
            made = one.choose(asked, 0.0)
            assert made == other.choose(asked, 0.0)
            if turn > 1:
                seen.setdefault(talk, set()).add(made.hash)
    assert {len(hashes) for hashes in seen.values()} == {1}
    assert len({hash_ for hashes in seen.values() for hash_ in hashes}) > 8


def test_what_one_model_adapter_or_salt_sends_never_shares_a_hash_with_another() -> None:
    of = start()
    text = words(1)
    hashes = {of.choose(read(text, **more), 0.0).hash for more in ({}, {"model": "n"}, {"cache_salt": "s"})}  # type: ignore[arg-type]
    assert len(hashes) == 3


def hot_hashes(share: float, endpoints: int, questions: int = 600) -> set[int | None]:
    """Hashes of a prefix that has `share` of the traffic, once that is known."""
    of = start(endpoints)
    rng = random.Random(7)
    found = set()
    for number in range(questions):
        hot = rng.random() < share
        made = of.choose(read(SYSTEM + words(number) if hot else words(number)), 0.0)
        if hot and number > questions / 2:
            found.add(made.hash)
    return found


def test_a_shared_prefix_has_fewer_hashes_than_questions_and_one_that_all_share_has_none_of_its_own() -> None:
    assert 2 <= len(hot_hashes(0.2, 16)) <= 2 * 8
    assert len(hot_hashes(1.0, 16)) > 200


def test_one_place_more_moves_only_the_keys_that_go_there() -> None:
    rng = random.Random(1)
    keys = [rng.randrange(2**64) for _ in range(4000)]
    for count in (1, 2, 7, 40):
        before = [hasher._jump(key, count) for key in keys]
        after = [hasher._jump(key, count + 1) for key in keys]
        assert set(before) <= set(range(count))
        moved = [new for old, new in zip(before, after, strict=True) if old != new]
        assert set(moved) == {count}
        assert len(moved) == pytest.approx(len(keys) / (count + 1), rel=0.25)
        assert max(Counter(before).values()) < 1.5 * len(keys) / count


def test_a_request_without_a_prompt_or_with_only_a_stored_answer_has_no_hash() -> None:
    of = start()
    made = of.choose(prompt.Unkeyed.BODY, 0.0)
    assert (made.hash, made.text, made.unkeyed) == (None, "", prompt.Unkeyed.BODY)
    body = json.dumps({"model": "m", "previous_response_id": "resp_1", "input": "go on"}).encode()
    stored = reading.read({":path": "/v1/responses"}, body, prompt.Settings(), whole=True).prompt
    assert isinstance(stored, prompt.Prompt)
    assert of.choose(stored, 0.0).hash is None


def test_an_explicit_key_wins_over_the_prompt() -> None:
    of = start()
    by_header = {of.choose(read(words(number)), 0.0, key="k").hash for number in range(5)}
    by_body = {of.choose(read(words(number), prompt_cache_key="k"), 0.0).hash for number in range(5)}
    assert by_header == by_body
    assert len(by_header) == 1


def test_a_preview_is_what_comes_next_and_counts_nothing() -> None:
    of = start()
    for number in range(40):
        asked = of.read(read(SYSTEM + words(number % 10)))
        before = len(of.anchors)
        seen = of.preview(asked)
        assert of.preview(asked) == seen
        assert len(of.anchors) == before
        assert of.place(asked, 0.0) == seen


def test_the_hash_is_sixteen_hexadecimal_digits() -> None:
    of = start()
    texts = {of.choose(read(words(number)), 0.0).text for number in range(50)}
    assert all(len(text) == 16 and int(text, 16) >= 0 for text in texts)
