import random

import pytest

from extproc import anchor, chain


def blocks(text: str) -> chain.Chain:
    """One block a letter; what follows a bar is the tail."""
    full, _, rest = text.partition("|")
    letters = full.encode("utf-32-le")
    tail = chain.seed_of([letters, rest.encode()])
    return chain.Chain(chain.build(1, letters, 4, 1 << 20).hashes, tail)


def conversation(number: int, turns: int, system: str = "") -> str:
    """Differs from others in its first block; every turn adds three."""
    return system + chr(0x4000 + number) + "".join(chr(0x100 + turn) * 3 for turn in range(turns))


SYSTEM = "s" * 40


def test_first_request_of_all_is_anchored_at_its_first_block() -> None:
    assert anchor.Anchors().observe(blocks("abc"), 8, 0.0) == anchor.Anchor(0, blocks("abc").hashes[0])


def test_empty_chain_is_anchored_at_its_tail() -> None:
    found = anchor.Anchors().observe(blocks("|hi"), 8, 0.0)
    assert found == anchor.Anchor(0, blocks("|hi").tail)


def test_prefix_that_everybody_sends_is_never_the_key() -> None:
    anchors = anchor.Anchors()
    keys = [anchors.observe(blocks(conversation(i, 3, SYSTEM)), 8, 0.0) for i in range(100)]
    assert all(found.block >= len(SYSTEM) for found in keys[1:])
    assert len({found.key for found in keys}) == 100


def test_lone_conversation_keeps_its_key() -> None:
    anchors = anchor.Anchors()
    keys = {
        anchors.observe(blocks(conversation(1, turn, SYSTEM)), 8, float(turn)).key for turn in range(1, 40)
    }
    assert len(keys) == 1


def test_each_of_many_conversations_keeps_its_key_while_all_grow() -> None:
    anchors = anchor.Anchors()
    rng = random.Random(1)
    turns = [1] * 60
    keys: list[set[int]] = [set() for _ in turns]
    for _ in range(20):  # others' traffic, so that the system prompt is known
        anchors.observe(blocks(conversation(900 + _, 2, SYSTEM)), 8, 0.0)
    for step in range(1500):
        number = rng.randrange(len(turns))
        found = anchors.observe(blocks(conversation(number, turns[number], SYSTEM)), 8, step * 0.1)
        keys[number].add(found.key)
        turns[number] += 1
    assert all(len(seen) == 1 for seen in keys)
    assert len(set.union(*keys)) == len(turns)


def test_few_conversations_keep_their_keys_while_they_grow() -> None:
    anchors = anchor.Anchors()
    keys: list[list[int]] = [[], []]
    for turn in range(1, 30):
        for number in (0, 1):
            keys[number].append(anchors.observe(blocks(conversation(number, turn, SYSTEM)), 8, 0.0).key)
    assert len(set(keys[0][1:])) == len(set(keys[1])) == 1  # the first request of all can't know the second
    assert keys[0][-1] != keys[1][-1]


def test_short_questions_on_one_hot_prefix_are_spread_by_their_tails() -> None:
    anchors = anchor.Anchors()
    keys = [anchors.observe(blocks(f"{SYSTEM}|question {i}"), 8, 0.0).key for i in range(200)]
    assert len(set(keys[2:])) == 198


def test_long_questions_among_short_ones_do_not_gather_the_short_ones_again() -> None:
    anchors = anchor.Anchors()
    anchors.observe(blocks(SYSTEM + "long one"), 8, 0.0)
    for i in range(200):
        anchors.observe(blocks(f"{SYSTEM}|question {i}"), 8, 0.0)
    long = anchors.observe(blocks(SYSTEM + "other"), 8, 0.0)
    assert (long.block, long.key) == (40, blocks(SYSTEM + "o").hashes[40])
    assert [hot.blocks for hot in long.hot] == [40]
    keys = {anchors.observe(blocks(f"{SYSTEM}|later {i}"), 8, 0.0).key for i in range(10)}
    assert len(keys) == 10
    assert anchors.locate(blocks(SYSTEM + "long one"), 8).block == 40


def test_locating_counts_nothing() -> None:
    anchors = anchor.Anchors()
    for i in range(50):
        anchors.observe(blocks(conversation(i, 2, SYSTEM)), 8, 0.0)
    first = [anchors.locate(blocks(conversation(i, 2, SYSTEM)), 8) for i in range(60)]
    assert first == [anchors.locate(blocks(conversation(i, 2, SYSTEM)), 8) for i in range(60)]


def test_traffic_of_the_past_is_forgotten() -> None:
    anchors = anchor.Anchors(half_life_s=100.0)
    for i in range(64):
        anchors.observe(blocks(f"{chr(0x4000 + i)}old"), 4, 0.0)
    assert len(anchors) > 60
    anchors.observe(blocks("new"), 4, 1000.0)  # ten half-lives: 64 requests weigh 1/16 of one
    assert len(anchors) == 1


def test_edges_stay_bounded_over_distinct_prompts() -> None:
    anchors = anchor.Anchors(edges_max=100)
    for i in range(5000):
        anchors.observe(blocks(f"{i % 7}{i:05}xyz"), 8, 0.0)
        assert len(anchors) <= 100


def test_depth_is_bounded() -> None:
    anchors = anchor.Anchors()
    long = chain.Chain(tuple(range(1, 5000)), 7)
    anchors.observe(long, 8, 0.0)
    (edge,) = anchors._root.children.values()
    assert len(edge.hashes) == 1024
    assert anchors.observe(long, 8, 0.0).block < 5000


@pytest.mark.parametrize("endpoints", [0, 1])
def test_pool_of_one_or_none_has_anchors_too(endpoints: int) -> None:
    anchors = anchor.Anchors()
    for i in range(5):
        anchors.observe(blocks(conversation(i, 2)), endpoints, 0.0)
