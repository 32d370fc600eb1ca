"""Paths: the chains told lately, by their last block, so that the next turn's few blocks find the rest.

Bounded in blocks: the least recently used leave. What is not here is looked for in residency, where it costs
a walk. Called by: news.view.
"""

from __future__ import annotations

from collections import OrderedDict

from extproc import chain

__all__ = ["BLOCKS_MAX", "Paths"]

BLOCKS_MAX = 1 << 18


class Paths:
    """Whole chains by their last hash."""

    __slots__ = ("_blocks_max", "_chains", "blocks")

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        """`blocks_max`: kept in all [>= 0]."""
        self._blocks_max = blocks_max
        self._chains: OrderedDict[chain.BlockHash, tuple[chain.BlockHash, ...]] = OrderedDict()
        self.blocks = 0

    def __len__(self) -> int:
        """Chains kept."""
        return len(self._chains)

    def put(self, hashes: tuple[chain.BlockHash, ...]) -> None:
        """Keep a chain, at least one block of it."""
        before = self._chains.pop(hashes[-1], ())
        self._chains[hashes[-1]] = hashes
        self.blocks += len(hashes) - len(before)
        while self.blocks > self._blocks_max:
            _, oldest = self._chains.popitem(last=False)
            self.blocks -= len(oldest)

    def grown(self, end: chain.BlockHash) -> tuple[chain.BlockHash, ...] | None:
        """The chain that ends with `end`; it is kept no more: what it has grown to is put back."""
        found = self._chains.pop(end, None)
        if found is not None:
            self.blocks -= len(found)
        return found
