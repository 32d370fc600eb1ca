"""Hearsay: what another replica dispatched, noted in a router as if it had been chosen there.

Residency, anchors and the ledger take it like an own choice; only what a metric calls this process's own
(`router.sent_own`) leaves it out. Nothing of it enters the outbox: nobody tells what he was told.

Never: an endpoint that is no member. Called by: news.view.
"""

from __future__ import annotations

from extproc import chain, ledger, pool, router, served
from extproc import footprint as _footprint
from extproc.news import message

__all__ = ["learn", "lease", "recall", "take_back"]


def learn(
    chooser: router.Router,
    endpoint: pool.EndpointId,
    hashes: tuple[chain.BlockHash, ...],
    told: message.Began,
    now: float,
) -> ledger.Lease:
    """Note a dispatch to one of the router's members; its lease. `hashes`: the whole chain, () if unknown."""
    if hashes:
        blocks = chain.Chain(hashes, 0)
        if not told.again:
            chooser.anchors.count(blocks, now)
        if told.prefills:
            chooser.residency.add(endpoint, blocks, now)
    if told.prefills and (hashes or not told.again):
        read = told.prompt_tokens if hashes else 0
        # where it went in the end, its prompt may be prefilled already, but had to be
        uncached = max(told.prompt_tokens - told.cached_tokens, 0) if told.again else told.uncached_tokens
        chooser.sent.to(endpoint).add(
            uncached,
            read,
            told.gpu_tokens,
            told.cached_tokens,
            read * chooser.settings.bytes_per_token,
        )
    return lease(chooser, endpoint, hashes, told, now)


def take_back(
    chooser: router.Router,
    endpoint: pool.EndpointId,
    hashes: tuple[chain.BlockHash, ...],
    told: message.Retracted,
    noted_s: float | None,
    now: float,
) -> None:
    """Take back a dispatch that `learn` noted at `noted_s` [s, monotonic]; None: it did not."""
    chooser.residency.retract(endpoint, chain.Chain(hashes, 0), noted_s, now, told.left)
    if noted_s is not None:
        figures = told.prompt_tokens, told.gpu_tokens, told.cached_tokens
        served.take_back(chooser, (chooser.sent,), endpoint, *figures, noted_s)


def lease(
    chooser: router.Router,
    endpoint: pool.EndpointId,
    hashes: tuple[chain.BlockHash, ...],
    told: message.Began | message.Open,
    now: float,
) -> ledger.Lease:
    """Another replica's lease of a request of this chain, () if it is not known."""
    holds = _footprint.NOTHING
    if told.prefills:
        holds = _footprint.of(hashes, chooser.block_tokens, told.prompt_tokens)
    return chooser.ledger.take(endpoint, told.uncached_tokens, now, holds)


def recall(
    chooser: router.Router,
    endpoint: pool.EndpointId,
    hashes: tuple[chain.BlockHash, ...],
    used_s: float,
    prompts: int,
) -> None:
    """Note that `endpoint` is thought to hold a chain that was last used at `used_s` [s, monotonic], and with
    which so many `prompts` end [>= 1].
    """
    chooser.residency.add(endpoint, chain.Chain(hashes, 0), used_s, prompts)
