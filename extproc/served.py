"""Served: what becomes of a choice when Envoy tells who really has the request.

A retry, or a policy that does not follow the pick, may have sent it elsewhere: then its lease counts there,
and what residency was told, and what counts as sent, is taken back at the one and told of the other (of
requests with a chain: the others carry no prediction to be held against the engine).

Other replicas are told where it went; that the first endpoint holds the prompt, they go on believing.
Called by: exchange. Source: Gateway API Inference Extension proposal 004, the served endpoint.
"""

from __future__ import annotations

from extproc import choice, pool, router

__all__ = ["correct"]


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
        chooser.residency.retract(chosen.id, noted.chain, noted.held, noted.noted_s)
        _take_back(chooser, decision.choice, noted)
    if found is None:
        decision.lease.release()
        return None
    tokens, cached = decision.choice.prompt_tokens, 0.0
    if noted is not None:
        cached = chooser.residency.add(found.id, noted.chain, now) * chooser.block_tokens
    uncached = max(round(tokens - cached), 0)
    decision.lease.move(found.id, uncached, now)
    if noted is not None:
        for record in chooser.records:
            prompt_bytes = tokens * chooser.settings.bytes_per_token
            record.to(found.id).add(uncached, tokens, cached, cached, prompt_bytes)
    return found


def _take_back(chooser: router.Router, made: choice.Choice, noted: choice.Noted) -> None:
    tokens, gpu_tokens = made.prompt_tokens, noted.held * chooser.block_tokens
    prompt_bytes = tokens * chooser.settings.bytes_per_token
    for record in chooser.records:
        record.take_back(made.endpoint.id, tokens, gpu_tokens, made.cached_tokens, prompt_bytes)
