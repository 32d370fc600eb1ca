"""Chain: the block hashes of a prompt; equal starts of two chains mean equal starts of two prompts.

    h[0] = xxh3_64(block 0, seed of the prompt);   h[i] = xxh3_64(block i, seed h[i-1])

A block is `block_bytes` bytes of the rendered prompt. The last, partial block is no part of the chain, so
that appending text never changes an earlier hash; its hash is kept apart as the `tail`, which tells short
prompts apart. Nothing depends on the process: equal requests give equal chains on every machine.

Never: two prompts of different model, adapter or salt share a hash (the seed carries them).
Called by: router. Source: prefix caching by chained block hashes as in vLLM's design docs; xxHash 0.8 XXH3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

__all__ = ["BlockHash", "Chain", "build", "seed_of"]

BlockHash = int
"""An unsigned 64-bit number."""

_hash = xxhash.xxh3_64_intdigest


@dataclass(frozen=True, slots=True)
class Chain:
    """A prompt's block hashes, first block first, and the hash of what is left over.

    `tail` covers the bytes behind the last full block and, through its seed, all before them.
    """

    hashes: tuple[BlockHash, ...]
    tail: BlockHash

    def __len__(self) -> int:
        """Number of full blocks."""
        return len(self.hashes)


def build(seed: int, text: bytes, block_bytes: int, blocks_max: int) -> Chain:
    """The chain of `text`, at most `blocks_max` blocks of it.

    Args:
        seed: from `seed_of` [unsigned 64-bit].
        text: the rendered prompt [bytes].
        block_bytes: bytes in a block [> 0].
        blocks_max: blocks hashed at most; the tail then covers one more block at most.
    """
    full = min(len(text) // block_bytes, blocks_max)
    previous = seed
    hashes: list[BlockHash] = []
    for start in range(0, full * block_bytes, block_bytes):
        previous = _hash(text[start : start + block_bytes], previous)
        hashes.append(previous)
    rest = text[full * block_bytes : (full + 1) * block_bytes]
    return Chain(tuple(hashes), _hash(rest, previous))


def seed_of(parts: Iterable[bytes]) -> int:
    """The seed [unsigned 64-bit] of prompts that may share cache only if all `parts` are equal.

    Each part is preceded by its length, so that ("a", "bc") and ("ab", "c") differ.
    """
    encoded = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return _hash(encoded)
