"""Tier: who holds which block of one tier, over the trees of all endpoints.

Along a chain the holders only become fewer, so that who holds how much of it is found for all endpoints at
once: one bisection, O(log blocks), for each place where they change, and not one for each endpoint.

Never: a holder whose tree lacks the block. Called by: residency.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from extproc import chain, pool
from extproc.tree import Tree

__all__ = ["Tier"]

_NAMES_MAX = 1024  # sets of holders whose names are remembered


@dataclass(slots=True)
class Tier:
    """One tier of all endpoints.

    `holders`: by block, a bit for each endpoint that holds it; by the complement (~) of a prompt's end, one
    for each that holds an answer to it; never 0. `owners`: whose bit is which, `free`: bits of endpoints that
    left. `names`: who stands behind a set of bits, of those asked for lately.
    """

    trees: dict[pool.EndpointId, Tree] = field(default_factory=dict)
    holders: dict[chain.BlockHash, int] = field(default_factory=dict)
    owners: list[pool.EndpointId] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    names: dict[int, tuple[pool.EndpointId, ...]] = field(default_factory=dict)

    def tree(self, endpoint: pool.EndpointId, capacity: int) -> Tree:
        """The tree of `endpoint`, a new one of `capacity` blocks if it has none."""
        found = self.trees.get(endpoint)
        if found is None:
            number = self.free.pop() if self.free else len(self.owners)
            self.owners[number : number + 1] = [endpoint]
            found = self.trees[endpoint] = Tree(capacity, self.holders, 1 << number)
        return found

    def forget(self, endpoint: pool.EndpointId) -> None:
        """Drop its tree."""
        tree = self.trees.pop(endpoint, None)
        if tree is not None:
            tree.clear()
            self.free.append(tree.bit.bit_length() - 1)
            self.names.clear()

    def held(
        self, hashes: tuple[chain.BlockHash, ...]
    ) -> tuple[dict[pool.EndpointId, int], tuple[pool.EndpointId, ...]]:
        """Leading blocks of a chain [not empty] by endpoint, of those that hold any; and who of them holds an
        answer behind, where the chain goes on.
        """
        found: dict[pool.EndpointId, int] = {}
        answered = 0
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
            if depth == len(hashes):
                break
            further = holders.get(hashes[depth], 0)
            answered |= holders.get(~hashes[depth - 1], 0) & bits & ~further
            bits = further
        return found, self._named(answered) if answered else ()

    def _named(self, bits: int) -> tuple[pool.EndpointId, ...]:
        names = self.names.get(bits)
        if names is None:
            if len(self.names) >= _NAMES_MAX:
                self.names.clear()
            names = tuple(owner for number, owner in enumerate(self.owners) if bits >> number & 1)
            self.names[bits] = names
        return names
