"""Hearsay: what another replica dispatched, noted in a router as if it had been chosen there.

Residency, anchors and the ledger take it like an own choice; only what a metric calls this process's own
(`router.sent_own`) leaves it out. Nothing of it enters the outbox: nobody tells what he was told.

Never: an endpoint that is no member. Called by: news.view.
"""

from __future__ import annotations

from extproc import chain, ledger, outbox, pool, router

__all__ = ["learn", "lease", "recall"]


def learn(chooser: router.Router, told: outbox.Began, now: float) -> ledger.Lease:
    """Note a dispatch to one of the router's members; its lease."""
    if told.hashes:
        blocks = chain.Chain(told.hashes, 0)
        chooser.anchors.count(blocks, now)
        if told.prefills:
            chooser.residency.add(told.endpoint, blocks, now)
    if told.prefills:
        read = told.prompt_tokens if told.hashes else 0.0
        chooser.sent.count(
            told.endpoint,
            told.uncached_tokens,
            read,
            told.gpu_tokens,
            told.cached_tokens,
            read * chooser.settings.bytes_per_token,
        )
    return lease(
        chooser,
        told.endpoint,
        told.hashes,
        told.prompt_tokens,
        told.uncached_tokens,
        now,
        prefills=told.prefills,
    )


def lease(
    chooser: router.Router,
    endpoint: pool.EndpointId,
    hashes: tuple[chain.BlockHash, ...],
    prompt_tokens: float,
    uncached_tokens: int,
    now: float,
    *,
    prefills: bool,
) -> ledger.Lease:
    """Another replica's lease of a request of this chain, () if it is not known."""
    holds = ledger.Footprint()
    if prefills:
        holds = ledger.footprint(hashes, chooser.block_tokens, prompt_tokens)
    return chooser.ledger.take(endpoint, uncached_tokens, now, holds)


def recall(
    chooser: router.Router, endpoint: pool.EndpointId, hashes: tuple[chain.BlockHash, ...], used_s: float
) -> None:
    """Note that `endpoint` is thought to hold a chain that was last used at `used_s` [s, monotonic]."""
    chooser.residency.add(endpoint, chain.Chain(hashes, 0), used_s)
