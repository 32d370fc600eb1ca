"""Residency: a bounded estimate of which chain hashes each endpoint holds.

Every endpoint has a tree of blocks per tier, filled at dispatch and bounded by that tier's capacity. Blocks
leave as engines drop them: least recently used first, and of one path the deepest first. So a tree always
holds whole starts of prompts, and how much of a chain it holds is found by bisection in
O(log blocks) instead of a walk.

A tier's tree is filled by every dispatch, so the host tree (larger) contains what the gpu tree lost; the
external tier is one tree for all endpoints and outlives their restarts.

Never: a block without the block before it; more blocks than the capacity; a hit on a block idle for longer
than `idle_s`. About 150 bytes a block. Called by: router.
Source: eviction order of vLLM's free queue (see docs/routing.md).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass

from extproc import chain, pool

__all__ = ["Capacity", "Match", "Residency"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """Blocks a tier may hold [>= 0]: gpu and host for each endpoint, external for all together."""

    gpu_blocks: int
    host_blocks: int = 0
    external_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """Leading blocks of a chain held in the gpu tier, and in any tier (`any_blocks` >= `gpu_blocks`)."""

    gpu_blocks: int
    any_blocks: int


class Residency:
    """Estimates for all endpoints of a pool."""

    __slots__ = ("_capacity", "_external", "_gpu", "_host", "_idle_s", "_sizes")

    def __init__(self, capacity: Capacity, idle_s: float) -> None:
        """`idle_s`: a block unused for this long counts as gone [s, > 0]."""
        self._capacity = capacity
        self._idle_s = idle_s
        self._gpu: dict[pool.EndpointId, _Tree] = {}
        self._host: dict[pool.EndpointId, _Tree] = {}
        self._external = _Tree(capacity.external_blocks, idle_s)
        self._sizes: dict[pool.EndpointId, tuple[int, int]] = {}

    def match(self, endpoint: pool.EndpointId, blocks: chain.Chain, now: float) -> Match:
        """How much of the chain `endpoint` holds at `now` [s, monotonic]."""
        gpu = self._gpu.get(endpoint)
        held = gpu.held(blocks.hashes, now) if gpu is not None else 0
        most = held
        host = self._host.get(endpoint)
        if host is not None:
            most = max(most, host.held(blocks.hashes, now))
        if self._capacity.external_blocks:
            most = max(most, self._external.held(blocks.hashes, now))
        return Match(held, most)

    def add(self, endpoint: pool.EndpointId, blocks: chain.Chain, now: float) -> int:
        """Note that `endpoint` was sent a prompt of this chain at `now` [s, monotonic].

        Returns how many leading blocks its gpu tier was thought to hold before.
        """
        gpu_blocks, host_blocks = self._size(endpoint)
        if endpoint not in self._gpu:
            self._gpu[endpoint] = _Tree(gpu_blocks, self._idle_s)
        held = self._gpu[endpoint].add(blocks.hashes, now)
        if host_blocks:
            if endpoint not in self._host:
                self._host[endpoint] = _Tree(host_blocks, self._idle_s)
            self._host[endpoint].add(blocks.hashes, now)
        if self._capacity.external_blocks:
            self._external.add(blocks.hashes, now)
        return held

    def retract(self, endpoint: pool.EndpointId, blocks: chain.Chain, held: int, noted_s: float) -> None:
        """Take back what `add` noted at `noted_s`, when `held` blocks were held: the prompt went elsewhere.

        What others have used since stays.
        """
        for trees in (self._gpu, self._host):
            if endpoint in trees:
                trees[endpoint].retract(blocks.hashes, held, noted_s)

    def forget(self, endpoint: pool.EndpointId) -> None:
        """Drop what died with the endpoint's process: its gpu and host tiers."""
        self._gpu.pop(endpoint, None)
        self._host.pop(endpoint, None)

    def retain(self, members: Collection[pool.EndpointId]) -> None:
        """Forget endpoints that are not in `members`."""
        for endpoint in self._gpu.keys() - set(members):
            self.forget(endpoint)
        for endpoint in self._sizes.keys() - set(members):
            del self._sizes[endpoint]

    def resize(self, endpoint: pool.EndpointId, gpu_blocks: int, host_blocks: int) -> None:
        """From now on the tiers of `endpoint` hold so many blocks [>= 0], whatever the pool's capacity is."""
        if self._sizes.get(endpoint) == (gpu_blocks, host_blocks):
            return
        self._sizes[endpoint] = gpu_blocks, host_blocks
        for trees, blocks in ((self._gpu, gpu_blocks), (self._host, host_blocks)):
            if endpoint in trees:
                trees[endpoint].resize(blocks)

    def _size(self, endpoint: pool.EndpointId) -> tuple[int, int]:
        return self._sizes.get(endpoint, (self._capacity.gpu_blocks, self._capacity.host_blocks))

    def blocks(self, endpoint: pool.EndpointId) -> int:
        """Blocks the gpu tier of `endpoint` is thought to hold."""
        tree = self._gpu.get(endpoint)
        return 0 if tree is None else len(tree)


