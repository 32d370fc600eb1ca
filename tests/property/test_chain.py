from hypothesis import given
from hypothesis import strategies as st

from extproc import chain

SEED = st.integers(0, 2**64 - 1)
TEXT = st.binary(max_size=60)
BLOCK = st.integers(1, 8)


@given(SEED, TEXT, TEXT, BLOCK)
def test_appended_text_keeps_every_earlier_hash(seed: int, text: bytes, more: bytes, block: int) -> None:
    one, other = chain.build(seed, text, block, 999), chain.build(seed, text + more, block, 999)
    assert other.hashes[: len(one)] == one.hashes
    assert len(one) == len(text) // block


@given(SEED, TEXT, TEXT, BLOCK)
def test_chains_share_exactly_the_blocks_that_lie_in_the_common_start(
    seed: int, one: bytes, other: bytes, block: int
) -> None:
    common = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    pairs = zip(
        chain.build(seed, one, block, 999).hashes, chain.build(seed, other, block, 999).hashes, strict=False
    )
    assert sum(a == b for a, b in pairs) == common // block


@given(SEED, TEXT, TEXT, BLOCK)
def test_texts_differ_exactly_where_hashes_or_tail_do(
    seed: int, one: bytes, other: bytes, block: int
) -> None:
    same = chain.build(seed, one, block, 999) == chain.build(seed, other, block, 999)
    assert same == (one == other)


@given(SEED, TEXT, BLOCK, st.integers(0, 9))
def test_limit_cuts_the_chain_and_changes_none_of_it(seed: int, text: bytes, block: int, most: int) -> None:
    limited, free = chain.build(seed, text, block, most), chain.build(seed, text, block, 999)
    assert limited.hashes == free.hashes[:most]


@given(SEED, TEXT, BLOCK)
def test_every_hash_fits_64_bits(seed: int, text: bytes, block: int) -> None:
    built = chain.build(seed, text, block, 999)
    assert all(0 <= number < 2**64 for number in (*built.hashes, built.tail))


@given(st.lists(st.binary(max_size=3), max_size=4), st.lists(st.binary(max_size=3), max_size=4))
def test_seeds_are_equal_only_for_equal_parts(one: list[bytes], other: list[bytes]) -> None:
    assert (chain.seed_of(one) == chain.seed_of(other)) == (one == other)
