"""View: one replica's part of the view that all replicas of kvring share.

    flush: what happened here -> the next message        hear: another's message -> routers

What another replica dispatched is added to residency, to the anchors' counts and to the ledger, as if it had
been chosen here; so equal traffic gives equal anchors, and a bound holds over all replicas. Messages of a
sender are numbered. Where one is missing, or the sender's count of open leases differs from ours, its list of
open leases is asked for, and what endpoints were sent meanwhile. Whoever starts asks one peer for all it
knows.

A peer that is silent for `silent_s` is gone, and its leases with it; heard again, it is asked as above.

Never: a wait; an exception for what others say; memory that grows with it (residency and ledger are bounded).
Called by: share (with real bytes), simulation (with delayed ones).
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from extproc import outbox, router
from extproc.news import hearing, message, peer, telling

__all__ = ["LEASES_MAX", "Settings", "View"]

LEASES_MAX = 1 << 17
"""Open leases of all peers together that are kept; what is beyond them is not counted here."""

_GONE_MAX = 256
_NOTED_MAX = 256
"""Open leases of one that is gone whose prompts may turn out, once it is back, to have gone elsewhere: as
many as it tells then."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A message costs more than what is in it, so there is a least time from one to the next: `gather_s` if
    what waits weighs `heavy_tokens` or more (see `outbox`), `look_s` if less, `part_s` between two parts of
    an answer. `look_s` is also the longest from one look at what waits to the next, `beat_s` the longest a
    replica says nothing, with ends and first tokens to tell or without. `silent_s`: after which it is gone;
    `patience_s`: before a question is asked again. `peers_max`: others that are listened to.
    """

    heavy_tokens: int = 1024
    gather_s: float = 0.05
    part_s: float = 0.005
    beat_s: float = 0.5
    look_s: float = 0.25
    silent_s: float = 3.0
    patience_s: float = 0.5
    peers_max: int = 64


class View:
    """`strange`: bytes that were no message of ours, by why. `warm`: whether what peers know was heard.

    `reached`: whether messages pass at present, as far as the carrier knows. While they do not, those heard
    before go on unheard, and routers reckon with it: homes count as warm, floors are divided.
    """

    __slots__ = (
        "_began_s", "_company", "_gone", "_greets", "_hearing", "_peers", "_room", "_routers", "_said_s",
        "_sender", "_telling", "_warming", "counts", "reached", "settings", "strange", "warm",
    )  # fmt: skip

    def __init__(
        self,
        sender: int,
        routers: Mapping[str, router.Router],
        entries: outbox.Outbox,
        settings: Settings = Settings(),
    ) -> None:
        """`sender`: [1..2**63), this process's own for each start; `routers`: by pool, writing to
        `entries`.
        """
        self._sender = sender
        self._routers = routers
        self._hearing = hearing.Hearing(routers)
        self.counts = self._hearing.counts
        self.settings = settings
        self._telling = telling.Telling(sender, routers, entries)
        self._peers: dict[int, peer.Peer] = {}
        self._room = peer.Room(LEASES_MAX)
        # when they were heard last [s], and what was noted of them then
        self._gone: OrderedDict[int, tuple[float, dict[int, float]]] = OrderedDict()
        self._began_s = math.inf  # when it first heard or told something
        self._said_s = -math.inf  # when the last message was made
        self._greets = True
        self._warming: int | None = None  # the peer that was asked for all it knows
        self._company = 0  # peers, when messages passed
        self.reached = False
        self.warm = False
        self.strange = dict.fromkeys(message.Strange, 0)

    @property
    def peers(self) -> int:
        """Other replicas heard lately."""
        return len(self._peers)

    @property
    def peer_leases(self) -> int:
        """Open leases of the other replicas."""
        return sum(map(len, self._peers.values()))

    @property
    def kept_blocks(self) -> int:
        """Blocks of peers' chains kept to find the next turn's beginning, beside residency."""
        return self._hearing.kept_blocks

    @property
    def due_s(self) -> float:
        """When what waits is to be told [s, monotonic]; never, if nothing does that weighs.

        At once after a silence: gathering would not make fewer messages, only later ones.
        """
        if self._telling.hurries:
            return self._said_s + self.settings.part_s
        weight = self._telling.weight
        if self._greets or weight >= self.settings.heavy_tokens:
            return self._said_s + self.settings.gather_s
        return self._said_s + self.settings.look_s if weight else math.inf

    def flush(self, now: float) -> bytes | None:
        """The next message, None if nothing waits that weighs and the others have heard from here lately.

        Args: now [s, monotonic].
        """
        self._expire(now)
        waits = self.due_s < math.inf
        if not waits and now < self._said_s + self.settings.beat_s:
            return None
        return self._message(now)

    def hold(self, now: float) -> None:
        """In place of `flush` while no message passes: what happened is told when one does, as much as the
        outbox takes.
        """
        self._expire(now)
        self._telling.hold()

    def bye(self, now: float) -> bytes:
        """The last message."""
        return self._message(now, bye=True)

    def greet(self) -> None:
        """Say something at the next flush, whether there is news or not: somebody may hear us for the
        first time.
        """
        self._greets = True

    def hear(self, data: bytes, now: float) -> None:
        """Take in what came from outside."""
        if message.is_from(data, self._sender):
            return  # a store sends everybody everything
        batch = message.decode(data)
        if isinstance(batch, message.Strange):
            self.strange[batch] += 1
            return
        self._began_s = min(self._began_s, now)
        known = self._peers.get(batch.sender)
        if batch.bye:
            if known is not None:
                self._drop(batch.sender)
                self._gone.pop(batch.sender, None)
            return
        if known is None:
            if len(self._peers) >= self.settings.peers_max:
                self.counts.crowd += 1
                return
            known = self._meet(batch, now)
        elif batch.number <= known.number:
            self.counts.repeated += 1
            return
        elif batch.number > known.number + 1:
            self.counts.gaps += 1
            known.missing.notice(known.heard_s - peer.OVERLAP_S, now)
            self._ask(batch.sender, known, now, leases=True)
        known.number, known.heard_s = batch.number, now
        self.counts.heard += 1
        self.counts.heard_bytes += len(data)
        self._apply(batch, known, now)

    # ---- peers ----

    def _meet(self, batch: message.Batch, now: float) -> peer.Peer:
        """A peer that was not there: new, or back again."""
        met = self._peers[batch.sender] = peer.Peer(batch.number, now, self._room)
        since, met.noted = self._gone.pop(batch.sender, (None, {}))
        self.greet()
        if batch.number > 1:
            if not self.warm and self._warming is None:
                self._warming = batch.sender
                met.missing.notice(now - peer.ALL_S, now)
            else:  # what it told since we were there, and perhaps nobody heard; what is older others tell
                before_s = self._began_s if since is None else since
                met.missing.notice(before_s - peer.OVERLAP_S, now)
            self._ask(batch.sender, met, now, leases=True)
        return met

    def _expire(self, now: float) -> None:
        for number, one in list(self._peers.items()):
            if now - one.heard_s > self.settings.silent_s:
                self.counts.expired += 1
                self._drop(number)
            else:
                unheard = one.listed_s is not None and now - one.listed_s > self.settings.patience_s
                self._ask(number, one, now, leases=unheard)
        if self._warming is not None and self._warming not in self._peers:  # it is gone: ask another
            self._warming = next(iter(self._peers), None)
            if self._warming is not None:
                self._peers[self._warming].missing.notice(now - peer.ALL_S, now)
        self._tell_routers()

    def _tell_routers(self) -> None:
        """How many others there are that are not heard."""
        if self.reached:
            self._company = len(self._peers)
        for one in self._routers.values():
            company = 0 if self.reached else max(self._company, one.settings.replicas - 1)
            one.unheard = max(company - len(self._peers), 0)

    def _ask(self, number: int, one: peer.Peer, now: float, *, leases: bool) -> None:
        """Ask a peer for its open leases, and for what is missing unless that was asked just now."""
        since_s = one.missing.question(now, self.settings.patience_s)
        if leases:
            one.listed_s = now
        if leases or since_s is not None:
            self._telling.ask(number, leases=leases, since_s=-1.0 if since_s is None else since_s)

    def _drop(self, number: int) -> None:
        dropped = self._peers.pop(number)
        noted = dict(itertools.islice(reversed(dropped.noted.items()), _NOTED_MAX))
        dropped.gone()
        self._gone[number] = dropped.heard_s, noted
        while len(self._gone) > _GONE_MAX:
            self._gone.popitem(last=False)

    # ---- what is heard ----

    def _apply(self, batch: message.Batch, sender: peer.Peer, now: float) -> None:
        for one in batch.restarted:
            found = self._hearing.place(batch, one.place)
            if found is not None:
                found[0].restart(found[1], now, told=False)
        for dispatch in batch.began:
            self._hearing.began(batch, dispatch, sender, now)
        for entry in batch.retracted:
            self._hearing.retracted(batch, entry, sender, now)
        for answer in batch.answered:
            self._hearing.answered(batch, answer, now)
        for number in batch.prefilled:
            sender.prefilled(number)
        for number in batch.ended:
            sender.ended(number)
        if batch.leases is not None:
            self._hearing.listed(batch, batch.leases, sender, now)
        elif len(sender) != batch.open_leases and (
            sender.listed_s is None or now - sender.listed_s > self.settings.patience_s
        ):
            self.counts.mismatches += 1
            self._ask(batch.sender, sender, now, leases=True)
        if batch.to == self._sender:
            self._hearing.held(batch, now)
            if batch.last:
                sender.missing.answered()
                if batch.sender == self._warming:
                    self.warm, self._warming = True, None
        for ask in batch.asks:
            if ask.to == self._sender:
                self._answer(batch, ask, now)

    # ---- answers ----

    def _answer(self, batch: message.Batch, ask: message.Ask, now: float) -> None:
        if ask.leases:
            self._telling.leases_wanted = True
        if ask.since_s >= 0:
            oldest_s = now - ask.since_s
            self._telling.answer(batch.sender, self._hearing.recent(oldest_s), self._hearing.stored(oldest_s))

    # ---- telling ----

    def _message(self, now: float, *, bye: bool = False) -> bytes:
        batch = self._telling.batch(now, bye=bye)
        self._began_s = min(self._began_s, now)
        self._said_s, self._greets = now, False
        data = message.encode(batch)
        self.counts.told += 1
        self.counts.told_bytes += len(data)
        return data
