"""Dynamo: KV router: the least prefill and decode blocks that an endpoint would have with this request.

    cost = w * prefill + decode   [blocks]
    prefill = (pending + new) / block:  prompt tokens not yet prefilled, this prompt's uncached ones included
    decode  = distinct blocks of open requests, this prompt's included

w is 1 by default, 4 as a second set. Tokens of the host tier are credited .75. `pending` falls at the first
token, `decode` at the end; both count when a request is sent. Ties: the smaller index, then by chance
(temperature 0).

The index stands for KV events: what the engines' capacity leaves, LRU, of blocks of 64 tokens. Output
blocks are not tracked (its default). Called by: the package's table.
Source: NVIDIA Dynamo, router documentation (routing concepts, configuration and tuning) and lib/kv-
router/src/scheduling/selector.rs.
"""

from __future__ import annotations

from extproc import footprint as _footprint
from extproc import policy
from extproc.sim import chooser
from extproc.sim.baselines import baseline

__all__ = ["Dynamo", "DynamoW4", "cost"]

_HOST_CREDIT = 0.75


def cost(prefill_tokens: float, decode_blocks: float, block_tokens: float, weight: float) -> float:
    """What an endpoint would hold with the request [blocks]."""
    return weight * prefill_tokens / block_tokens + decode_blocks


class Dynamo(baseline.Baseline):
    """Dynamo's KV router: prefill blocks plus decode blocks, weight 1."""

    name = "dynamo"
    weight = 1.0

    def footprint(self, request: chooser.Request) -> _footprint.Footprint:
        """Every block, so that the ledger counts those open requests share once."""
        return _footprint.Footprint(() if request.chain is None else request.chain.hashes, 0)

    def pick(self, asked: baseline.Asked) -> policy.Pick:
        """The least cost."""
        held = self.footprint(asked.request)
        costs = tuple(
            cost(
                pending + self._uncached(asked, index),
                self.ledger.kv_after(asked.endpoints[index].id, held) / _footprint.MARK_TOKENS,
                asked.block_tokens,
                self.weight,
            )
            for index, pending in enumerate(asked.pending)
        )
        cheapest = baseline.least(costs)
        if len(cheapest) > 1:
            sizes = [self.residency.blocks(endpoint.id) for endpoint in asked.endpoints]
            cheapest = baseline.least(sizes, cheapest)
        return policy.Pick(baseline.among(cheapest, asked.chance), policy.Reason.WARM, 0, costs)

    def _uncached(self, asked: baseline.Asked, index: int) -> float:
        credited = asked.held_blocks[index] + _HOST_CREDIT * asked.host_blocks[index]
        return max(asked.request.tokens - credited * asked.block_tokens, 0.0)


class DynamoW4(Dynamo):
    """Dynamo's KV router: prefill blocks plus decode blocks, weight 4."""

    name = "dynamo_w4"
    weight = 4.0
