"""Keying: where a request belongs on the ring, and how that is known.

An explicit key (header, then `prompt_cache_key`), else the stored answer that it continues, else its chain's
anchor. A request with neither has no key.

Called by: router. The anchor is counted whatever decides in the end: traffic is traffic.
"""

from __future__ import annotations

import msgspec

from extproc import anchor as _anchor
from extproc import answers as _answers
from extproc import chain as _chain
from extproc import choice as _choice
from extproc import pool as _pool
from extproc import request as _request

__all__ = ["Key", "explicit", "key_of"]

_COMMON_SHARE = 0.9
_COMMON_REQUESTS = 4.0
"""Requests for each endpoint, lately, that make a copy there worth it: one computes it, the rest find it."""


class Key(msgspec.Struct, frozen=True):
    """Where a request belongs: ring key [unsigned 64-bit], None if nowhere, and where it came from.

    `first`: an endpoint to try before the ring's. `hot`: the shared prefixes before the anchor.
    """

    by: _choice.KeyedBy = _choice.KeyedBy.NOTHING
    value: int | None = None
    anchor_block: int | None = None
    first: _pool.EndpointId | None = None
    hot: tuple[_anchor.Hot, ...] = ()

    @property
    def shared_blocks(self) -> int:
        """How long the prefix before the anchor is that many have [blocks]."""
        return self.hot[-1].blocks if self.hot else 0

    def common_blocks(self, endpoints: int) -> int:
        """How long the prefix is that nearly all requests have, so many that each of `endpoints` [>= 1] will
        soon need it [blocks].
        """
        return max(
            (one.blocks for one in self.hot
             if one.share >= _COMMON_SHARE and one.requests >= _COMMON_REQUESTS * endpoints),
            default=0,
        )  # fmt: skip

    @property
    def lone(self) -> int | None:
        """The key if it is an anchor's with no shared prefix before it, which would have homes of its own."""
        return self.value if self.by is _choice.KeyedBy.ANCHOR and not self.hot else None


def key_of(
    request: _request.Request,
    anchors: _anchor.Anchors,
    answers: _answers.Answers,
    endpoints: int,
    now: float,
    *,
    counts: bool = True,
) -> Key:
    """The strongest key of `request`.

    Args: endpoints: how many share the keys; now [s, monotonic]; counts: False to leave `anchors` as it is.
    """
    keyed = _choice.KeyedBy
    anchor = None
    if request.chain is not None:
        if counts:
            anchor = anchors.observe(request.chain, endpoints, now)
        else:
            anchor = anchors.foresee(request.chain, endpoints)
    if request.explicit is not None:
        return Key(request.explicit_by, explicit(request.explicit))
    if request.previous is not None:
        first = answers.find(request.previous, now)
        if first is not None:
            return Key(keyed.PREVIOUS, explicit(request.previous), None, first)
    return Key() if anchor is None else Key(keyed.ANCHOR, anchor.key, anchor.block, None, anchor.hot)


def explicit(key: str) -> int:
    """The ring key of an explicit key; its seed keeps it apart from every chain."""
    return _chain.seed_of((b"explicit", key.encode("utf-8", "surrogatepass")))
