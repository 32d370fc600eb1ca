"""Served: what becomes of a choice when Envoy tells who really has the request.

A retry, or a policy that does not follow the pick, may have sent it elsewhere: then its lease counts there,
and what residency was told is taken back at the one and told of the other.

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
    if found is None:
        decision.lease.release()
        return None
    cached = 0.0
    if noted is not None:
        cached = chooser.residency.match(found.id, noted.chain, now).gpu_blocks * chooser.block_tokens
        chooser.residency.add(found.id, noted.chain, now)
    decision.lease.move(found.id, max(round(decision.choice.prompt_tokens - cached), 0), now)
    return found
