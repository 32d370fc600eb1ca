"""KV cache: an engine's block pool with prefix caching, as vLLM keeps it.

    h[i] = H(h[i-1], tokens of block i),    h[-1] = H(adapter, cache salt)
    cached = min(run of known hashes from block 0, floor((prompt - 1) / block)) * block

Only full blocks are known by hash, only a run from the start hits, and the prompt's last token is always
computed: it is what the first output token is sampled from. Two requests that compute one block at the same
time, or one that recomputes its prompt's last full block, leave two copies of a hash.

A released request's blocks join the queue of unreferenced ones tail first; new blocks come from the queue's
head. So the least recently used go first, and of one prefix the deepest: roots outlive tails. An evicted hash
moves to the host tier if there is one. An external store, shared by engines and outliving them, is written
when a block is computed and read for what neither tier has.

Invariant: references never negative; blocks held plus blocks free equal the pool; a cached block's parent is
cached too. Every operation costs O(1) a block. Called by: engine. Source: vLLM 0.32, observed behaviour.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TOKEN_BYTES", "Allocation", "External", "KvCache", "chain", "root"]

TOKEN_BYTES = 4
"""Bytes of one token: the simulated tokenizer cuts UTF-8 text every four bytes; a token id is one uint32."""


def root(adapter: str = "", cache_salt: str = "") -> int:
    """The hash before block 0: prompts under different adapters or salts share nothing.

    Source: vLLM's extra keys. It repeats the adapter in every block; chaining makes once enough.
    """
    if not adapter and not cache_salt:
        return 0
    # lengths first: ("a", "bc") and ("ab", "c") must differ
    key = f"{len(adapter)}:{adapter}{len(cache_salt)}:{cache_salt}"
    return xxhash.xxh3_64_intdigest(key.encode())


def chain(tokens: bytes, block_tokens: int, parent: int = 0) -> list[int]:
    """The chained hashes of the full blocks in `tokens`.

    Args: tokens, TOKEN_BYTES each; block_tokens [count]; parent, the hash before the first block.
    """
    block_bytes = block_tokens * TOKEN_BYTES
    digest = xxhash.xxh3_64_intdigest
    hashes = []
    for start in range(0, len(tokens) - block_bytes + 1, block_bytes):
        parent = digest(tokens[start : start + block_bytes], seed=parent)
        hashes.append(parent)
    return hashes


class Allocation:
    """One request's blocks, from admission to release.

    `device_tokens`, `host_tokens`: prompt tokens found on the device, and loaded from beyond it, of which
    `external_tokens` from the external store. `blocks`: held now, in prompt order.
    """

    __slots__ = (
        "blocks",
        "chain",
        "committed",
        "device_tokens",
        "external_tokens",
        "host_tokens",
        "reserved",
    )

    def __init__(self, hashes: Sequence[int], blocks: list[int], reserved: int) -> None:
        self.chain = hashes
        self.blocks = blocks
        self.committed = len(blocks)  # blocks known by hash; what was hit already is
        self.reserved = reserved  # blocks promised at admission and not yet taken
        self.device_tokens = 0
        self.host_tokens = 0
        self.external_tokens = 0

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that need no computing."""
        return self.device_tokens + self.host_tokens


class External:
    """A store of blocks beside the engines (a cache server, storage): shared by them, and outliving them."""

    __slots__ = ("_held", "blocks")

    def __init__(self, blocks: int) -> None:
        """`blocks`: how many it holds [>= 1]; the least recently used go first."""
        self.blocks = blocks
        self._held: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, value: int) -> bool:
        return value in self._held

    def __len__(self) -> int:
        return len(self._held)

    def put(self, values: Sequence[int]) -> None:
        """Store blocks, or mark them used; `values` from a prompt's start on, so the deepest are oldest."""
        held = self._held
        for value in reversed(values):
            held[value] = None
            held.move_to_end(value)
        while len(held) > self.blocks:
            held.popitem(last=False)


