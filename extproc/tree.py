"""Tree: the blocks of one tier of one endpoint, each the child of the block before it.

It holds whole starts of prompts: blocks leave least recently used first, of one path the deepest first.
Behind a prompt stand the blocks that its answer fills. Their hashes are not known, but engines keep them as
they keep prompts, and drop older blocks for them; and a prompt that goes on behind all of an earlier one is
the next turn of its conversation, which has that answer in it.

Prompts are taken back where they went elsewhere than was told. So every block counts the prompts that end
with it: what stays is what some prompt that was not taken back begins with, in whatever order they were added
and taken back, here and in other replicas of kvring.

Never: a block without the block before it; more blocks than the capacity.
Called by: tier, residency.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from extproc import chain

__all__ = ["Recent", "Tree"]

_MOMENTS_PER_S = 1_000_000
_SPARE_ENTRIES = 64  # of the heap, more than twice the blocks: to sweep it costs as much as it has


@dataclass(frozen=True, slots=True)
class Recent:
    """Blocks of one path: `hashes`, behind block `back` at `depth` blocks (0, 0: from the start).

    `used_s`: when they were used [monotonic]; `prompts`: that end with the last one [>= 0].
    """

    back: chain.BlockHash
    depth: int
    hashes: tuple[chain.BlockHash, ...]
    used_s: float
    prompts: int


class _Node:
    __slots__ = ("answers", "block", "children", "depth", "ends", "parent", "queued", "size", "used_s")

    def __init__(self, block: chain.BlockHash, parent: _Node | None, depth: int, used_s: float) -> None:
        self.block = block
        self.parent = parent
        self.depth = depth
        self.used_s = used_s
        self.children = 0
        self.answers = 0  # of the children
        self.ends = 0  # prompts that end here, or ended behind it with what has left since
        self.queued = False
        self.size = 1  # blocks; more only of an answer


class Tree:
    """Blocks, the oldest of which leave.

    `_leaves` is a heap of (used_s, -depth, hash), one entry or more of each leaf. Touching a path only stamps
    its last block: entries are put right when they come to the top, those of blocks that were taken back
    leave there, and a parent takes over the stamp of a child that leaves, and the prompts that end there.
    `_began_s`: when the first prompt came. `_holders`: those of its tier, where its blocks have the bit
    `bit`.
    """

    __slots__ = ("_answered", "_began_s", "_capacity", "_holders", "_leaves", "_nodes", "bit")

    def __init__(self, capacity: int, holders: dict[chain.BlockHash, int], bit: int) -> None:
        self._capacity = capacity
        self._holders = holders
        self.bit = bit
        self._nodes: dict[chain.BlockHash, _Node] = {}
        self._answered = 0  # blocks of answers, beyond one a node
        self._began_s = math.inf
        self._leaves: list[tuple[float, int, chain.BlockHash]] = []

    def __len__(self) -> int:
        return len(self._nodes) + self._answered

    @property
    def oldest_s(self) -> float:
        """No leaf was last used before [s]."""
        return self._leaves[0][0] if self._leaves else math.inf

    def next_s(self, blocks: int) -> float:
        """When what leaves next for so many more was last used [s]; -inf if there is room for them."""
        if len(self) + blocks <= self._capacity:
            return -math.inf
        self._settle_top()
        return self._leaves[0][0] if self._leaves else -math.inf

    def add(
        self, hashes: tuple[chain.BlockHash, ...], now: float, answer_blocks: int = 0, told: int = 0
    ) -> int:
        """Hold these, used at `now` [s], and an answer behind; of more than there is space for, the first.

        Returns how many leading ones it held before. `told`: nobody was sent them now, but another replica
        says that so many prompts end here [>= 1], which may have been counted here before.
        """
        hashes = hashes[: self._capacity]
        if not hashes:
            return 0
        self._began_s = min(self._began_s, now)
        held = self.depth(hashes)
        nodes = self._nodes
        node: _Node | None = None
        if held:
            node = nodes[hashes[held - 1]]
            node.used_s = max(node.used_s, now)
        for depth in range(held, len(hashes)):
            block = hashes[depth]
            if block in nodes:  # behind another block: no chain has that, a stranger's message may
                answer_blocks = 0
                break
            if node is not None:
                node.children += 1
            node = nodes[block] = _Node(block, node, depth, now)
            self._hold(block)
        if node is not None:
            node.ends = max(node.ends, told) if told else node.ends + 1
        if node is not None and answer_blocks and not (told and node.answers):
            node = self._answer(node, answer_blocks, now)
        if node is not None:
            self._queue_leaf(node)
        self._fit()
        return held

    def _answer(self, prompt: _Node, count: int, now: float) -> _Node:
        """The node of `count` blocks that an answer to the prompt which ends with `prompt` fills."""
        block = _answer(prompt.block, now)
        node = self._nodes.get(block)
        if node is None:
            prompt.children += 1
            node = self._nodes[block] = _Node(block, prompt, prompt.depth + 1, now)
            node.size = count
            self._answered += count - 1
            prompt.answers += 1
            if prompt.answers == 1:
                self._hold(~prompt.block)
        return node if node.parent is prompt else prompt  # else a stranger chose hashes so that names meet

    def retract(self, hashes: tuple[chain.BlockHash, ...], noted_s: float | None, least: int) -> None:
        """Take back a prompt that was added at `noted_s` [s]: what no other one begins with leaves.

        `noted_s`: None where it is not known when it was added, or whether at all; then at least `least`
        blocks stay.
        """
        if noted_s is not None and noted_s < self._began_s:
            return  # all that was told by then has left
        depth = self.depth(hashes)
        if not depth:
            return
        node = self._nodes[hashes[depth - 1]]
        if noted_s is None:
            if depth < len(hashes) or (depth <= least and node.ends < 2):
                return  # it was not counted here, or it is another one's, for all we know
            answer = self._some_answer(node)
        else:
            least, answer = 0, self._nodes.get(_answer(node.block, noted_s))
        if answer is not None and answer.parent is node:
            self._drop(answer)
        counted = node
        while not counted.ends and counted.parent is not None:  # it moved up, with blocks that left
            counted = counted.parent
        counted.ends = max(counted.ends - 1, 0)
        while not (node.children or node.ends) and node.depth >= least:
            self._drop(node)
            if node.parent is None:
                break
            node = node.parent
        else:
            self._queue_leaf(node)
        if len(self._leaves) > 2 * len(self._nodes) + _SPARE_ENTRIES:
            entries = {entry[2]: entry for entry in self._leaves if entry[2] in self._nodes}
            self._leaves = list(entries.values())
            heapq.heapify(self._leaves)

    def _some_answer(self, prompt: _Node) -> _Node | None:
        """An answer to the prompt that ends with `prompt`, None if there is none."""
        if not prompt.answers:
            return None
        answers = (self._nodes.get(block) for _, _, block in self._leaves if block < 0)
        return next((node for node in answers if node is not None and node.parent is prompt), None)

    def _drop(self, node: _Node) -> None:
        """A leaf leaves that was taken back."""
        del self._nodes[node.block]
        self._let_go(node)
        if node.parent is not None:
            node.parent.children -= 1

    def resize(self, capacity: int) -> None:
        """Hold at most `capacity` blocks from now on."""
        self._capacity = capacity
        self._fit()

    def clear(self) -> None:
        """Hold nothing."""
        for node in self._nodes.values():
            self._let_go(node)
        self._nodes.clear()
        self._leaves.clear()

    def _hold(self, block: chain.BlockHash) -> None:
        self._holders[block] = self._holders.get(block, 0) | self.bit

    def _let_go(self, node: _Node) -> None:
        block = node.block
        if block < 0:  # of an answer
            self._answered -= node.size - 1
            prompt = node.parent
            if prompt is None:
                return
            prompt.answers -= 1
            if prompt.answers:
                return
            block = ~prompt.block
        others = self._holders[block] & ~self.bit
        if others:
            self._holders[block] = others
        else:
            del self._holders[block]

    def _fit(self) -> None:
        while len(self) > self._capacity:
            self._settle_top()
            self._drop_top(len(self) - self._capacity)

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

    def recent(self, oldest_s: float) -> Iterator[Recent]:
        """What was used since `oldest_s` [s, monotonic], the latest first; see `residency`."""
        found = (self._nodes.get(block) for block in {block for _, _, block in self._leaves})
        ends = [node for node in found if node and not node.children and node.used_s >= oldest_s]
        ends.sort(key=lambda node: (node.used_s, node.block), reverse=True)
        told: set[chain.BlockHash] = set()
        for end in ends:
            if self._nodes.get(end.block) is not end:
                continue
            hashes: list[chain.BlockHash] = []
            node: _Node | None = end
            prompts = end.ends if end.parent is None or end.block >= 0 else end.parent.ends
            while node is not None and node.block not in told:
                if node.block >= 0:
                    hashes.append(node.block)
                node = node.parent
            told.update(hashes)
            if hashes:  # none behind an answer to what was told already
                back, depth = (0, 0) if node is None else (node.block, node.depth + 1)
                yield Recent(back, depth, tuple(reversed(hashes)), end.used_s, prompts)

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

    def _drop_top(self, most: int) -> None:
        """Drop the leaf that is first to leave, and those before it while they are next; `most` >= 1."""
        leaves = self._leaves
        node = self._nodes[heapq.heappop(leaves)[2]]
        while True:
            del self._nodes[node.block]
            self._let_go(node)
            most -= node.size
            parent = node.parent
            if parent is None:
                return
            parent.children -= 1
            parent.used_s = max(parent.used_s, node.used_s)
            parent.ends += node.ends
            if parent.children or parent.queued:
                return
            entry = (parent.used_s, -parent.depth, parent.block)
            if most <= 0 or (leaves and leaves[0] < entry):
                parent.queued = True
                heapq.heappush(leaves, entry)
                return
            node = parent


def _answer(block: chain.BlockHash, now: float) -> chain.BlockHash:
    """What names the answer given at `now` to the prompt that ends with `block`: below 0, as no hash is."""
    return -1 - abs(block ^ round(now * _MOMENTS_PER_S))  # a peer's moment can lie before this clock's 0
