"""Residency: a bounded estimate of which chain hashes each endpoint holds.

Every endpoint has a tree of blocks per tier, filled at dispatch and bounded by that tier's capacity. Blocks
leave as engines drop them: least recently used first, and of one path the deepest first. So a tree always
holds whole starts of prompts.

Beside the trees, every block of a tier has its holders, a bit for each endpoint. Along a chain the holders
only become fewer, so who holds how much of it is found for all endpoints at once: one bisection,
O(log blocks), for each place where they change, and not one for each endpoint.

A tier's tree is filled by every dispatch, so the host tree (larger) contains what the gpu tree lost; the
external tier is one tree for all endpoints and outlives their restarts.

Never: a block without the block before it; more blocks than the capacity; a hit on a block idle for longer
than `idle_s`. About 200 bytes a block. Called by: router.
Source: eviction order of vLLM's free queue (see docs/routing.md).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from extproc import chain, pool

__all__ = ["NOTHING", "Capacity", "Held", "Match", "Recent", "Residency"]

_NAMES_MAX = 1024  # sets of holders whose names are remembered


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


@dataclass(frozen=True, slots=True)
class Held:
    """Leading blocks of one chain by endpoint; who is not named holds none. `external`: held for all."""

    gpu: Mapping[pool.EndpointId, int]
    host: Mapping[pool.EndpointId, int]
    external: int = 0

    def of(self, endpoint: pool.EndpointId) -> Match:
        """What `endpoint` holds."""
        gpu = self.gpu.get(endpoint, 0)
        return Match(gpu, max(gpu, self.host.get(endpoint, 0), self.external))

    @property
    def most(self) -> int:
        """What the one that holds most of it holds [blocks]."""
        return max(self.external, *self.gpu.values(), *self.host.values(), 0)


NOTHING = Held({}, {})
"""Nobody holds anything."""


class Residency:
    """Estimates for all endpoints of a pool."""

    __slots__ = ("_capacity", "_due", "_external", "_gpu", "_host", "_idle_s", "_sizes")

    def __init__(self, capacity: Capacity, idle_s: float) -> None:
        """`idle_s`: a block unused for this long counts as gone [s, > 0]."""
        self._capacity = capacity
        self._idle_s = idle_s
        self._gpu = _Tier()
        self._host = _Tier()
        self._external = _Tree(capacity.external_blocks, {}, 1)
        self._sizes: dict[pool.EndpointId, tuple[int, int]] = {}
        # (no block of it was used before, number, tree), one a tree that is not empty
        self._due: list[tuple[float, int, _Tree]] = []

    def held(self, blocks: chain.Chain, now: float) -> Held:
        """How much of the chain each endpoint holds at `now` [s, monotonic]."""
        self._drop_idle(now)
        hashes = blocks.hashes
        if not hashes:
            return NOTHING
        external = self._external.depth(hashes) if self._capacity.external_blocks else 0
        return Held(self._gpu.held(hashes), self._host.held(hashes), external)

    def match(self, endpoint: pool.EndpointId, blocks: chain.Chain, now: float) -> Match:
        """How much of the chain `endpoint` holds at `now` [s, monotonic]."""
        return self.held(blocks, now).of(endpoint)

    def add(self, endpoint: pool.EndpointId, blocks: chain.Chain, now: float) -> None:
        """Note that `endpoint` was sent a prompt of this chain at `now` [s, monotonic]."""
        self._drop_idle(now)
        gpu_blocks, host_blocks = self._size(endpoint)
        self._fill(self._gpu.tree(endpoint, gpu_blocks), blocks, now)
        if host_blocks:
            self._fill(self._host.tree(endpoint, host_blocks), blocks, now)
        if self._capacity.external_blocks:
            self._fill(self._external, blocks, now)

    def forget(self, endpoint: pool.EndpointId) -> None:
        """Drop what died with the endpoint's process: its gpu and host tiers."""
        self._gpu.forget(endpoint)
        self._host.forget(endpoint)

    def retain(self, members: Collection[pool.EndpointId]) -> None:
        """Forget endpoints that are not in `members`."""
        for endpoint in self._gpu.trees.keys() - set(members):
            self.forget(endpoint)
        for endpoint in self._sizes.keys() - set(members):
            del self._sizes[endpoint]

    def resize(self, endpoint: pool.EndpointId, gpu_blocks: int, host_blocks: int) -> None:
        """From now on the tiers of `endpoint` hold so many blocks [>= 0], whatever the pool's capacity is."""
        if self._sizes.get(endpoint) == (gpu_blocks, host_blocks):
            return
        self._sizes[endpoint] = gpu_blocks, host_blocks
        for tier, blocks in ((self._gpu, gpu_blocks), (self._host, host_blocks)):
            if endpoint in tier.trees:
                tier.trees[endpoint].resize(blocks)

    def blocks(self, endpoint: pool.EndpointId) -> int:
        """Blocks the gpu tier of `endpoint` is thought to hold."""
        tree = self._gpu.trees.get(endpoint)
        return 0 if tree is None else len(tree)

    def path(self, block: chain.BlockHash) -> tuple[chain.BlockHash, ...]:
        """The whole chain up to `block`, () if nobody is thought to hold it."""
        for tree in (*self._gpu.trees.values(), *self._host.trees.values(), self._external):
            found = tree.path(block)
            if found:
                return found
        return ()

    def recent(self, endpoint: pool.EndpointId, oldest_s: float, now: float) -> Iterator[Recent]:
        """What the gpu tier of `endpoint` holds that was used since `oldest_s`, the latest first.

        Each block once. Lazy, and what leaves meanwhile is left out.
        """
        tree = self._gpu.trees.get(endpoint)
        return iter(()) if tree is None else tree.recent(oldest_s, now)

    def _size(self, endpoint: pool.EndpointId) -> tuple[int, int]:
        return self._sizes.get(endpoint, (self._capacity.gpu_blocks, self._capacity.host_blocks))

    def capacity_blocks(self, endpoint: pool.EndpointId) -> int:
        """Blocks the gpu tier of `endpoint` may hold."""
        return self._size(endpoint)[0]

    def _fill(self, tree: _Tree, blocks: chain.Chain, now: float) -> None:
        was_empty = not len(tree)
        tree.add(blocks.hashes, now)
        if was_empty and len(tree):
            heapq.heappush(self._due, (now, id(tree), tree))

    def _drop_idle(self, now: float) -> None:
        oldest_s = now - self._idle_s
        while self._due and self._due[0][0] < oldest_s:
            _, number, tree = self._due[0]
            tree.drop_before(oldest_s)
            if len(tree):
                heapq.heapreplace(self._due, (tree.oldest_s, number, tree))
            else:
                heapq.heappop(self._due)


