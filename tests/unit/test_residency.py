import math

import pytest

from extproc import chain, pool, residency

A, B = pool.EndpointId("a"), pool.EndpointId("b")


def blocks(text: str) -> chain.Chain:
    """One block a letter."""
    return chain.build(7, text.encode(), 1, 1 << 20)


def held(of: residency.Residency, text: str, now: float = 0.0) -> int:
    return of.match(A, blocks(text), now).gpu_blocks


def of_blocks(gpu: int, host: int = 0, external: int = 0, idle_s: float = 100.0) -> residency.Residency:
    return residency.Residency(residency.Capacity(gpu, host, external), idle_s)


def test_sent_prompt_is_held_from_its_start() -> None:
    cache = of_blocks(10)
    cache.add(A, blocks("abcd"), 0.0)
    assert held(cache, "abcd") == 4
    assert held(cache, "abxd") == 2
    assert held(cache, "abcdef") == 4
    assert held(cache, "ab") == 2
    assert held(cache, "xbcd") == 0
    assert held(cache, "") == 0


def test_endpoints_hold_what_they_were_sent_and_no_more() -> None:
    cache = of_blocks(10)
    cache.add(A, blocks("abcd"), 0.0)
    assert cache.match(B, blocks("abcd"), 0.0) == residency.Match(0, 0)
    assert (cache.blocks(A), cache.blocks(B)) == (4, 0)


def test_deepest_blocks_leave_first() -> None:
    cache = of_blocks(6)
    cache.add(A, blocks("abcd"), 0.0)
    cache.add(A, blocks("xyz"), 1.0)
    assert held(cache, "abcd", 1.0) == 3
    assert held(cache, "xyz", 1.0) == 3


def test_least_recently_used_path_leaves_first() -> None:
    cache = of_blocks(6)
    cache.add(A, blocks("abc"), 0.0)
    cache.add(A, blocks("xyz"), 1.0)
    cache.add(A, blocks("abc"), 2.0)
    cache.add(A, blocks("kl"), 3.0)
    assert [held(cache, text, 3.0) for text in ("abc", "xyz", "kl")] == [3, 1, 2]


def test_shared_start_outlives_each_of_its_ends() -> None:
    cache = of_blocks(6)
    for at, text in enumerate(("abc1", "abc2", "abc3", "abc4", "abc5", "abc6")):
        cache.add(A, blocks(text), float(at))
    assert held(cache, "abc", 5.0) == 3
    assert [held(cache, f"abc{i}", 5.0) for i in range(1, 7)] == [3, 3, 3, 4, 4, 4]


def test_prompt_longer_than_the_capacity_is_held_up_to_it() -> None:
    cache = of_blocks(3)
    cache.add(A, blocks("abcdef"), 0.0)
    assert held(cache, "abcdef") == 3
    assert cache.blocks(A) == 3


def test_nothing_is_held_without_capacity() -> None:
    cache = of_blocks(0)
    cache.add(A, blocks("abc"), 0.0)
    assert held(cache, "abc") == 0


def test_an_answer_takes_its_place_behind_its_prompt_and_leaves_before_it() -> None:
    # engines keep what they generated as they keep prompts, and drop older prompts for it
    cache = residency.Residency(residency.Capacity(8), 100.0, answer_blocks=2)
    cache.add(A, blocks("abc"), 0.0)
    assert (held(cache, "abcd"), cache.blocks(A)) == (3, 5)
    cache.add(A, blocks("xyz"), 1.0)  # 10 blocks for 8: the older answer goes
    assert (held(cache, "abc", 1.0), held(cache, "xyz", 1.0), cache.blocks(A)) == (3, 3, 8)
    cache.add(A, blocks("xyzk"), 2.0)
    assert (held(cache, "abc", 2.0), held(cache, "xyzk", 2.0)) == (0, 4)


def test_answers_to_one_prompt_are_several() -> None:
    cache = residency.Residency(residency.Capacity(20), 100.0, answer_blocks=2)
    for at in range(4):
        cache.add(A, blocks("abc"), float(at))
    assert cache.blocks(A) == 3 + 4 * 2


