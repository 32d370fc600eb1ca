"""Answer: the text a simulated model generates, one four-letter word per token.

Equal prompts get equal answers, a longer answer begins with the shorter one: greedy decoding, in effect.

Invariant: only ASCII letters and spaces, so it needs no JSON escapes. Called by: replica.
"""

from __future__ import annotations

import random

import xxhash

__all__ = ["words"]

# the space comes last: clients that strip an answer change its last token only
_VOCABULARY = tuple(
    f"{first}{vowel}{last} ".encode() for first in "bdfgklmnprstvz" for vowel in "aeiou" for last in "lmnrst"
)


def words(prompt: bytes, count: int, choice: int = 0) -> list[bytes]:
    """`count` output tokens for `prompt`. Args: choice, from 0, of several answers to one prompt."""
    # not secrets: text that is the same in every process
    generator = random.Random(xxhash.xxh3_64_intdigest(prompt, seed=choice))
    return generator.choices(_VOCABULARY, k=count)
