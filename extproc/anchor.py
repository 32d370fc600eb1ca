"""Anchor: the chain position whose hash is a request's ring key.

The anchor is the first block whose share of recent traffic is below 1/n, n the number of endpoints: deep
enough that no endpoint is home to more than its share, shallow enough that a conversation keeps its key
while it grows, and that prompts which could share cache share a home. A prefix that everybody sends (a
system prompt) is never the key.

Shares are counted in a radix tree of chains: an edge is a run of blocks that were always seen together,
with the decayed number of requests that passed it. All blocks of an edge have one share, so the anchor is
always the first block of an edge, known from the second request that differs. When the shares stay at or
above 1/n to the end (few conversations), the deepest edge's first block is taken, which does not move when
the conversation grows; when many prompts end inside known blocks (one hot prefix, questions shorter than a
block), the tail tells them apart.

Bounds: `edges_max` edges of at most `_DEPTH_BLOCKS` blocks, 32 MB at worst. Counts halve every
`half_life_s`, and early when the tree is full; what falls below one half is dropped. Two processes that see
the same requests find the same anchors. Never: a walk longer than the number of edges on the path.
Called by: router. Source: our rule; measured against others in docs/decisions.
"""

from __future__ import annotations

from array import array

import msgspec

from extproc import chain

__all__ = ["Anchor", "Anchors", "Hot"]

_DEPTH_BLOCKS = 1024
_FORGET_BELOW = 0.5


class Hot(msgspec.Struct, frozen=True):
    """A shared prefix before the anchor: its key, its share of traffic (0..1], blocks up to its end, and how
    many requests began with it lately (each counts half after a half-life).
    """

    key: int
    share: float
    blocks: int
    requests: float


class Anchor(msgspec.Struct, frozen=True):
    """Where the key was taken: block index (`len(chain)` stands for the tail), and the key itself.

    `hot`: the shared prefixes before it, the widest first.
    """

    block: int
    key: int
    hot: tuple[Hot, ...] = ()


