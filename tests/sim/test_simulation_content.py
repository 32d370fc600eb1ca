"""Simulated prompts share blocks exactly where their tokens are equal."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sim import content

PIECES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 90)), max_size=6)


def tokens(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The prompt, token by token: (piece, offset)."""
    return [(name, offset) for name, length in pieces for offset in range(length)]


@given(PIECES, PIECES)
def test_two_prompts_share_no_block_that_they_do_not_share_in_tokens(one, other):
    common = sum(
        1
        for _ in itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(tokens(one), tokens(other), strict=False)
        )
    )
    hashes = content.Content.of(one).hashes, content.Content.of(other).hashes
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*hashes, strict=False)))
    assert shared <= common // content.BLOCK_TOKENS
    assert not set(hashes[0][shared:]) & set(hashes[1][shared:])


@given(PIECES, PIECES, st.integers(0, 90), st.integers(0, 90))
def test_equal_starts_share_all_their_blocks_whatever_follows_and_wherever_a_piece_is_cut(
    start, rest, cut, more
):
    one = content.Content.of([*start, (7, cut)])
    other = content.Content.of([*start, (7, cut + more), *rest])
    assert one.hashes == other.hashes[: len(one.hashes)]
    assert len(one.hashes) == one.tokens // content.BLOCK_TOKENS


def test_the_routers_blocks_end_where_every_fourth_of_the_engines_does():
    prompt = content.Content.of([(1, 1000)])
    assert prompt.chain().hashes == tuple(prompt.hashes[3::4])
    assert prompt.blocks(64) == list(prompt.chain().hashes)
    assert prompt.chain().tail != content.Content.of([(1, 1001)]).chain().tail


def test_adapters_share_nothing():
    one, other = (content.Content.of([(1, 1000)], adapter) for adapter in ("a", "b"))
    assert not set(one.hashes) & set(other.hashes)


def test_a_block_size_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="block_tokens is 24"):
        content.Content.of([(1, 100)]).blocks(24)