@pytest.mark.parametrize("began_s", [-1e6, -0.001, 0.0, 1e6])
def test_answers_leave_whatever_the_moment_they_were_given_at(began_s: float) -> None:
    cache = residency.Residency(residency.Capacity(8), 100.0, answer_blocks=2)
    for number, prompt in enumerate(("abcd", "xyz", "uvw", "abcd")):
        cache.add(A, blocks(prompt), began_s + number)  # a peer's moment can lie before this clock's 0
    assert held(cache, "abcd", began_s + 4) == 4
    assert cache.blocks(A) <= 8


def test_a_prompt_taken_back_takes_its_answer_along() -> None:
    cache = residency.Residency(residency.Capacity(20), 100.0, answer_blocks=2)
    cache.add(A, blocks("ab"), 0.0)
    cache.add(A, blocks("abcd"), 1.0)
    cache.retract(A, blocks("abcd"), 1.0, 1.0)
    assert (held(cache, "abcd", 1.0), cache.blocks(A)) == (2, 2 + 2)


@pytest.mark.parametrize("order", ["adb", "dab"])
def test_what_two_prompts_begin_with_stays_until_both_went_elsewhere(order: str) -> None:
    cache = of_blocks(20)
    prompts = {"a": "abcd", "d": "abcdx", "b": "abz"}
    for moment, name in enumerate(order):
        cache.add(A, blocks(prompts[name]), float(moment))
    for name, left in (("a", 5), ("d", 2), ("b", 0)):
        cache.retract(A, blocks(prompts[name]), float(order.index(name)), 3.0)
        assert held(cache, "abcdx", 3.0) == left
    assert cache.blocks(A) == 0


def test_what_was_evicted_is_taken_back_as_far_as_it_is_left() -> None:
    cache = of_blocks(4)
    cache.add(A, blocks("abcd"), 0.0)
    cache.add(A, blocks("xy"), 1.0)
    assert held(cache, "abcd", 1.0) == 2
    cache.retract(A, blocks("abcd"), 0.0, 2.0)
    assert (held(cache, "abcd", 2.0), cache.blocks(A)) == (0, 2)


def test_what_was_sent_before_a_restart_is_no_more_to_be_taken_back() -> None:
    cache = of_blocks(9)
    cache.add(A, blocks("abc"), 0.0)
    cache.forget(A)
    cache.add(A, blocks("abc"), 1.0)
    cache.retract(A, blocks("abc"), 0.0, 2.0)
    assert held(cache, "abc", 2.0) == 3


def test_who_has_not_heard_that_a_prompt_went_elsewhere_brings_it_not_back() -> None:
    cache = of_blocks(9)
    cache.add(A, blocks("abc"), 0.0)
    cache.retract(A, blocks("abc"), 0.0, 2.0)
    cache.add(A, blocks("abc"), 1.0, told=1)
    assert held(cache, "abc", 2.0) == 0
    cache.add(A, blocks("abc"), 2.5, told=1)
    assert held(cache, "abc", 3.0) == 3
    cache.retract(A, blocks("abc"), None, 3.0)
    cache.sent_again(A, blocks("abc").hashes[-1])
    cache.add(A, blocks("abc"), 2.5, told=1)
    assert held(cache, "abc", 3.0) == 3


def test_of_a_prompt_that_was_only_heard_of_by_what_is_held_as_much_goes_as_the_teller_says() -> None:
    cache = of_blocks(9)
    cache.add(A, blocks("abcd"), 0.0, told=1)
    cache.retract(A, blocks("abcd"), None, 1.0, least=2)
    assert held(cache, "abcd", 1.0) == 2
    cache.retract(A, blocks("abcd"), None, 1.0)  # what is not held is not counted here
    assert held(cache, "abcd", 1.0) == 2
    cache.add(B, blocks("abcd"), 0.0, told=2)
    cache.retract(B, blocks("abcd"), None, 1.0, least=4)
    assert cache.match(B, blocks("abcd"), 1.0).gpu_blocks == 4