@dataclass(slots=True)
class _Tier:
    """One tier of all endpoints.

    `holders`: by block, a bit for each endpoint that holds it; never 0. `owners`: whose bit is which, `free`:
    bits of endpoints that left. `names`: who stands behind a set of bits, of those asked for lately.
    """

    trees: dict[pool.EndpointId, _Tree] = field(default_factory=dict)
    holders: dict[chain.BlockHash, int] = field(default_factory=dict)
    owners: list[pool.EndpointId] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    names: dict[int, tuple[pool.EndpointId, ...]] = field(default_factory=dict)

    def tree(self, endpoint: pool.EndpointId, capacity: int) -> _Tree:
        """The tree of `endpoint`, a new one of `capacity` blocks if it has none."""
        found = self.trees.get(endpoint)
        if found is None:
            number = self.free.pop() if self.free else len(self.owners)
            self.owners[number : number + 1] = [endpoint]
            found = self.trees[endpoint] = _Tree(capacity, self.holders, 1 << number)
        return found

    def forget(self, endpoint: pool.EndpointId) -> None:
        """Drop its tree."""
        tree = self.trees.pop(endpoint, None)
        if tree is not None:
            tree.clear()
            self.free.append(tree.bit.bit_length() - 1)
            self.names.clear()

    def held(self, hashes: tuple[chain.BlockHash, ...]) -> dict[pool.EndpointId, int]:
        """Leading blocks of a chain [not empty] by endpoint, of those that hold any."""
        found: dict[pool.EndpointId, int] = {}
        holders = self.holders
        depth, bits = 0, holders.get(hashes[0], 0)
        while bits:
            low, high = depth, len(hashes) - 1  # hashes[low] has these holders
            while low < high:
                middle = (low + high + 1) // 2
                if holders.get(hashes[middle]) == bits:
                    low = middle
                else:
                    high = middle - 1
            depth = low + 1
            found.update(dict.fromkeys(self._named(bits), depth))
            bits = holders.get(hashes[depth], 0) if depth < len(hashes) else 0
        return found

    def _named(self, bits: int) -> tuple[pool.EndpointId, ...]:
        names = self.names.get(bits)
        if names is None:
            if len(self.names) >= _NAMES_MAX:
                self.names.clear()
            names = tuple(owner for number, owner in enumerate(self.owners) if bits >> number & 1)
            self.names[bits] = names
        return names


