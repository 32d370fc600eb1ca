"""Homes: ring order of a key within the homes of the shared prefixes it stands on.

A prefix with share s of the traffic has about s * n homes, rounded up: the first endpoints of its own ring
order. The key behind it chooses among these, then overflow goes on in the prefix's order. So the blocks of a
prefix are held where its traffic goes and not everywhere. Prefixes nest: the widest comes first.

Law: every endpoint once; without shared prefixes plain ring order. Called by: router.
Source: our rule; docs/decisions/0004-homes-of-a-prefix.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from extproc import anchor, pool, ring

__all__ = ["order"]

# A share that hovers about a whole number of endpoints must not move the last home to and fro.
_SHARE_SLACK = 0.1


def order(
    wheel: ring.Ring,
    key: int,
    among: Collection[pool.EndpointId],
    hot: Sequence[anchor.Hot] = (),
    first: pool.EndpointId | None = None,
) -> Iterator[pool.EndpointId]:
    """Every endpoint in `among` once, home first.

    Args: key [unsigned 64-bit]; hot, shared prefixes, the widest first; first, an endpoint that comes before
        all others if it is in `among`.
    """
    left = set(among)
    if first in left:
        left.discard(first)
        yield first
    levels: list[list[pool.EndpointId]] = []
    inner = among
    for prefix in hot:
        count = math.ceil(prefix.share * len(among) - _SHARE_SLACK)
        if count < len(inner):
            levels.append(list(wheel.order(prefix.key, inner)))
            inner = levels[-1][:count]
    for names in (wheel.order(key, inner), *reversed(levels)):
        for name in names:
            if name in left:
                left.discard(name)
                yield name