def test_the_next_turn_of_a_conversation_finds_its_answer() -> None:
    cache = residency.Residency(residency.Capacity(9), 100.0, answer_blocks=2)
    cache.add(A, blocks("abcd"), 0.0)
    assert cache.held(blocks("abcdef"), 0.0).answered == (A,)
    assert not cache.held(blocks("abcd"), 0.0).answered  # the same again: its answer is yet to come
    assert not cache.held(blocks("abxy"), 0.0).answered  # leaves within the prompt
    cache.add(B, blocks("ab"), 0.0)
    assert set(cache.held(blocks("abcdef"), 0.0).answered) == {A, B}
    assert cache.held(blocks("abxy"), 0.0).answered == (B,)
    cache.add(A, blocks("klm"), 1.0)  # 11 blocks for 9: the older answer goes
    assert cache.held(blocks("abcdef"), 1.0).answered == (B,)
    assert cache.match(A, blocks("abcdef"), 1.0).gpu_blocks == 4


def test_what_was_forgotten_or_taken_back_leaves_nothing() -> None:
    cache = of_blocks(10, host=20)
    for number in range(100):
        name = pool.EndpointId(f"once-{number}")
        cache.add(name, blocks("abc"), float(number) / 1000)
        cache.retain({A})
    for moment in range(100):
        cache.add(A, blocks("abc"), float(moment))
        cache.retract(A, blocks("abc"), float(moment), float(moment))
    assert not cache._due
    cache.add(A, blocks("abc"), 100.0)
    assert held(cache, "abc", 199.5) == 3
    assert held(cache, "abc", 201.0) == 0


def test_nobody_is_told_of_answers() -> None:
    cache = residency.Residency(residency.Capacity(20), 100.0, answer_blocks=2)
    cache.add(A, blocks("abc"), 0.0)
    cache.add(A, blocks("abx"), 1.0)
    told = list(cache.recent(A, 0.0))
    assert sum(len(one.hashes) for one in told) == 4
    assert all(block >= 0 for one in told for block in one.hashes)
    cache.forget(A)
    assert (held(cache, "abc", 2.0), cache.blocks(A)) == (0, 0)


def test_what_more_blocks_would_displace() -> None:
    cache = of_blocks(6)
    assert cache.displaced_s(A, 100) == -math.inf
    cache.add(A, blocks("abc"), 5.0)
    cache.add(A, blocks("xy"), 9.0)
    assert cache.displaced_s(A, 1) == -math.inf
    assert cache.displaced_s(A, 2) == 5.0
    cache.add(A, blocks("abc"), 12.0)
    assert cache.displaced_s(A, 2) == 9.0


def test_idle_blocks_expire() -> None:
    cache = of_blocks(10, idle_s=180.0)
    cache.add(A, blocks("abc"), 0.0)
    cache.add(A, blocks("ab"), 100.0)
    assert held(cache, "abc", 180.0) == 3
    assert held(cache, "abc", 181.0) == 2
    assert held(cache, "abc", 281.0) == 0
    assert cache.blocks(A) == 0


def test_asking_is_no_use() -> None:
    cache = of_blocks(10, idle_s=180.0)
    cache.add(A, blocks("abc"), 0.0)
    held(cache, "abc", 170.0)
    assert held(cache, "abc", 181.0) == 0


def test_host_tier_holds_what_the_gpu_tier_lost() -> None:
    cache = of_blocks(2, host=6)
    cache.add(A, blocks("ab"), 0.0)
    cache.add(A, blocks("xy"), 1.0)
    assert cache.match(A, blocks("ab"), 1.0) == residency.Match(0, 2)
    assert cache.match(A, blocks("xy"), 1.0) == residency.Match(2, 2)


def test_external_tier_is_shared_and_survives_a_restart() -> None:
    cache = of_blocks(4, host=8, external=8)
    cache.add(A, blocks("ab"), 0.0)
    assert cache.match(B, blocks("ab"), 0.0) == residency.Match(0, 2)
    cache.forget(A)
    assert cache.match(A, blocks("ab"), 0.0) == residency.Match(0, 2)


def test_restart_drops_gpu_and_host_tiers_of_that_endpoint_only() -> None:
    cache = of_blocks(4, host=8)
    cache.add(A, blocks("ab"), 0.0)
    cache.add(B, blocks("ab"), 0.0)
    cache.forget(A)
    assert cache.match(A, blocks("ab"), 0.0) == residency.Match(0, 0)
    assert cache.match(B, blocks("ab"), 0.0) == residency.Match(2, 2)


