"""Homes: ring order of a key within the homes of the shared prefixes it stands on.

A prefix with share s of the traffic has about s * n homes, rounded up: the first endpoints of its own ring
order. The key behind it chooses among these, then overflow goes on in the prefix's order. So the blocks of a
prefix are held where its traffic goes and not everywhere. Prefixes nest: the widest comes first.

Law: every endpoint once; without shared prefixes plain ring order. Called by: router.
Source: our rule; docs/decisions/0004-homes-of-a-prefix.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence

from extproc import anchor, pool, ring

__all__ = ["Homes"]

_HOMES_MAX = 512

# A share that hovers about a whole number of endpoints must not move the last home to and fro.
_SHARE_SLACK = 0.1


class Homes:
    """Ring orders within homes, over one ring. Remembers which endpoints are homes of a prefix."""

    __slots__ = ("_among", "_homes", "_wheel")

    def __init__(self, wheel: ring.Ring) -> None:
        """`wheel`: the ring of all members."""
        self._wheel = wheel
        self._among: Collection[pool.EndpointId] = ()
        self._homes: dict[tuple[int, ...], frozenset[pool.EndpointId]] = {}

    def order(
        self,
        key: int,
        among: Collection[pool.EndpointId],
        hot: Sequence[anchor.Hot] = (),
        first: pool.EndpointId | None = None,
    ) -> Iterator[pool.EndpointId]:
        """Every endpoint in `among` once, home first. Lazy: the home costs no walk over all.

        Args: key [unsigned 64-bit]; among, quick to ask for a member, and the same object as long as it is
            the same; hot, shared prefixes, the widest first; first, an endpoint that comes before all others
            if it is in `among`.
        """
        seen: set[pool.EndpointId] = set()
        if first is not None and first in among:
            seen.add(first)
            yield first
        levels: list[tuple[int, Collection[pool.EndpointId]]] = []
        inner, path = among, tuple[int, ...]()
        for prefix in hot:
            count = math.ceil(prefix.share * len(among) - _SHARE_SLACK)
            if count < len(inner):
                levels.append((prefix.key, inner))
                path = (*path, prefix.key, count)
                inner = self._first(count, path, inner, among)
        for number, within in ((key, inner), *reversed(levels)):
            for name in self._wheel.order(number, within):
                if name not in seen:
                    seen.add(name)
                    yield name

    def _first(
        self,
        count: int,
        path: tuple[int, ...],
        inner: Collection[pool.EndpointId],
        among: Collection[pool.EndpointId],
    ) -> frozenset[pool.EndpointId]:
        """The homes at the end of `path`, which names keys and how many homes each has, within `inner`."""
        if among is not self._among:
            self._among = among
            self._homes.clear()
        found = self._homes.get(path)
        if found is None:
            if len(self._homes) >= _HOMES_MAX:
                self._homes.clear()
            key = path[-2]
            found = frozenset(itertools.islice(self._wheel.order(key, inner), count))
            self._homes[path] = found
        return found