class KvCache:
    """The pool of one engine: `blocks` on the device, `host_blocks` hashes in host memory."""

    def __init__(
        self,
        blocks: int,
        block_tokens: int = 16,
        host_blocks: int = 0,
        external: External | None = None,
    ) -> None:
        if blocks < 1 or block_tokens < 1 or host_blocks < 0:
            raise ValueError(
                f"blocks {blocks}, block_tokens {block_tokens} must be >= 1, host_blocks {host_blocks} >= 0"
            )
        self.block_tokens = block_tokens
        self.blocks = blocks
        self.host_blocks = host_blocks
        self.external = external
        self._references = [0] * blocks
        self._hashes: list[int | None] = [None] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._holders: dict[int, int] = {}  # hash -> the block that has held it longest
        self._copies: dict[int, dict[int, None]] = {}  # hash -> other blocks that hold it, oldest first
        self._host: OrderedDict[int, None] = OrderedDict()
        self._reserved = 0

    @property
    def used_blocks(self) -> int:
        """Blocks held by live requests; what is merely cached does not count."""
        return self.blocks - len(self._free)

    @property
    def available_blocks(self) -> int:
        """Blocks neither held nor promised to an admitted request."""
        return len(self._free) - self._reserved

    @property
    def cached_hashes(self) -> frozenset[int]:
        """Hashes that would hit on the device. A copy: for tests and dumps."""
        return frozenset(self._holders)

    @property
    def host_hashes(self) -> frozenset[int]:
        """Hashes that would hit in host memory. A copy: for tests and dumps."""
        return frozenset(self._host)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)

    def match(self, hashes: Sequence[int], prompt_tokens: int) -> tuple[int, int]:
        """Leading prompt blocks found on the device, and beyond it after those [count, count]."""
        limit = min((prompt_tokens - 1) // self.block_tokens, len(hashes))
        holders, host, external = self._holders, self._host, self.external
        device = 0
        while device < limit and hashes[device] in holders:
            device += 1
        end = device
        if external is None:
            while end < limit and hashes[end] in host:
                end += 1
        else:
            while end < limit and (hashes[end] in host or hashes[end] in external):
                end += 1
        return device, end - device

    def admit(
        self, hashes: Sequence[int], prompt_tokens: int, tokens_max: int, *, reads: bool = True
    ) -> Allocation | None:
        """Blocks for a request, or None (and nothing changed) if they do not fit now.

        Hit blocks are referenced at once, the others promised and taken by `grow`: a promise keeps later
        requests out, it does not evict anything early.

        Args: hashes, of the full blocks of prompt and output; prompt_tokens [>= 1]; tokens_max, prompt and
        output [>= prompt_tokens]; reads, whether hits may be used.
        """
        device, host = self.match(hashes, prompt_tokens) if reads else (0, 0)
        references = self._references
        holders = self._holders
        hit = [holders[value] for value in hashes[:device]]
        idle = [block for block in hit if not references[block]]
        fresh = self.blocks_for(tokens_max) - device
        if fresh > self.available_blocks - len(idle):
            return None
        free = self._free
        for block in idle:
            del free[block]
        for block in hit:
            references[block] += 1
        self._reserved += fresh
        allocation = Allocation(hashes, hit, fresh)
        allocation.device_tokens = device * self.block_tokens
        allocation.host_tokens = host * self.block_tokens
        allocation.external_tokens = self._load(hashes[device : device + host]) * self.block_tokens
        return allocation

    def grow(self, allocation: Allocation, tokens: int) -> None:
        """Takes promised blocks until `tokens` tokens of the request have a place.

        Errors: ValueError beyond what was promised; that is the caller's bug.
        """
        missing = self.blocks_for(tokens) - len(allocation.blocks)
        if missing <= 0:
            return
        if missing > allocation.reserved:
            raise ValueError(f"{missing} blocks asked, {allocation.reserved} promised")
        allocation.reserved -= missing
        self._reserved -= missing
        # the innermost loop of a simulation: names are looked up once
        take, references, known, append = (
            self._free.popitem,
            self._references,
            self._hashes,
            allocation.blocks.append,
        )
        for _ in range(missing):
            block, _none = take(last=False)
            references[block] = 1
            value = known[block]
            if value is not None:
                known[block] = None
                self._forget(block, value)
            append(block)

    def commit(self, allocation: Allocation, tokens: int) -> None:
        """Makes the full blocks of the request's first `tokens` tokens known by their hashes."""
        holders = self._holders
        end = min(tokens // self.block_tokens, len(allocation.chain))
        for index in range(allocation.committed, end):
            block, value = allocation.blocks[index], allocation.chain[index]
            self._hashes[block] = value
            if value not in holders:
                holders[value] = block
            else:
                self._copies.setdefault(value, {})[block] = None
        if self.external is not None and end > allocation.committed:
            self.external.put(allocation.chain[allocation.committed : end])
        allocation.committed = max(allocation.committed, end)

    def release(self, allocation: Allocation) -> None:
        """Gives all blocks and promises back; what was committed stays cached. A second call does nothing."""
        self._reserved -= allocation.reserved
        allocation.reserved = 0
        references, free = self._references, self._free
        for block in reversed(allocation.blocks):
            references[block] -= 1
            if not references[block]:
                free[block] = None
        allocation.blocks = []

    def reset(self) -> bool:
        """Forgets all cached blocks of the device; False, and nothing forgotten, while any is in use.

        The host tier survives, as an external one does.
        """
        if self.used_blocks:
            return False
        self._holders.clear()
        self._copies.clear()
        self._hashes = [None] * self.blocks
        return True

    def _load(self, values: Sequence[int]) -> int:
        """Marks blocks found beyond the device as used; how many came from the external store."""
        stored = 0
        # deepest first, so that there too a root is younger than its tail
        for value in reversed(values):
            if value in self._host:
                self._host.move_to_end(value)
            else:
                stored += 1
        if stored and self.external is not None:
            self.external.put(values)
        return stored

    def _forget(self, block: int, value: int) -> None:
        """`block` holds `value` no more; if no other does, it moves to host memory."""
        copies = self._copies.get(value)
        if copies is None:
            del self._holders[value]
            self._offload(value)
            return
        if self._holders[value] == block:
            block = self._holders[value] = next(iter(copies))
        del copies[block]
        if not copies:
            del self._copies[value]

    def _offload(self, value: int) -> None:
        if not self.host_blocks:
            return
        self._host[value] = None
        self._host.move_to_end(value)
        if len(self._host) > self.host_blocks:
            self._host.popitem(last=False)
