"""The block pool against vLLM's rules, as measured on a real one (block sizes and counts are those runs')."""

from __future__ import annotations

import random

import pytest

from extproc.sim import kv_cache


def tokens(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count * kv_cache.TOKEN_BYTES)


def compute(cache: kv_cache.KvCache, hashes: list[int], prompt_tokens: int, output_tokens: int = 1):
    """A request from admission to the end of its prefill; not released."""
    allocation = cache.admit(hashes, prompt_tokens, prompt_tokens + output_tokens)
    assert allocation is not None
    cache.grow(allocation, prompt_tokens)
    cache.commit(allocation, prompt_tokens)
    return allocation


def cached_again(prompt_tokens: int, block_tokens: int) -> int:
    """Tokens found when a prompt is sent a second time."""
    cache = kv_cache.KvCache(blocks=100, block_tokens=block_tokens)
    hashes = kv_cache.chain(tokens(prompt_tokens), block_tokens)
    cache.release(compute(cache, hashes, prompt_tokens))
    return compute(cache, hashes, prompt_tokens).cached_tokens


@pytest.mark.parametrize(
    ("prompt_tokens", "cached"), [(128, 96), (614, 608), (129, 128), (31, 0), (32, 0), (33, 32)]
)
def test_the_last_token_is_computed_and_only_full_blocks_hit(prompt_tokens, cached):
    assert cached_again(prompt_tokens, block_tokens=32) == cached


def test_a_recomputed_last_block_leaves_a_second_copy_that_survives_the_first():
    cache = kv_cache.KvCache(blocks=6, block_tokens=32)
    hashes = kv_cache.chain(tokens(64), 32)
    first = compute(cache, hashes, 64)
    second = compute(cache, hashes, 64)
    assert second.cached_tokens == 32
    assert first.blocks[0] == second.blocks[0]
    assert first.blocks[1] != second.blocks[1]
    cache.release(first)
    cache.release(second)
    # 3 blocks never used, then the first request's copy of block 1 go to another prompt
    other = compute(cache, kv_cache.chain(tokens(4 * 32, seed=1), 32), 4 * 32, output_tokens=0)
    assert first.chain[1] in cache.cached_hashes
    cache.release(other)
    compute(cache, kv_cache.chain(tokens(5 * 32, seed=2), 32), 5 * 32, output_tokens=0)
    assert first.chain[1] not in cache.cached_hashes


def test_equal_blocks_after_a_difference_do_not_hit():
    cache = kv_cache.KvCache(blocks=100)
    prompt = tokens(160)
    changed = tokens(16, seed=1) + prompt[16 * kv_cache.TOKEN_BYTES :]
    cache.release(compute(cache, kv_cache.chain(prompt, 16), 160))
    assert compute(cache, kv_cache.chain(changed, 16), 160).cached_tokens == 0


def test_a_hole_in_the_chain_ends_the_hits():
    cache = kv_cache.KvCache(blocks=100)
    hashes = kv_cache.chain(tokens(160), 16)
    cache.release(compute(cache, hashes, 160))
    assert cache.match([*hashes[:3], 1, *hashes[4:]], 160) == (3, 0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("", ""), ("", "salt")),
        (("", ""), ("lora", "")),
        (("lora", ""), ("", "lora")),
        (("a", "bc"), ("ab", "c")),
    ],
)
def test_adapter_and_salt_split_the_cache(one, other):
    prompt = tokens(64)
    chains = [kv_cache.chain(prompt, 16, kv_cache.root(*keys)) for keys in (one, other)]
    assert not set(chains[0]) & set(chains[1])


def test_the_chain_continues_from_any_block():
    text = tokens(100)
    whole = kv_cache.chain(text, 16)
    assert len(whole) == 6
    assert kv_cache.chain(text[32 * kv_cache.TOKEN_BYTES :], 16, parent=whole[1]) == whole[2:]


def test_the_deepest_block_goes_first_and_the_root_last():
    cache = kv_cache.KvCache(blocks=8)
    hashes = kv_cache.chain(tokens(64), 16)
    cache.release(compute(cache, hashes, 64, output_tokens=0))
    other = kv_cache.chain(tokens(8 * 16, seed=1), 16)
    allocation = cache.admit(other, 128, 128)
    left = []
    for index in range(8):
        cache.grow(allocation, (index + 1) * 16)
        left.append(len([value for value in hashes if value in cache.cached_hashes]))
    assert left == [4, 4, 4, 4, 3, 2, 1, 0]


def test_the_least_recently_released_request_is_evicted_first_and_a_hit_renews():
    cache = kv_cache.KvCache(blocks=6)
    old, new = (kv_cache.chain(tokens(32, seed), 16) for seed in (1, 2))
    for hashes in (old, new):
        cache.release(compute(cache, hashes, 32, output_tokens=0))
    cache.release(compute(cache, old, 33, output_tokens=0))  # hits both blocks of `old`
    third = compute(cache, kv_cache.chain(tokens(64, seed=3), 16), 64, output_tokens=0)
    assert len(third.blocks) == 4
    assert set(old) <= cache.cached_hashes
    assert not set(new) & cache.cached_hashes


