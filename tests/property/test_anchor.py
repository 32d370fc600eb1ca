from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import anchor, chain

ENDPOINTS = st.integers(2, 6)


def blocks(text: str) -> chain.Chain:
    return chain.build(1, text.encode(), 1, 999)


# Prompts of one length: none is a start of another, so a share is a plain count.
SAME_LENGTH = st.lists(st.text("ab", min_size=5, max_size=5), min_size=1, max_size=60)
ANY_LENGTH = st.lists(st.text("ab", max_size=6), min_size=1, max_size=60)


@settings(deadline=None)
@given(SAME_LENGTH, ENDPOINTS)
def test_anchor_is_the_first_block_whose_share_is_below_one_nth(texts: list[str], endpoints: int) -> None:
    anchors, passed = anchor.Anchors(), Counter[int]()
    for total, text in enumerate(texts, 1):
        sent = blocks(text)
        passed.update(sent.hashes)
        found = anchors.observe(sent, endpoints, 0.0)
        rare = [at for at, block in enumerate(sent.hashes) if passed[block] < total / endpoints]
        if rare:
            assert (found.block, found.key) == (rare[0], sent.hashes[rare[0]])
            for hot in found.hot:
                assert hot.share == passed[hot.key] / total >= 1 / endpoints
                assert sent.hashes.index(hot.key) < hot.blocks <= found.block


@settings(deadline=None)
@given(ANY_LENGTH, ENDPOINTS)
def test_key_is_never_a_block_that_too_many_send_where_a_later_block_is_rare(
    texts: list[str], endpoints: int
) -> None:
    """Prompts end with a mark of their own, so that none is the growth of another."""
    anchors, passed = anchor.Anchors(), Counter[int]()
    for total, text in enumerate(texts, 1):
        sent = blocks(text + ".")
        passed.update(sent.hashes)
        found = anchors.observe(sent, endpoints, 0.0)
        least = total / endpoints
        if found.block < len(sent) and passed[found.key] >= least:
            assert all(passed[block] >= least for block in sent.hashes[found.block :])


@settings(deadline=None)
@given(ANY_LENGTH, ENDPOINTS, st.integers(2, 12))
def test_anchor_is_a_block_of_the_chain_or_its_tail_and_edges_are_bounded(
    texts: list[str], endpoints: int, edges_max: int
) -> None:
    anchors = anchor.Anchors(edges_max, half_life_s=10.0)
    for at, text in enumerate(texts):
        sent = blocks(text)
        found = anchors.observe(sent, endpoints, float(at))
        assert found.key == (*sent.hashes, sent.tail)[found.block]
        assert len(anchors) <= edges_max


@settings(deadline=None)
@given(ANY_LENGTH, ENDPOINTS)
def test_equal_traffic_gives_equal_anchors(texts: list[str], endpoints: int) -> None:
    one, other = anchor.Anchors(16), anchor.Anchors(16)
    for at, text in enumerate(texts):
        assert one.observe(blocks(text), endpoints, at * 50.0) == other.observe(
            blocks(text), endpoints, at * 50.0
        )
        other.locate(blocks(text[::-1]), endpoints)


@settings(deadline=None)
@given(ANY_LENGTH)
def test_counts_of_the_tree_are_the_requests_that_passed(texts: list[str]) -> None:
    anchors, passed = anchor.Anchors(), Counter[int]()
    for text in texts:
        sent = blocks(text + ".")
        anchors.observe(sent, 4, 0.0)
        passed.update(sent.hashes)
    stack = list(anchors._root.children.values())
    assert anchors._root.count == len(texts)
    while stack:
        edge = stack.pop()
        assert {passed[block] for block in edge.hashes} == {edge.count}
        assert edge.ended + sum(child.count for child in edge.children.values()) in (
            edge.count,
            edge.count - 1,
        )
        stack.extend(edge.children.values())


@settings(deadline=None)
@given(ANY_LENGTH, ENDPOINTS, st.integers(1, 3))
def test_foreseen_is_the_anchor_that_observing_returns_and_counts_nothing(
    texts: list[str], endpoints: int, every: int
) -> None:
    anchors = anchor.Anchors(half_life_s=4.0)
    for at, text in enumerate(texts):
        sent = blocks(text)
        now = float(at // every)
        anchors._forget(now)
        foreseen = anchors.foresee(sent, endpoints)
        assert anchors.foresee(sent, endpoints) == foreseen
        assert anchors.observe(sent, endpoints, now) == foreseen
