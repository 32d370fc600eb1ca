"""Content: a simulated prompt as runs of tokens, and the hashes of its blocks, without any text.

A prompt is a row of pieces: (what it is, how many tokens). Piece j of `tokens_j` tokens has

    seed_j = H(path_{j-1}, piece_j),   path_j = H(seed_j, tokens_j),   path_{-1} = H(adapter, salt)

and a block that ends `o` tokens into piece j is named seed_j + o * step (mod 2^64). The name covers all that
comes before, so equal names mean equal starts, as with chained hashes, at one addition a block. The router's
blocks are every fourth of the engine's: both see the same sharing.

Invariant: never changed after it was made; `then` shares nothing that could be edited. Called by: workloads,
trace, client. Source: block sizes of the production router (256 bytes, 4 bytes a token) and of vLLM (16).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import xxhash

from extproc import chain

__all__ = ["BLOCK_TOKENS", "ROUTER_BLOCK_TOKENS", "Content", "piece"]

BLOCK_TOKENS = 16
"""Tokens of one named block: an engine's."""

ROUTER_BLOCK_TOKENS = 64
"""Tokens of one block of the router's chain."""

_STEP = 0x9E3779B97F4A7C15  # odd, so that no two offsets below 2^64 meet
_MASK = 2**64 - 1


def piece(*names: str | int) -> int:
    """The id of a run of tokens known by `names` [unsigned 64-bit]; other names, other tokens."""
    return xxhash.xxh3_64_intdigest("\0".join(map(str, names)).encode())


class Content:
    """A prompt, or the start of one. `path`: hash of all of it; `hashes`: names of its full blocks."""

    __slots__ = ("hashes", "path", "tokens")

    def __init__(
        self, adapter: str = "", pieces: Iterable[tuple[int, int]] = (), start: Content | None = None
    ) -> None:
        """(piece id, tokens [>= 0]) in a row, behind `start` if there is one, else under `adapter`.

        Prompts under different adapters share no cache.
        """
        self.path: int = piece("adapter", adapter) if start is None else start.path
        self.tokens: int = 0 if start is None else start.tokens
        self.hashes: list[int] = [] if start is None else start.hashes.copy()
        for piece_id, tokens in pieces:
            self._append(piece_id, tokens)

    @classmethod
    def of(cls, pieces: Iterable[tuple[int, int]], adapter: str = "") -> Self:
        """A prompt of (piece id, tokens [>= 0]) in a row."""
        return cls(adapter, pieces)

    @classmethod
    def of_hashes(cls, hashes: list[int], tokens: int, tail: int) -> Self:
        """A prompt whose blocks of `BLOCK_TOKENS` have names already; `tail` [64-bit] names what is left."""
        made = cls()
        made.path, made.hashes, made.tokens = tail, hashes, tokens
        return made

    def then(self, piece_id: int, tokens: int) -> Self:
        """This prompt with `tokens` [>= 0] of `piece_id` behind it; of a cut piece the start is equal."""
        return type(self)(pieces=((piece_id, tokens),), start=self)

    def chain(self) -> chain.Chain:
        """The router's chain of it."""
        step = ROUTER_BLOCK_TOKENS // BLOCK_TOKENS
        return chain.Chain(tuple(self.hashes[step - 1 :: step]), self.path)

    def blocks(self, block_tokens: int) -> list[int]:
        """Names of its full blocks of `block_tokens`, a multiple of `BLOCK_TOKENS`; else ValueError."""
        step, rest = divmod(block_tokens, BLOCK_TOKENS)
        if rest or not step:
            raise ValueError(f"block_tokens is {block_tokens}, must be a multiple of {BLOCK_TOKENS}")
        return self.hashes[step - 1 :: step]

    def _append(self, piece_id: int, tokens: int) -> None:
        seed = _mix(self.path, piece_id)
        first = (len(self.hashes) + 1) * BLOCK_TOKENS - self.tokens
        self.hashes += [(seed + offset * _STEP) & _MASK for offset in range(first, tokens + 1, BLOCK_TOKENS)]
        self.tokens += tokens
        self.path = _mix(seed, tokens)


def _mix(one: int, other: int) -> int:
    return xxhash.xxh3_64_intdigest(one.to_bytes(8, "little"), other)
