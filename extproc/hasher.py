"""Hasher: one pool whose endpoints Envoy's own consistent hashing chooses: a prompt -> the hash to go by.

    prompt -> chain -> anchor -> key, as the router finds it
    hash = key;   behind a prefix with share s of the traffic: key, prefix -> one of ceil(s * n - 0.1) hashes

Envoy's ring_hash or maglev takes the hash to an endpoint, and bounds its load. Nothing is known here of any
endpoint: no residency, no load, no lease; the anchor's counts are the only state, bounded, and replicas that
see the same mix of traffic find the same hashes without telling each other. So a pool of any size costs the
same.

A shared prefix has as many hashes as the router would give it homes (docs/decisions/0004): each of them keeps
to one endpoint, so that the prefix is held where its traffic goes and not everywhere.

Never: I/O, clock, chance. Called by: exchange; explanation (previews); the simulator.
"""

from __future__ import annotations

import math

import xxhash

from extproc import anchor as _anchor
from extproc import answers, keying, request, tuning
from extproc import chain as _chain
from extproc import choice as _choice
from extproc import prompt as _prompt

__all__ = ["Hasher"]

# A share that hovers about a whole number of endpoints must not move the last hash to and fro.
_SHARE_SLACK = 0.1


class Hasher:
    """Finds hashes for one pool. Not thread-safe: one event loop, or one simulator, calls it."""

    __slots__ = ("_nowhere", "anchors", "endpoints", "name", "settings")

    def __init__(self, name: str, endpoints: int, settings: tuning.Settings) -> None:
        """Start without any traffic seen.

        Args: name: of the pool; endpoints: how many share its keys, about [>= 1]; settings: those of chain
            and anchor are read, the others have no meaning here.
        """
        self.name = name
        self.endpoints = endpoints
        self.settings = settings
        self.anchors = _anchor.Anchors(half_life_s=settings.anchor_half_life_s)
        self._nowhere = answers.Answers(0)  # a stored answer can't be followed to an endpoint nobody knows

    def choose(
        self,
        prompt: _prompt.Prompt | _prompt.Unkeyed,
        now: float,
        key: str | None = None,
        model: str | None = None,
    ) -> _choice.Hashed:
        """The hash for `prompt`, counted as traffic.

        Args: prompt: what the engine will prefill, or why that is not known; now [s, monotonic]; key: the
            request's explicit key from a header, None if it has none; model: where `prompt` tells none.
        """
        return self.place(self.read(prompt, key, model), now)

    def place(self, asked: request.Request, now: float) -> _choice.Hashed:
        """As `choose`, of a request that was read already."""
        return self._hashed(asked, now, counts=True)

    def preview(self, asked: request.Request) -> _choice.Hashed:
        """What `place` would say now; nothing is counted."""
        return self._hashed(asked, 0.0, counts=False)

    def read(
        self, prompt: _prompt.Prompt | _prompt.Unkeyed, key: str | None = None, model: str | None = None
    ) -> request.Request:
        """The request of `prompt`; arguments as of `choose`."""
        return request.read(prompt, self.settings, key, model)

    def chain_of(self, prompt: _prompt.Prompt) -> _chain.Chain:
        """The chain of `prompt` under this pool's block size."""
        return request.chain_of(prompt, self.settings)

    def is_anchored(self, prompt: _prompt.Prompt) -> bool:
        """Whether more of a prompt that was cut off would not change its hash; counts nothing."""
        if prompt.cache_key is not None or prompt.previous_response is not None:
            return True
        return self.anchors.is_settled(self.chain_of(prompt), self.endpoints)

    def _hashed(self, asked: request.Request, now: float, *, counts: bool) -> _choice.Hashed:
        key = keying.key_of(asked, self.anchors, self._nowhere, self.endpoints, now, counts=counts)
        return _choice.Hashed(
            pool=self.name,
            hash=None if key.value is None else _homed(key.value, key.hot, self.endpoints),
            unkeyed=asked.unkeyed,
            keyed_by=key.by,
            key=key.value,
            anchor_block=key.anchor_block,
            chain_blocks=0 if asked.chain is None else len(asked.chain),
            prompt_tokens=asked.tokens,
            limits=asked.limits(self.settings.blocks_max),
        )


def _homed(key: int, hot: tuple[_anchor.Hot, ...], endpoints: int) -> int:
    """The hash of `key` behind the shared prefixes `hot`, of which the deepest decides.

    A prefix shared by so many that its hashes would be as many as endpoints needs none of its own.
    """
    if not hot:
        return key
    deepest = hot[-1]
    count = math.ceil(deepest.share * endpoints - _SHARE_SLACK)
    if count >= endpoints:
        return key
    return xxhash.xxh3_64_intdigest(deepest.key.to_bytes(8, "little"), _jump(key, count))


def _jump(key: int, count: int) -> int:
    """One of `count` [>= 1] places for `key`; one place more moves 1/count of the keys, all of them to it.

    Source: jump consistent hash, arXiv:1406.2294.
    """
    place, after = 0, 0
    while after < count:
        place = after
        key = (key * 2862933555777941757 + 1) % 2**64
        after = int((place + 1) * (2**31 / ((key >> 33) + 1)))
    return place