class _Node:
    __slots__ = ("block", "children", "depth", "parent", "queued", "used_s")

    def __init__(self, block: chain.BlockHash, parent: _Node | None, depth: int, used_s: float) -> None:
        self.block = block
        self.parent = parent
        self.depth = depth
        self.used_s = used_s
        self.children = 0
        self.queued = False


class _Tree:
    """Blocks of one tier, each the child of the block before it.

    `_leaves` is a heap of (used_s, -depth, hash), at most one entry a block. Touching a path only stamps
    its last block: entries are put right when they come to the top, and a parent takes over the stamp of
    a child that leaves.
    """

    __slots__ = ("_capacity", "_idle_s", "_leaves", "_nodes")

    def __init__(self, capacity: int, idle_s: float) -> None:
        self._capacity = capacity
        self._idle_s = idle_s
        self._nodes: dict[chain.BlockHash, _Node] = {}
        self._leaves: list[tuple[float, int, chain.BlockHash]] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def held(self, hashes: tuple[chain.BlockHash, ...], now: float) -> int:
        self._drop_idle(now)
        return self._depth(hashes)

    def add(self, hashes: tuple[chain.BlockHash, ...], now: float) -> int:
        """How many leading ones were held before."""
        self._drop_idle(now)
        hashes = hashes[: self._capacity]
        if not hashes:
            return 0
        held = self._depth(hashes)
        nodes = self._nodes
        node: _Node | None = None
        if held:
            node = nodes[hashes[held - 1]]
            node.used_s = max(node.used_s, now)
        for depth in range(held, len(hashes)):
            if node is not None:
                node.children += 1
            node = nodes[hashes[depth]] = _Node(hashes[depth], node, depth, now)
        if node is not None:
            self._queue_leaf(node)
        self._fit()
        return held

    def retract(self, hashes: tuple[chain.BlockHash, ...], held: int, noted_s: float) -> None:
        """Drop the blocks behind the first `held`, from the end, unless they were used after `noted_s`.

        Their entries in the heap stay, and are passed over there.
        """
        for block in reversed(hashes[held:]):
            node = self._nodes.get(block)
            if node is None:
                continue
            if node.children or node.used_s > noted_s:
                return
            del self._nodes[block]
            if node.parent is not None:
                node.parent.children -= 1
                self._queue_leaf(node.parent)

    def resize(self, capacity: int) -> None:
        """Hold at most `capacity` blocks from now on."""
        self._capacity = capacity
        self._fit()

    def _fit(self) -> None:
        while len(self._nodes) > self._capacity:
            self._settle_top()
            self._drop_top()

    def _depth(self, hashes: tuple[chain.BlockHash, ...]) -> int:
        nodes = self._nodes
        if not hashes or hashes[0] not in nodes:
            return 0
        low, high = 1, len(hashes)  # hashes[:low] is held
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in nodes:
                low = middle
            else:
                high = middle - 1
        return low

    def _drop_idle(self, now: float) -> None:
        oldest_s = now - self._idle_s
        while self._leaves and self._leaves[0][0] < oldest_s:
            self._settle_top()
            if self._leaves and self._leaves[0][0] < oldest_s:
                self._drop_top()

    def _queue_leaf(self, node: _Node) -> None:
        if not node.queued and not node.children:
            node.queued = True
            heapq.heappush(self._leaves, (node.used_s, -node.depth, node.block))

    def _settle_top(self) -> None:
        """Make the top of the heap a leaf with its true stamp, the one to leave first."""
        leaves = self._leaves
        while leaves:
            used_s, depth, block = leaves[0]
            node = self._nodes.get(block)
            if node is None:
                heapq.heappop(leaves)
            elif node.children:
                heapq.heappop(leaves)
                node.queued = False
            elif node.used_s > used_s:
                heapq.heapreplace(leaves, (node.used_s, depth, block))
            else:
                return

    def _drop_top(self) -> None:
        _, _, block = heapq.heappop(self._leaves)
        node = self._nodes.pop(block)
        parent = node.parent
        if parent is not None:
            parent.children -= 1
            parent.used_s = max(parent.used_s, node.used_s)
            self._queue_leaf(parent)
