"""Served: what becomes of a choice when Envoy tells who really has the request.

A retry, or a policy that does not follow the pick, may have sent it elsewhere: then its lease counts there,
and what residency was told, and what counts as sent, is taken back at the one and told of the other (of
requests with a chain: the others carry no prediction to be held against the engine). Other replicas are told
both, and do the same.

Called by: exchange, news. Source: Gateway API Inference Extension proposal 004, the served endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable

from extproc import choice, outbox, pool, router, sent

__all__ = ["correct", "take_back"]


def correct(
    chooser: router.Router, decision: choice.Decision, address: str, now: float
) -> pool.Endpoint | None:
    """The endpoint of the pool at `address`, lease and residency put right if that was not the choice.

    None if it is none of the pool: the lease is released then.
    """
    chosen, noted = decision.choice.endpoint, decision.noted
    found = next((endpoint for endpoint in chooser.pool.endpoints if endpoint.address == address), None)
    if found is not None and found.id == chosen.id:
        return found
    if noted is not None:
        _take_back(chooser, decision, noted, now)
    if found is None:
        decision.lease.release()
        return None
    tokens, cached = decision.choice.prompt_tokens, 0.0
    if noted is not None:
        cached = chooser.residency.add(found.id, noted.chain, now) * chooser.block_tokens
    uncached = max(round(tokens - cached), 0)
    decision.lease.move(found.id, uncached, now, cached)
    if noted is not None:
        for record in chooser.records:
            prompt_bytes = tokens * chooser.settings.bytes_per_token
            record.to(found.id).add(uncached, tokens, cached, cached, prompt_bytes)
    return found


def take_back(
    chooser: router.Router,
    records: Iterable[sent.Record],
    endpoint: pool.EndpointId,
    prompt_tokens: float,
    gpu_tokens: float,
    cached_tokens: float,
    counted_s: float,
) -> None:
    """A request with these figures, counted for `endpoint` at `counted_s` [s, monotonic], is not its own."""
    asked = chooser.signals.newest(endpoint)
    is_since = asked is None or asked.at_s < counted_s
    uncached = max(round(prompt_tokens - cached_tokens), 0) if is_since else 0
    prompt_bytes = prompt_tokens * chooser.settings.bytes_per_token
    for record in records:
        record.take_back(endpoint, uncached, prompt_tokens, gpu_tokens, cached_tokens, prompt_bytes)


def _take_back(chooser: router.Router, decision: choice.Decision, noted: choice.Noted, now: float) -> None:
    made, endpoint = decision.choice, decision.choice.endpoint.id
    chooser.residency.retract(endpoint, noted.chain, noted.noted_s, now)
    gpu_tokens = noted.held * chooser.block_tokens
    figures = made.prompt_tokens, gpu_tokens, made.cached_tokens
    take_back(chooser, chooser.records, endpoint, *figures, noted.noted_s)
    hashes = noted.chain.hashes
    if chooser.outbox is not None and hashes:
        left = chooser.residency.match(endpoint, noted.chain, now).gpu_blocks
        chooser.outbox.retracted(
            outbox.Retracted(
                decision.lease.number, chooser.pool.name, endpoint, hashes[-1], len(hashes), left, *figures
            )
        )
