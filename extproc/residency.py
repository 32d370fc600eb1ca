"""Residency: a bounded estimate of which chain hashes each endpoint holds.

Every endpoint has a tree of blocks per tier, filled at dispatch and bounded by that tier's capacity. Blocks
leave as engines drop them: least recently used first, and of one path the deepest first. So a tree always
holds whole starts of prompts. What an answer fills takes its place behind the prompt. Who holds how much of a
chain is found for all endpoints at once (see `tier`).

A tier's tree is filled by every dispatch, so the host tree (larger) contains what the gpu tree lost; the
external tier is one tree for all endpoints and outlives their restarts.

Never: a block without the block before it; more blocks than the capacity; a hit on a block idle for longer
than `idle_s`. About 220 bytes a block. Called by: router.
Source: eviction order of vLLM's free queue (see docs/routing.md).
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from extproc import chain, pool, tier
from extproc.tree import Recent, Tree

__all__ = ["NOTHING", "Capacity", "Held", "Match", "Residency"]


_TAKEN_BACK_MAX = 1024  # an answer that does not know of it is under way for seconds


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
    """Leading blocks of one chain by endpoint; who is not named holds none. `external`: held for all.

    `answered`: who holds on its GPU all of an earlier prompt and an answer behind it, where this chain goes
    on: so it is the conversation's next turn, with that answer in it.
    """

    gpu: Mapping[pool.EndpointId, int]
    host: Mapping[pool.EndpointId, int]
    external: int = 0
    answered: Collection[pool.EndpointId] = ()

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

    __slots__ = (
        "_answer_blocks",
        "_capacity",
        "_due",
        "_external",
        "_filled",
        "_gpu",
        "_host",
        "_idle_s",
        "_sizes",
        "_taken_back",
    )

    def __init__(self, capacity: Capacity, idle_s: float, answer_blocks: int = 0) -> None:
        """`idle_s`: a block unused for this long counts as gone [s, > 0]; `answer_blocks`: what the answer to
        a prompt fills behind it.
        """
        self._answer_blocks = answer_blocks
        self._capacity = capacity
        self._idle_s = idle_s
        self._gpu = tier.Tier()
        self._host = tier.Tier()
        self._external = Tree(capacity.external_blocks, {}, 1)
        self._sizes: dict[pool.EndpointId, tuple[int, int]] = {}
        # (no leaf of it was used before, number, tree), one a tree that is not empty
        self._due: list[tuple[float, int, Tree]] = []
        # when, by endpoint and end of the chain, the latest last
        self._taken_back: OrderedDict[tuple[pool.EndpointId, chain.BlockHash], float] = OrderedDict()
        self._filled = 0  # how often an empty tree got blocks; tells entries of one time apart

    def held(self, blocks: chain.Chain, now: float) -> Held:
        """How much of the chain each endpoint holds at `now` [s, monotonic]."""
        self._drop_idle(now)
        hashes = blocks.hashes
        if not hashes:
            return NOTHING
        external = self._external.depth(hashes) if self._capacity.external_blocks else 0
        gpu, answered = self._gpu.held(hashes)
        host = self._host.held(hashes)[0] if self._host.trees else {}
        return Held(gpu, host, external, answered)

    def match(self, endpoint: pool.EndpointId, blocks: chain.Chain, now: float) -> Match:
        """How much of the chain `endpoint` holds at `now` [s, monotonic]."""
        return self.held(blocks, now).of(endpoint)

    def add(self, endpoint: pool.EndpointId, blocks: chain.Chain, now: float, told: int = 0) -> int:
        """Note that `endpoint` was sent a prompt of this chain at `now` [s, monotonic].

        Returns how many leading blocks its gpu tier was thought to hold before. `told`: as in `tree`.
        """
        self._drop_idle(now)
        if self._taken_back and blocks.hashes:
            if not told:
                self.sent_again(endpoint, blocks.hashes[-1])
            elif now <= self._taken_back.get((endpoint, blocks.hashes[-1]), -math.inf):
                return 0  # by one that has not heard of it yet
        gpu_blocks, host_blocks = self._size(endpoint)
        held = self._fill(self._gpu.tree(endpoint, gpu_blocks), blocks, now, told)
        if host_blocks:
            self._fill(self._host.tree(endpoint, host_blocks), blocks, now, told)
        if self._capacity.external_blocks:
            self._fill(self._external, blocks, now, told)
        return held

    def retract(
        self,
        endpoint: pool.EndpointId,
        blocks: chain.Chain,
        noted_s: float | None,
        now: float,
        least: int = 0,
    ) -> None:
        """Take back what `add` noted at `noted_s`: the prompt went elsewhere. What others begin with stays.

        `noted_s` None, `least`: as in `tree`. Nobody else's word of it that is older than `now` [s] counts.
        """
        if blocks.hashes:
            self._taken_back[endpoint, blocks.hashes[-1]] = now
            self._taken_back.move_to_end((endpoint, blocks.hashes[-1]))
            if len(self._taken_back) > _TAKEN_BACK_MAX:
                self._taken_back.popitem(last=False)
        for each in (self._gpu, self._host):
            tree = each.trees.get(endpoint)
            if tree is not None:
                tree.retract(blocks.hashes, noted_s, least)
                if not len(tree):  # a tree is due once: this one ends, the next prompt begins another
                    each.forget(endpoint)
                    self._drop_empty()

    def sent_again(self, endpoint: pool.EndpointId, end: chain.BlockHash) -> None:
        """A prompt that ends with block `end` was sent to `endpoint`, so that others' word of it counts."""
        self._taken_back.pop((endpoint, end), None)

    def forget(self, endpoint: pool.EndpointId) -> None:
        """Drop what died with the endpoint's process: its gpu and host tiers."""
        self._forget((endpoint,))

    def retain(self, members: Collection[pool.EndpointId]) -> None:
        """Forget endpoints that are not in `members`."""
        self._forget(self._gpu.trees.keys() - set(members))
        for endpoint in self._sizes.keys() - set(members):
            del self._sizes[endpoint]

    def resize(self, endpoint: pool.EndpointId, gpu_blocks: int, host_blocks: int) -> None:
        """From now on the tiers of `endpoint` hold so many blocks [>= 0], whatever the pool's capacity is."""
        if self._sizes.get(endpoint) == (gpu_blocks, host_blocks):
            return
        self._sizes[endpoint] = gpu_blocks, host_blocks
        for each, blocks in ((self._gpu, gpu_blocks), (self._host, host_blocks)):
            if endpoint in each.trees:
                each.trees[endpoint].resize(blocks)

    def displaced_s(self, endpoint: pool.EndpointId, blocks: int) -> float:
        """When what so many more blocks would drop next from the gpu tier of `endpoint` was last used [s,
        monotonic]; -inf where nothing is dropped for them.
        """
        tree = self._gpu.trees.get(endpoint)
        return -math.inf if tree is None else tree.next_s(blocks)

    def capacity_blocks(self, endpoint: pool.EndpointId) -> int:
        """Blocks the gpu tier of `endpoint` may hold."""
        return self._size(endpoint)[0]

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

    def recent(self, endpoint: pool.EndpointId, oldest_s: float) -> Iterator[Recent]:
        """What the gpu tier of `endpoint` holds that was used since `oldest_s`, the latest first.

        Each block once. Lazy, and what leaves meanwhile is left out.
        """
        tree = self._gpu.trees.get(endpoint)
        return iter(()) if tree is None else tree.recent(oldest_s)

    def _size(self, endpoint: pool.EndpointId) -> tuple[int, int]:
        return self._sizes.get(endpoint, (self._capacity.gpu_blocks, self._capacity.host_blocks))

    def _fill(self, tree: Tree, blocks: chain.Chain, now: float, told: int) -> int:
        was_empty = not len(tree)
        answer_blocks = 0 if tree is self._external else self._answer_blocks
        held = tree.add(blocks.hashes, now, answer_blocks, told)
        if was_empty and len(tree):
            self._filled += 1
            heapq.heappush(self._due, (now, self._filled, tree))
        return held

    def _forget(self, endpoints: Collection[pool.EndpointId]) -> None:
        for endpoint in endpoints:
            self._gpu.forget(endpoint)
            self._host.forget(endpoint)
        self._drop_empty()

    def _drop_empty(self) -> None:
        self._due = [due for due in self._due if len(due[2])]
        heapq.heapify(self._due)

    def _drop_idle(self, now: float) -> None:
        oldest_s = now - self._idle_s
        while self._due and self._due[0][0] < oldest_s:
            _, number, tree = self._due[0]
            tree.drop_before(oldest_s)
            if len(tree):
                heapq.heapreplace(self._due, (tree.oldest_s, number, tree))
            else:
                heapq.heappop(self._due)
