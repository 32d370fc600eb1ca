"""Footprint: the KV that a request holds while it is open, by marks along its prompt.

    tokens = 256 * marks + rest

Open requests share what their prompts begin with, as the engine holds its blocks once. Called by: request,
hearsay (make it), ledger (adds them up).
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc import chain

__all__ = ["MARK_TOKENS", "NOTHING", "OUTPUT_TOKENS", "Footprint", "of"]

MARK_TOKENS = 256
"""Tokens of prompt between two marks of a footprint: what of a shared prefix lies behind its last mark counts
for each request anew."""

OUTPUT_TOKENS = 128
"""What a request is expected to generate [tokens]: its KV is held beside the prompt's."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The KV that a request holds while it is open.

    `marks`: block hashes `MARK_TOKENS` apart. Two requests that share a prefix share its marks, as the engine
    holds its blocks once; a hash in 256 tokens is enough to tell. `rest_tokens`: behind the last mark.
    """

    marks: tuple[chain.BlockHash, ...] = ()
    rest_tokens: int = 0

    @property
    def tokens(self) -> int:
        """All of it, where nothing is shared."""
        return len(self.marks) * MARK_TOKENS + self.rest_tokens


def of(hashes: tuple[chain.BlockHash, ...], block_tokens: float, prompt_tokens: float) -> Footprint:
    """The footprint of a prompt of `prompt_tokens` [>= 0] with these block hashes, `block_tokens` apart."""
    step = max(round(MARK_TOKENS / block_tokens), 1)
    marks = hashes[step - 1 :: step]
    if (each := round(block_tokens / MARK_TOKENS)) > 1:  # a block is longer: several marks for it
        marks = tuple(block ^ number for block in marks for number in range(each))
    rest = max(round(prompt_tokens) - len(marks) * MARK_TOKENS, 0)
    return Footprint(marks, rest + OUTPUT_TOKENS)


NOTHING = Footprint()