def test_blocks_in_use_are_never_evicted_and_a_request_without_room_changes_nothing():
    cache = kv_cache.KvCache(blocks=8)
    hashes = kv_cache.chain(tokens(96), 16)
    held = compute(cache, hashes, 96, output_tokens=16)
    before = (cache.used_blocks, cache.available_blocks, cache.cached_hashes)
    assert before[:2] == (6, 1)
    assert cache.admit(kv_cache.chain(tokens(32, seed=1), 16), 32, 32) is None
    assert (cache.used_blocks, cache.available_blocks, cache.cached_hashes) == before
    cache.release(held)
    assert cache.admit(kv_cache.chain(tokens(32, seed=1), 16), 32, 32) is not None


def test_hits_that_are_idle_cannot_be_counted_as_room_too():
    cache = kv_cache.KvCache(blocks=4)
    hashes = kv_cache.chain(tokens(48), 16)
    cache.release(compute(cache, hashes, 48, output_tokens=0))
    # 3 idle hits and 2 fresh blocks do not fit in 4
    assert cache.admit(hashes, 49, 80) is None
    assert cache.admit(hashes, 49, 64) is not None


def test_a_shared_prefix_is_held_once():
    cache = kv_cache.KvCache(blocks=100)
    shared = tokens(160)
    first = compute(cache, kv_cache.chain(shared + tokens(20, 1), 16), 180)
    second = compute(cache, kv_cache.chain(shared + tokens(20, 2), 16), 180)
    assert second.cached_tokens == 160
    assert cache.used_blocks == 12 + 2
    cache.release(first)
    assert cache.used_blocks == 12
    cache.release(second)
    cache.release(second)  # a second release does nothing
    assert cache.used_blocks == 0
    assert cache.available_blocks == 100


def test_blocks_become_hits_chunk_by_chunk():
    cache = kv_cache.KvCache(blocks=100)
    hashes = kv_cache.chain(tokens(160), 16)
    allocation = cache.admit(hashes, 160, 161)
    for computed, found in ((40, 2), (100, 6), (160, 9)):
        cache.grow(allocation, computed)
        cache.commit(allocation, computed)
        assert cache.match(hashes, 160)[0] == found


def test_without_reading_nothing_is_hit_and_blocks_are_stored_all_the_same():
    cache = kv_cache.KvCache(blocks=100)
    hashes = kv_cache.chain(tokens(160), 16)
    cache.release(compute(cache, hashes, 160))
    allocation = cache.admit(hashes, 160, 161, reads=False)
    assert allocation.cached_tokens == 0


def test_taking_more_than_promised_is_an_error():
    cache = kv_cache.KvCache(blocks=100)
    allocation = cache.admit([], 16, 32)
    with pytest.raises(ValueError, match="promised"):
        cache.grow(allocation, 33)


def test_reset_forgets_the_device_but_not_while_blocks_are_in_use():
    cache = kv_cache.KvCache(blocks=100)
    hashes = kv_cache.chain(tokens(160), 16)
    held = compute(cache, hashes, 160)
    assert not cache.reset()
    assert cache.match(hashes, 160) == (9, 0)
    cache.release(held)
    assert cache.reset()
    assert cache.match(hashes, 160) == (0, 0)
    cache.release(compute(cache, hashes, 160))
    assert cache.match(hashes, 160) == (9, 0)


def test_evicted_blocks_hit_in_the_host_tier_after_those_of_the_device():
    cache = kv_cache.KvCache(blocks=12, host_blocks=100)
    hashes = kv_cache.chain(tokens(160), 16)
    cache.release(compute(cache, hashes, 160))
    # 10 of 12 blocks are cached; 6 fresh ones evict the 4 deepest
    cache.release(compute(cache, kv_cache.chain(tokens(96, seed=1), 16), 96, output_tokens=0))
    assert cache.match(hashes, 161) == (6, 4)
    again = compute(cache, hashes, 161, output_tokens=0)
    assert (again.device_tokens, again.host_tokens, again.cached_tokens) == (96, 64, 160)
    assert cache.match(hashes, 161) == (10, 0)


def test_the_host_tier_is_bounded_and_keeps_roots_longest():
    cache = kv_cache.KvCache(blocks=4, host_blocks=2)
    hashes = kv_cache.chain(tokens(64), 16)
    cache.release(compute(cache, hashes, 64, output_tokens=0))
    compute(cache, kv_cache.chain(tokens(64, seed=1), 16), 64, output_tokens=0)
    assert cache.host_hashes == set(hashes[:2])


def test_a_block_evicted_again_is_young_again_in_the_host_tier():
    cache = kv_cache.KvCache(blocks=1, host_blocks=2)
    a, b, c, d = (kv_cache.chain(tokens(16, seed), 16) for seed in range(4))
    for hashes in (a, b, a, c, d):  # each evicts the one before; one block never hits
        cache.release(compute(cache, hashes, 16, output_tokens=0))
    assert cache.host_hashes == {*a, *c}


@pytest.mark.parametrize(("blocks", "block_tokens", "host_blocks"), [(0, 16, 0), (1, 0, 0), (1, 16, -1)])
def test_an_impossible_pool_is_refused(blocks, block_tokens, host_blocks):
    with pytest.raises(ValueError, match="must be"):
        kv_cache.KvCache(blocks, block_tokens, host_blocks)