class Anchors:
    """Recent traffic as a tree of chains, and the anchors it implies."""

    __slots__ = ("_edges", "_edges_max", "_half_life_s", "_halved_s", "_root")

    def __init__(self, edges_max: int = 4096, half_life_s: float = 300.0) -> None:
        """`edges_max`: bound of the tree [>= 2]; `half_life_s`: how fast traffic is forgotten [s, > 0]."""
        self._edges_max = edges_max
        self._half_life_s = half_life_s
        self._halved_s: float | None = None
        self._root = _Edge(array("Q"), 0.0)
        self._root.grows = False
        self._edges = 0

    def __len__(self) -> int:
        """Edges held."""
        return self._edges

    def observe(self, blocks: chain.Chain, endpoints: int, now: float) -> Anchor:
        """Count one request and return its anchor.

        Args: endpoints: how many share the keys [>= 1]; now [s, monotonic].
        """
        self._forget(now)
        self._count(blocks.hashes[:_DEPTH_BLOCKS])
        return self.locate(blocks, endpoints)

    def count(self, blocks: chain.Chain, now: float) -> None:
        """Count one request that another replica placed."""
        self._forget(now)
        self._count(blocks.hashes[:_DEPTH_BLOCKS])

    def locate(self, blocks: chain.Chain, endpoints: int) -> Anchor:
        """The anchor by what was counted so far; counts nothing."""
        return self._locate(blocks, endpoints)[0]

    def is_settled(self, blocks: chain.Chain, endpoints: int) -> bool:
        """Whether more of the prompt would not move its anchor; counts nothing."""
        return self._locate(blocks, endpoints)[1]

    def _locate(self, blocks: chain.Chain, endpoints: int) -> tuple[Anchor, bool]:
        hashes = blocks.hashes[:_DEPTH_BLOCKS]
        least = self._root.count / max(endpoints, 1)
        edge, start, position = self._root, 0, 0
        hot: list[Hot] = []
        while position < len(hashes):
            child = edge.children.get(hashes[position])
            if child is None:
                return Anchor(position, hashes[position], tuple(hot)), True
            edge, start = child, position
            if edge.count < least:
                return Anchor(start, hashes[start], tuple(hot)), True
            position += _common(edge.hashes, hashes, position)
            hot.append(Hot(hashes[start], edge.count / self._root.count, position, edge.count))
            if position < start + len(edge.hashes):
                break
        if not hashes or edge.ended >= least:
            return Anchor(len(blocks), blocks.tail, tuple(hot)), False
        return Anchor(start, hashes[start], tuple(hot[:-1])), False

    def foresee(self, blocks: chain.Chain, endpoints: int) -> Anchor:
        """The anchor that `observe` would return, without counting: as `locate` on counts one higher."""
        hashes = blocks.hashes[:_DEPTH_BLOCKS]
        total = self._root.count + 1
        least = total / max(endpoints, 1)
        edge, start, position = self._root, 0, 0
        ended = 0.0
        hot: list[Hot] = []
        while position < len(hashes):
            child = edge.children.get(hashes[position])
            if child is None:
                if edge.grows:  # the chain's rest would become the edge's
                    ended = edge.ended
                    hot[-1] = Hot(hot[-1].key, hot[-1].share, len(hashes), hot[-1].requests)
                    break
                return Anchor(position, hashes[position], tuple(hot))
            edge, start = child, position
            if edge.count + 1 < least:
                return Anchor(start, hashes[start], tuple(hot))
            common = _common(edge.hashes, hashes, position)
            position += common
            hot.append(Hot(hashes[start], (edge.count + 1) / total, position, edge.count + 1))
            ended = edge.ended + 1
            if common < len(edge.hashes):  # a split: its upper part has ended nobody, and one new child
                if position < len(hashes):
                    return Anchor(position, hashes[position], tuple(hot))
                ended = 1.0
        if not hashes or ended >= least:
            return Anchor(len(blocks), blocks.tail, tuple(hot))
        return Anchor(start, hashes[start], tuple(hot[:-1]))

    def _count(self, hashes: tuple[chain.BlockHash, ...]) -> None:
        edge, position = self._root, 0
        edge.count += 1
        while position < len(hashes):
            child = edge.children.get(hashes[position])
            if child is None:
                if edge.grows:
                    edge.hashes.extend(
                        hashes[position:]
                    )  # one conversation, longer by a turn: still one edge
                else:
                    self._add(edge, _Edge(array("Q", hashes[position:]), 1.0))
                return
            child.count += 1
            common = _common(child.hashes, hashes, position)
            position += common
            if common < len(child.hashes):
                self._split(child, common)  # so that an edge has one share, and requests end at ends
            edge = child
        edge.ended += 1
        edge.grows = False

    def _add(self, edge: _Edge, child: _Edge) -> None:
        edge.grows = False
        edge.children[child.hashes[0]] = child
        self._edges += 1

    def _split(self, edge: _Edge, at: int) -> None:
        # The request that forces the split was counted already, and passes only the upper part.
        lower = _Edge(edge.hashes[at:], edge.count - 1)
        lower.children, edge.children = edge.children, {}
        lower.ended, edge.ended = edge.ended, 0.0
        lower.grows = edge.grows
        edge.hashes = edge.hashes[:at]
        self._add(edge, lower)

    def _forget(self, now: float) -> None:
        if self._halved_s is None:
            self._halved_s = now
        if now - self._halved_s >= self._half_life_s:
            halvings = int((now - self._halved_s) / self._half_life_s)
            self._halved_s = now
            for _ in range(min(halvings, 64)):  # by then any count is below one
                self._halve()
        while self._edges > self._edges_max - 2:  # one request adds two edges at most
            self._halve()

    def _halve(self) -> None:
        """Halve all counts and drop the edges that became rare, with all below them."""
        self._edges = 0
        stack = [self._root]
        while stack:
            edge = stack.pop()
            edge.count /= 2
            edge.ended /= 2
            edge.children = {
                first: child for first, child in edge.children.items() if child.count / 2 >= _FORGET_BELOW
            }
            self._edges += len(edge.children)
            stack.extend(edge.children.values())


class _Edge:
    """A run of blocks; `count` requests reached it, `ended` of them had no further block.

    `grows`: every request that reached it went on to its end, so that more blocks may be appended to it.
    """

    __slots__ = ("children", "count", "ended", "grows", "hashes")

    def __init__(self, hashes: array[chain.BlockHash], count: float) -> None:
        self.hashes = hashes
        self.count = count
        self.ended = 0.0
        self.grows = True
        self.children: dict[chain.BlockHash, _Edge] = {}


def _common(edge: array[chain.BlockHash], hashes: tuple[chain.BlockHash, ...], start: int) -> int:
    """How many blocks of `edge` equal those of `hashes` from `start` on; equal hashes mean equal starts."""
    low, high = 0, min(len(edge), len(hashes) - start)
    if high and edge[high - 1] == hashes[start + high - 1]:  # nearly always: one of them ends, none differs
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if edge[middle - 1] == hashes[start + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
