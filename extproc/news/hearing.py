"""Hearing: what is heard in a batch, put into routers.

A chain is found from its last known block: among those told lately, else in residency. A block that is not
known there means that something was missed.

Never: an endpoint or pool that is not ours. Called by: news.view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from extproc import chain, pool, router, tree
from extproc.news import hearsay, message, paths, peer

__all__ = ["Counts", "Hearing"]


@dataclass(slots=True)
class Counts:
    """Totals. `repeated`, `gaps`: messages that came twice, and holes in their numbers; `mismatches`:
    counts of open leases that differed; `unresolved`: chains whose beginning was not known here;
    `unplaced`: entries about endpoints or pools that are not ours; `crowd`: messages of senders beyond
    `peers_max`.
    """

    told: int = 0
    told_bytes: int = 0
    heard: int = 0
    heard_bytes: int = 0
    dispatches: int = 0
    repeated: int = 0
    gaps: int = 0
    mismatches: int = 0
    unresolved: int = 0
    unplaced: int = 0
    crowd: int = 0
    expired: int = 0


class Hearing:
    """The routers of one process, by pool, and what was heard for them."""

    __slots__ = ("_paths", "_routers", "counts")

    def __init__(self, routers: Mapping[str, router.Router]) -> None:
        """Nothing was heard yet."""
        self._routers = routers
        self._paths = paths.Paths()
        self.counts = Counts()

    @property
    def kept_blocks(self) -> int:
        """Blocks of chains told lately."""
        return self._paths.blocks

    def place(self, batch: message.Batch, place: int) -> tuple[router.Router, pool.EndpointId] | None:
        """The router and the name of an endpoint that a batch speaks of; None if we have no such."""
        pool_name, block_bytes, endpoint = batch.places[place]
        found = self._routers.get(pool_name)
        if found is None or found.settings.block_bytes != block_bytes or not found.has(endpoint):
            self.counts.unplaced += 1
            return None
        return found, pool.EndpointId(endpoint)

    def began(self, batch: message.Batch, told: message.Began, sender: peer.Peer, now: float) -> None:
        """Note a dispatch of a peer."""
        self.counts.dispatches += 1
        found = self.place(batch, told.place)
        if found is None:
            sender.began(told.number, None)
            return
        chooser, endpoint = found
        hashes = self._chain(chooser, told.back, told.depth, told.hashes)
        if hashes is None:
            self.counts.unresolved += 1
            sender.missing.notice(now - peer.OVERLAP_S, now)
            told_hashes = message.unpack(told.hashes)
            chooser.residency.sent_again(endpoint, told_hashes[-1] if told_hashes else told.back)
        noted_s = now if hashes and told.prefills else None
        sender.began(told.number, hearsay.learn(chooser, endpoint, hashes or (), told, now), noted_s)

    def retracted(self, batch: message.Batch, told: message.Retracted, sender: peer.Peer, now: float) -> None:
        """Take back what was noted of a dispatch: it went elsewhere."""
        noted_s = sender.noted.pop(told.number, None)
        if noted_s is None and told.again:
            return  # it was taken back before, or never noted
        found = self.place(batch, told.place)
        if found is None:
            return
        chooser, endpoint = found
        hashes = self._chain(chooser, told.end, told.depth, b"")
        hearsay.take_back(chooser, endpoint, hashes or (), told, noted_s, now)

    def answered(self, batch: message.Batch, told: message.Answered, now: float) -> None:
        """Note where an answer was given."""
        found = self.place(batch, told.place)
        if found is not None:
            found[0].answers.learn(told.key, found[1], now)

    def listed(
        self, batch: message.Batch, leases: tuple[message.Open, ...], sender: peer.Peer, now: float
    ) -> None:
        """Let exactly `leases` stand."""
        sender.listed_s = None
        by_number = {one.number: one for one in leases}
        sender.only(by_number)
        for number, one in by_number.items():
            if sender.knows(number):
                if not one.uncached_tokens:
                    sender.prefilled(number)
                continue
            found = self.place(batch, one.place)
            if found is None:
                sender.began(number, None)
                continue
            chooser, endpoint = found
            hashes = chooser.residency.path(one.end) if one.end else ()
            sender.began(number, hearsay.lease(chooser, endpoint, hashes, one, now))

    def held(self, batch: message.Batch, now: float) -> None:
        """Note what endpoints are told to hold, and to have given as stored answers."""
        for one in batch.held:
            found = self.place(batch, one.place)
            if found is None:
                continue
            chooser, endpoint = found
            hashes = self._chain(chooser, one.back, one.depth, one.hashes)
            if hashes:
                hearsay.recall(chooser, endpoint, hashes, now - one.age_s, one.prompts)
        for answer in batch.stored:
            found = self.place(batch, answer.place)
            if found is not None:
                found[0].answers.recall(answer.key, found[1], now - answer.age_s)

    def recent(self, oldest_s: float) -> Iterator[tuple[str, pool.EndpointId, tree.Recent]]:
        """What endpoints hold that was used since `oldest_s`, of each the latest first, in turn."""
        walks = [
            (name, endpoint.id, one.residency.recent(endpoint.id, oldest_s))
            for name, one in self._routers.items()
            for endpoint in one.pool.endpoints
        ]
        while walks:
            left = []
            for name, endpoint, walk in walks:
                found = next(walk, None)
                if found is not None:
                    left.append((name, endpoint, walk))
                    yield name, endpoint, found
            walks = left

    def stored(self, oldest_s: float) -> Iterator[tuple[str, int, pool.EndpointId, float]]:
        """Pool, key, endpoint and time [s] of stored answers used since `oldest_s`."""
        for name, one in self._routers.items():
            for answer in one.answers.recent(oldest_s):
                if one.has(answer[1]):
                    yield name, *answer

    def _chain(
        self, chooser: router.Router, back: int, depth: int, packed: bytes
    ) -> tuple[chain.BlockHash, ...] | None:
        """The whole chain of an entry; None if its beginning is not known here."""
        hashes = message.unpack(packed)
        if depth:
            before = self._paths.grown(back) or chooser.residency.path(back)
            if len(before) != depth:
                return None
            hashes = before + hashes
        if hashes:
            self._paths.put(hashes)
        return hashes