def test_endpoint_that_left_comes_back_empty() -> None:
    cache = of_blocks(4)
    cache.add(A, blocks("ab"), 0.0)
    cache.add(B, blocks("ab"), 0.0)
    cache.retain([B])
    assert cache.match(A, blocks("ab"), 0.0).gpu_blocks == 0
    assert cache.match(B, blocks("ab"), 0.0).gpu_blocks == 2


def test_memory_is_flat_over_1e5_distinct_prompts() -> None:
    cache = of_blocks(500, idle_s=50.0)
    for number in range(100_000):
        cache.add(A, chain.Chain((number % 37, 10**6 + number, 10**9 + number), 0), number / 1000)
        if not number % 1000:
            tree = cache._gpu.trees[A]
            assert len(tree._leaves) <= len(tree._nodes) <= 500
    assert cache.blocks(A) == 500


def test_an_endpoint_can_hold_more_or_less_than_the_pools_capacity() -> None:
    made = residency.Residency(residency.Capacity(10), 100.0)
    chain_ = chain.Chain(tuple(chain.BlockHash(n) for n in range(1, 9)), 0)
    made.add(A, chain_, 0.0)
    made.resize(A, 3, 0)
    assert made.match(A, chain_, 0.0).gpu_blocks == 3  # the deepest left
    made.add(A, chain_, 1.0)
    assert made.blocks(A) == 3
    made.resize(A, 100, 0)
    made.add(A, chain_, 2.0)
    assert made.blocks(A) == 8
    made.resize(A, 0, 0)
    made.add(A, chain_, 3.0)
    assert made.match(A, chain_, 3.0).any_blocks == 0


def test_a_host_tier_can_be_learned_of_later_and_a_size_is_forgotten_with_its_endpoint() -> None:
    made = residency.Residency(residency.Capacity(2), 100.0)
    chain_ = chain.Chain(tuple(chain.BlockHash(n) for n in range(1, 9)), 0)
    made.resize(A, 2, 6)
    made.add(A, chain_, 0.0)
    assert (made.match(A, chain_, 0.0).gpu_blocks, made.match(A, chain_, 0.0).any_blocks) == (2, 6)
    made.forget(A)
    made.retain(())
    made.add(A, chain_, 1.0)
    assert made.match(A, chain_, 1.0).any_blocks == 2


@pytest.mark.parametrize("is_taken_back", [False, True])
def test_hashes_chosen_so_that_two_answers_have_one_name_leave_no_block_behind(
    *, is_taken_back: bool
) -> None:
    cache = residency.Residency(residency.Capacity(4), 100.0, answer_blocks=1)
    cache.add(A, chain.Chain((8,), 0), 0.0)
    cache.add(A, chain.Chain((9,), 0), 1e-6)  # 8 ^ 0 == 9 ^ 1
    if is_taken_back:
        cache.retract(A, chain.Chain((9,), 0), 1e-6, 1.0)
    for moment in range(2, 9):
        cache.add(A, chain.Chain((100 + moment,), 0), float(moment))
        assert cache.blocks(A) == 4
    assert not cache.held(chain.Chain((8,), 0), 9.0).gpu
    cache.resize(A, 0, 0)
    assert cache.blocks(A) == 0


def test_what_is_taken_back_again_and_again_costs_no_room() -> None:
    cache = residency.Residency(residency.Capacity(1000), 1e9, answer_blocks=1)
    kept = [chain.Chain(tuple(range(100 * number + 1, 100 * number + 6)), 0) for number in range(20)]
    for blocks in kept:
        cache.add(A, blocks, 0.0)
    tree = cache._gpu.trees[A]
    for turn in range(1, 2000):
        asked = (*kept[turn % 20].hashes[:3], 10_000 + turn % 7, 20_000 + turn % 7)
        cache.add(A, chain.Chain(asked, 0), float(turn))
        cache.retract(A, chain.Chain(asked, 0), float(turn), float(turn))
        assert len(tree._leaves) <= 2 * len(tree) + 65
        assert len(tree) == 20 * 6
    held = [cache.match(A, blocks, 2000.0).gpu_blocks for blocks in kept]
    assert held == [5] * 20
    assert {each.hashes for each in cache.recent(A, 0.0)} == {blocks.hashes for blocks in kept}
