"""Laws of the block pool under any order of admissions, chunks, releases and resets."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extproc.sim import kv_cache

BLOCK = 4
# four conversations that branch: same start, different continuations
TEXTS = [bytes([0] * 64 + [branch] * 32 + list(range(160))) for branch in (1, 2)] + [
    bytes([9] * 32 + [branch] * 96 + list(range(128))) for branch in (3, 4)
]
CHAINS = [kv_cache.chain(text, BLOCK) for text in TEXTS]
PARENTS = {child: parent for hashes in CHAINS for parent, child in itertools.pairwise(hashes)}


class Live:
    def __init__(self, allocation, prompt_tokens, tokens_max):
        self.allocation = allocation
        self.prompt_tokens = prompt_tokens
        self.tokens_max = tokens_max
        self.computed = allocation.cached_tokens


class PoolMachine(RuleBasedStateMachine):
    @initialize(blocks=st.integers(4, 24), host_blocks=st.sampled_from([0, 6, 40]))
    def build(self, blocks, host_blocks):
        self.cache = kv_cache.KvCache(blocks, BLOCK, host_blocks)
        self.live: list[Live] = []

    @rule(
        text=st.integers(0, len(TEXTS) - 1),
        prompt=st.integers(1, 60),
        output=st.integers(0, 4),
        reads=st.booleans(),
    )
    def admit(self, text, prompt, output, reads):
        cache, hashes = self.cache, CHAINS[text]
        before = (cache.used_blocks, cache.available_blocks, cache.cached_hashes)
        device, host = cache.match(hashes, prompt)
        allocation = cache.admit(hashes, prompt, prompt + output, reads=reads)
        if allocation is None:
            assert (cache.used_blocks, cache.available_blocks, cache.cached_hashes) == before
            return
        # hits: one run from the start, the last token never among them, and nothing missed
        assert allocation.cached_tokens <= (prompt - 1) // BLOCK * BLOCK
        assert allocation.cached_tokens == (BLOCK * (device + host) if reads else 0)
        run = hashes[: device + host]
        assert all(value in before[2] for value in run[:device])
        assert all(value in cache.host_hashes for value in run[device:])
        end = device + host
        if end < min((prompt - 1) // BLOCK, len(hashes)):
            assert hashes[end] not in before[2]
        self.live.append(Live(allocation, prompt, prompt + output))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), chunk=st.integers(1, 20))
    def compute(self, data, chunk):
        one = data.draw(st.sampled_from(self.live))
        one.computed = min(one.computed + chunk, one.tokens_max)
        held = {block for other in self.live for block in other.allocation.blocks}
        old = len(one.allocation.blocks)
        # a promise is always kept, and never with a block someone holds
        self.cache.grow(one.allocation, one.computed)
        assert not held & set(one.allocation.blocks[old:])
        self.cache.commit(one.allocation, one.computed)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data):
        one = data.draw(st.sampled_from(self.live))
        self.live.remove(one)
        before = self.cache.cached_hashes
        self.cache.release(one.allocation)
        assert self.cache.cached_hashes == before

    @rule()
    def reset(self):
        idle = self.cache.used_blocks == 0
        assert self.cache.reset() is idle
        if idle:
            assert not self.cache.cached_hashes

    @invariant()
    def blocks_are_held_or_free_and_promises_fit(self):
        if not hasattr(self, "cache"):
            return
        cache = self.cache
        held = {block for one in self.live for block in one.allocation.blocks}
        assert cache.used_blocks == len(held) <= cache.blocks
        assert 0 <= cache.available_blocks <= cache.blocks
        counts = dict.fromkeys(range(cache.blocks), 0)
        for one in self.live:
            for block in one.allocation.blocks:
                counts[block] += 1
        assert cache._references == list(counts.values())
        assert len(cache.cached_hashes) <= cache.blocks
        assert len(cache.host_hashes) <= cache.host_blocks

    @invariant()
    def a_cached_block_has_its_parent_cached(self):
        if not hasattr(self, "cache"):
            return
        cached = self.cache.cached_hashes
        assert all(PARENTS.get(value, value) in cached for value in cached)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
