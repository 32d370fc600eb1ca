"""Residency against a model that says it in the plainest way: whole paths, stamps on every block."""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from extproc import chain, pool, residency

A = pool.EndpointId("a")
IDLE_S = 10.0


class Naive:
    """Blocks are their paths; using a path stamps all of it; the least recent, then deepest leaf leaves."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used_s: dict[str, float] = {}

    def expire(self, now: float) -> None:
        self.used_s = {path: at for path, at in self.used_s.items() if at >= now - IDLE_S}

    def add(self, text: str, now: float) -> None:
        self.expire(now)
        for depth in range(1, min(len(text), self.capacity) + 1):
            self.used_s[text[:depth]] = now
        while len(self.used_s) > self.capacity:
            leaves = [p for p in self.used_s if not any(q != p and q.startswith(p) for q in self.used_s)]
            worst = min(leaves, key=lambda p: (self.used_s[p], -len(p), key_of(p)))
            del self.used_s[worst]

    def held(self, text: str, now: float) -> int:
        self.expire(now)
        depth = 0
        while depth < len(text) and text[: depth + 1] in self.used_s:
            depth += 1
        return depth


def blocks(text: str) -> chain.Chain:
    return chain.build(1, text.encode(), 1, 999)


def key_of(path: str) -> int:
    return blocks(path).hashes[-1]


TEXT = st.text("ab", max_size=6)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(TEXT, st.booleans()), max_size=20))
def test_only_what_goes_on_behind_a_whole_prompt_finds_its_answer(steps: list[tuple[str, bool]]) -> None:
    cache = residency.Residency(residency.Capacity(1000), IDLE_S, answer_blocks=2)
    prompts: list[str] = []
    for now, (text, back) in enumerate(steps):
        cache.add(A, blocks(text), now * 1e-6)
        if back:
            cache.retract(A, blocks(text), now * 1e-6, now * 1e-6)
        else:
            prompts.append(text)
        for asked, _ in steps:
            depth = cache.match(A, blocks(asked), 0.0).gpu_blocks
            follows = 0 < depth < len(asked) and asked[:depth] in prompts
            assert (A in cache.held(blocks(asked), 0.0).answered) is follows


STEPS = st.lists(st.tuples(TEXT, st.sampled_from([0.0, 0.5, 3.0, 11.0])), max_size=30)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 8), STEPS)
@example(3, [("abb", 0.0), ("ab", 3.0), ("b", 3.0), ("abb", 3.0)])
def test_match_equals_that_of_the_naive_model_after_any_history(
    capacity: int, steps: list[tuple[str, float]]
) -> None:
    cache = residency.Residency(residency.Capacity(capacity), IDLE_S)
    naive = Naive(capacity)
    now = 0.0
    texts = [text for text, _ in steps]
    for text, wait_s in steps:
        now += wait_s
        cache.add(A, blocks(text), now)
        naive.add(text, now)
        assert cache.blocks(A) <= capacity
        for asked in texts:
            assert cache.match(A, blocks(asked), now).gpu_blocks == naive.held(asked, now), (asked, now)
        assert cache.blocks(A) == len(naive.used_s)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 8), st.integers(0, 8), STEPS)
def test_tree_is_bounded_and_always_whole_starts(
    capacity: int, more: int, steps: list[tuple[str, float]]
) -> None:
    cache = residency.Residency(residency.Capacity(capacity, capacity + more), IDLE_S)
    now = 0.0
    for text, wait_s in steps:
        now += wait_s
        cache.add(A, blocks(text), now)
        match = cache.match(A, blocks(text), now)
        assert match.gpu_blocks <= match.any_blocks <= len(text)
        for tier, limit in ((cache._gpu, capacity), (cache._host, capacity + more)):
            nodes = tier.trees[A]._nodes if A in tier.trees else {}
            assert len(nodes) <= limit
            assert all(
                node.parent is None or nodes.get(node.parent.block) is node.parent for node in nodes.values()
            )


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 8),
    st.lists(st.tuples(TEXT, st.sampled_from([0.0, 0.5, 3.0, 11.0]), st.booleans()), max_size=30),
)
def test_what_is_taken_back_leaves_whole_starts_and_no_more_than_before(
    capacity: int, steps: list[tuple[str, float, bool]]
) -> None:
    cache = residency.Residency(residency.Capacity(capacity, capacity + 2), IDLE_S)
    now = 0.0
    for text, wait_s, back in steps:
        now += wait_s
        before = cache.match(A, blocks(text), now).gpu_blocks
        held = cache.add(A, blocks(text), now)
        assert held == before
        added = cache.blocks(A)
        if back:
            cache.retract(A, blocks(text), now, now)
            assert cache.blocks(A) <= added
            assert cache.match(A, blocks(text), now).gpu_blocks <= held
        for trees, limit in ((cache._gpu, capacity), (cache._host, capacity + 2)):
            nodes = trees.trees[A]._nodes if A in trees.trees else {}
            assert len(nodes) <= limit
            assert all(
                node.parent is None or nodes.get(node.parent.block) is node.parent for node in nodes.values()
            )
            children = [node.parent.block for node in nodes.values() if node.parent is not None]
            assert all(node.children == children.count(node.block) for node in nodes.values())


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 8),
    st.lists(st.tuples(st.sampled_from("abc"), TEXT, st.sampled_from([0.0, 3.0, 11.0])), max_size=30),
)
def test_all_endpoints_at_once_are_as_each_alone(capacity: int, steps: list[tuple[str, str, float]]) -> None:
    together = residency.Residency(residency.Capacity(capacity), IDLE_S, answer_blocks=2)
    alone = {name: residency.Residency(residency.Capacity(capacity), IDLE_S, 2) for name in "abc"}
    now = 0.0
    for name, text, wait_s in steps:
        now += wait_s
        if text:
            together.add(pool.EndpointId(name), blocks(text), now)
            alone[name].add(pool.EndpointId(name), blocks(text), now)
        else:  # its process is a new one
            together.forget(pool.EndpointId(name))
            alone[name].forget(pool.EndpointId(name))
        for asked in {text for _, text, _ in steps}:
            held = together.held(blocks(asked), now)
            for each, cache in alone.items():
                endpoint, own = pool.EndpointId(each), cache.held(blocks(asked), now)
                assert held.of(endpoint) == own.of(endpoint)
                assert (endpoint in held.answered) is (endpoint in own.answered)
    for name in "abc":
        together.forget(pool.EndpointId(name))
    assert not together._gpu.holders


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 8),
    st.lists(st.tuples(TEXT, st.sampled_from([0.1, 3.0, 11.0]), st.integers(0, 9)), max_size=25),
    st.randoms(use_true_random=False),
)
def test_when_all_that_was_sent_went_elsewhere_nothing_is_held_whatever_was_lost_meanwhile(
    capacity: int, steps: list[tuple[str, float, int]], rng: random.Random
) -> None:
    cache = residency.Residency(residency.Capacity(capacity, capacity + 3), IDLE_S, answer_blocks=1)
    now, sent = 0.0, []
    for text, wait_s, lost in steps:
        now += wait_s
        cache.add(A, blocks(text), now)
        sent.append((text, now))
        if not lost:
            cache.forget(A)
    rng.shuffle(sent)
    for text, noted_s in sent:
        cache.retract(A, blocks(text), noted_s, now)
    assert not any(cache.match(A, blocks(text), now).any_blocks for text, _, _ in steps)
    assert cache.blocks(A) == 0