@dataclass(frozen=True, slots=True)
class Recent:
    """Blocks of one path: `hashes`, behind block `back` at `depth` blocks (0, 0: from the start), used
    `age_s` ago.
    """

    back: chain.BlockHash
    depth: int
    hashes: tuple[chain.BlockHash, ...]
    age_s: float


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
    a child that leaves. `_holders`: those of its tier, where its blocks have the bit `bit`.
    """

    __slots__ = ("_capacity", "_holders", "_leaves", "_nodes", "bit")

    def __init__(self, capacity: int, holders: dict[chain.BlockHash, int], bit: int) -> None:
        self._capacity = capacity
        self._holders = holders
        self.bit = bit
        self._nodes: dict[chain.BlockHash, _Node] = {}
        self._leaves: list[tuple[float, int, chain.BlockHash]] = []

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def oldest_s(self) -> float:
        """No leaf was last used before [s]."""
        return self._leaves[0][0] if self._leaves else math.inf

    def add(self, hashes: tuple[chain.BlockHash, ...], now: float) -> None:
        hashes = hashes[: self._capacity]
        if not hashes:
            return
        held = self.depth(hashes)
        nodes, holders, bit = self._nodes, self._holders, self.bit
        node: _Node | None = None
        if held:
            node = nodes[hashes[held - 1]]
            node.used_s = max(node.used_s, now)
        for depth in range(held, len(hashes)):
            block = hashes[depth]
            if block in nodes:  # behind another block: no chain has that, a stranger's message may
                break
            if node is not None:
                node.children += 1
            node = nodes[block] = _Node(block, node, depth, now)
            others = holders.get(block)
            holders[block] = bit if others is None else others | bit
        if node is not None:
            self._queue_leaf(node)
        self._fit()

    def resize(self, capacity: int) -> None:
        """Hold at most `capacity` blocks from now on."""
        self._capacity = capacity
        self._fit()

    def clear(self) -> None:
        """Hold nothing."""
        for block in self._nodes:
            self._let_go(block)
        self._nodes.clear()
        self._leaves.clear()

    def _let_go(self, block: chain.BlockHash) -> None:
        others = self._holders[block] & ~self.bit
        if others:
            self._holders[block] = others
        else:
            del self._holders[block]

    def _fit(self) -> None:
        while len(self._nodes) > self._capacity:
            self._settle_top()
            self._drop_top(len(self._nodes) - self._capacity)

    def depth(self, hashes: tuple[chain.BlockHash, ...]) -> int:
        """How many leading ones of `hashes` it holds."""
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

    def path(self, block: chain.BlockHash) -> tuple[chain.BlockHash, ...]:
        """The chain up to `block`, () if it is not held."""
        found: list[chain.BlockHash] = []
        node = self._nodes.get(block)
        while node is not None:
            found.append(node.block)
            node = node.parent
        return tuple(reversed(found))

    def recent(self, oldest_s: float, now: float) -> Iterator[Recent]:
        """See `Residency.recent`."""
        ends = [self._nodes[block] for _, _, block in self._leaves]
        ends = [node for node in ends if not node.children and node.used_s >= oldest_s]
        ends.sort(key=lambda node: (node.used_s, node.block), reverse=True)
        told: set[chain.BlockHash] = set()
        for end in ends:
            if self._nodes.get(end.block) is not end:
                continue
            hashes: list[chain.BlockHash] = []
            node: _Node | None = end
            while node is not None and node.block not in told:
                hashes.append(node.block)
                node = node.parent
            told.update(hashes)
            if hashes:
                back, depth = (0, 0) if node is None else (node.block, node.depth + 1)
                yield Recent(back, depth, tuple(reversed(hashes)), now - end.used_s)

    def drop_before(self, oldest_s: float) -> None:
        """Drop what was last used before `oldest_s`."""
        while self._leaves and self._leaves[0][0] < oldest_s:
            self._settle_top()
            if self._leaves and self._leaves[0][0] < oldest_s:
                self._drop_top(1)

    def _queue_leaf(self, node: _Node) -> None:
        if not node.queued and not node.children:
            node.queued = True
            heapq.heappush(self._leaves, (node.used_s, -node.depth, node.block))

    def _settle_top(self) -> None:
        """Make the top of the heap a leaf with its true stamp, the one to leave first."""
        leaves = self._leaves
        while leaves:
            used_s, depth, block = leaves[0]
            node = self._nodes[block]
            if node.children:
                heapq.heappop(leaves)
                node.queued = False
            elif node.used_s > used_s:
                heapq.heapreplace(leaves, (node.used_s, depth, block))
            else:
                return

    def _drop_top(self, most: int) -> None:
        """Drop the leaf that is first to leave, and those before it while they are next; `most` >= 1."""
        leaves = self._leaves
        node = self._nodes[heapq.heappop(leaves)[2]]
        while True:
            del self._nodes[node.block]
            self._let_go(node.block)
            most -= 1
            parent = node.parent
            if parent is None:
                return
            parent.children -= 1
            parent.used_s = max(parent.used_s, node.used_s)
            if parent.children or parent.queued:
                return
            entry = (parent.used_s, -parent.depth, parent.block)
            if not most or (leaves and leaves[0] < entry):
                parent.queued = True
                heapq.heappush(leaves, entry)
                return
            node = parent
