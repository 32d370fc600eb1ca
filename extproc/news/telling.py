"""Telling: what this replica has to tell, made into batches.

    outbox entries, questions, answers  ->  one batch a call, within the message's limits

An answer about residency goes out in parts, one a batch, so that no call takes long and no message is
large. The list of open leases is told whole: when somebody asks, and when entries were lost before they
were told; what was taken back lately goes with it, as a list of what is open does not tell it.

Never: a number twice; a batch larger than `message.BYTES_MAX`. Called by: news.view.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from extproc import outbox, pool, router, tree
from extproc.news import message

__all__ = ["BLOCKS_PER_ANSWER", "Telling"]

BLOCKS_PER_ANSWER = 1 << 17
"""Blocks told to who asks what endpoints hold, the latest used first."""

_ENTRIES = 1024
_BLOCKS_PER_BATCH = 32_768
_PART_BLOCKS = 4096
_PART_ENTRIES = 1024
_ANSWERS_MAX = 16
_RETRACTED_MAX = 256
"""Kept to be told again: they are of some seconds where all that is sent to an endpoint goes elsewhere."""


@dataclass(slots=True)
class _Answer:
    """Who asked, and what is still to be told."""

    to: int
    held: Iterator[tuple[str, pool.EndpointId, tree.Recent]]
    stored: Iterator[tuple[str, int, pool.EndpointId, float]]
    blocks_left: int = BLOCKS_PER_ANSWER


class Telling:
    """Batches of one sender.

    `told`: numbers of own leases that the others have heard of as open.
    """

    __slots__ = (
        "_answers",
        "_asks",
        "_dropped",
        "_number",
        "_outbox",
        "_retracted",
        "_routers",
        "_sender",
        "_waiting",
        "leases_wanted",
        "told",
    )  # fmt: skip

    def __init__(self, sender: int, routers: Mapping[str, router.Router], entries: outbox.Outbox) -> None:
        """`sender`: this process's number [0..2**63), its own for each start."""
        self._sender = sender
        self._routers = routers
        self._outbox = entries
        self._number = 0
        self._dropped = 0
        self._asks: dict[int, tuple[bool, float]] = {}
        self._answers: deque[_Answer] = deque()
        self._waiting: deque[outbox.Entry] = deque()
        self._retracted: deque[outbox.Retracted] = deque(maxlen=_RETRACTED_MAX)
        self.leases_wanted = False
        self.told: set[int] = set()

    @property
    def hurries(self) -> bool:
        """Whether a question or an answer waits: somebody knows too little until then."""
        return bool(self._asks or self._answers or self.leases_wanted)

    @property
    def weight(self) -> float:
        """Of what waits [tokens, >= 0]; infinite where it is more than one batch takes."""
        waiting = self._outbox
        return math.inf if self._waiting or len(waiting) >= _ENTRIES else waiting.weight

    def hold(self) -> None:
        """Nothing can be told at present. What happened waits; restarts don't: when something can be told
        again, everybody has seen them, and has perhaps sent something there since.
        """
        self._outbox.restarts.clear()

    def ask(self, to: int, *, leases: bool, since_s: float) -> None:
        """Ask replica `to` for its open leases, or for what was used in the last `since_s` [s, -1:
        nothing].
        """
        before = self._asks.get(to, (False, -1.0))
        self._asks[to] = before[0] or leases, max(before[1], since_s)

    def answer(
        self,
        to: int,
        held: Iterator[tuple[str, pool.EndpointId, tree.Recent]],
        stored: Iterator[tuple[str, int, pool.EndpointId, float]],
    ) -> None:
        """Tell `to` what endpoints hold and which stored answers they gave, in parts; beyond some answers at
        once none is begun.
        """
        if len(self._answers) < _ANSWERS_MAX:
            self._answers.append(_Answer(to, held, stored))

    def batch(self, now: float, *, bye: bool = False) -> message.Batch:
        """The next batch, with whatever there is to tell at `now` [s, monotonic]."""
        self._number += 1
        places = _Places(self._routers)
        restarted = [message.Restarted(places(*one)) for one in self._outbox.restarts]
        self._outbox.restarts.clear()
        began: list[message.Began] = []
        before, retracted = tuple(self._retracted), []
        prefilled: dict[int, None] = {}
        ended: list[int] = []
        answered: list[message.Answered] = []
        for entry in self._entries():
            match entry:
                case outbox.Began():
                    began.append(_began(entry, places(entry.pool, entry.endpoint)))
                    self.told.add(entry.number)
                case outbox.Retracted():
                    retracted.append(_retracted(entry, places(entry.pool, entry.endpoint)))
                    self._retracted.append(entry)
                case outbox.Prefilled():
                    prefilled[entry.number] = None
                case outbox.Ended():
                    ended.append(entry.number)
                    prefilled.pop(entry.number, None)  # its end says it too
                    self.told.discard(entry.number)
                case outbox.Answered():
                    answered.append(message.Answered(places(entry.pool, entry.endpoint), entry.key))
        leases = self._leases(places)
        if leases is not None:  # somebody missed something
            retracted += [_retracted(one, places(one.pool, one.endpoint), again=True) for one in before]
        to, held, stored, last = self._part(places, now)
        return message.Batch(
            sender=self._sender,
            number=self._number,
            open_leases=len(self.told),
            restarted=tuple(restarted),
            began=tuple(began),
            retracted=tuple(retracted),
            prefilled=tuple(prefilled),
            ended=tuple(ended),
            answered=tuple(answered),
            asks=self._questions(),
            leases=leases,
            held=tuple(held),
            stored=stored,
            to=to,
            last=last,
            bye=bye,
            places=places.listed,
        )

    def _entries(self) -> Iterator[outbox.Entry]:
        """What happened, in order, as much as a batch takes."""
        waiting = self._waiting
        waiting.extend(self._outbox.take(_ENTRIES - len(waiting)))
        blocks = 0
        while waiting and blocks < _BLOCKS_PER_BATCH:
            entry = waiting.popleft()
            if isinstance(entry, outbox.Began):
                blocks += len(entry.hashes)
            yield entry

    def _leases(self, places: Callable[[str, pool.EndpointId], int]) -> tuple[message.Open, ...] | None:
        if self._outbox.dropped != self._dropped:
            self._dropped = self._outbox.dropped
            self.leases_wanted = True
        if not self.leases_wanted:
            return None
        self.leases_wanted = False
        self.told = set(self._outbox.open)
        return tuple(
            message.Open(
                number,
                places(one.pool, one.endpoint),
                round(one.prompt_tokens),
                one.uncached_tokens,
                one.end,
                one.prefills,
            )
            for number, one in list(self._outbox.open.items())[: message.LEASES_MAX]
        )

    def _part(
        self, places: Callable[[str, pool.EndpointId], int], now: float
    ) -> tuple[int, list[message.Held], tuple[message.Stored, ...], bool]:
        """The next part of the answer in hand: for whom, what, and whether nothing of it is left."""
        if not self._answers:
            return 0, [], (), False
        answer = self._answers[0]
        held: list[message.Held] = []
        blocks = 0
        while blocks < _PART_BLOCKS and len(held) < _PART_ENTRIES and answer.blocks_left > 0:
            found = next(answer.held, None)
            if found is None:
                answer.blocks_left = 0
                break
            name, endpoint, recent = found
            blocks += len(recent.hashes)
            answer.blocks_left -= len(recent.hashes)
            held.append(
                message.Held(
                    places(name, endpoint),
                    recent.back,
                    recent.depth,
                    message.pack(recent.hashes),
                    max(now - recent.used_s, 0.0),
                    max(recent.prompts, 1),
                )
            )
        stored = tuple(
            message.Stored(places(name, endpoint), key, max(now - used_s, 0.0))
            for name, key, endpoint, used_s in itertools.islice(answer.stored, _PART_ENTRIES)
        )
        last = answer.blocks_left <= 0 and len(stored) < _PART_ENTRIES
        if last:
            self._answers.popleft()
        return answer.to, held, stored, last

    def _questions(self) -> tuple[message.Ask, ...]:
        asks, self._asks = self._asks, {}
        return tuple(message.Ask(to, leases, since_s) for to, (leases, since_s) in asks.items())


class _Places:
    """Positions of endpoints in a batch, given out as they are named."""

    __slots__ = ("_known", "_routers")

    def __init__(self, routers: Mapping[str, router.Router]) -> None:
        self._routers = routers
        self._known: dict[tuple[str, pool.EndpointId], int] = {}

    def __call__(self, pool_name: str, endpoint: pool.EndpointId) -> int:
        return self._known.setdefault((pool_name, endpoint), len(self._known))

    @property
    def listed(self) -> tuple[tuple[str, int, str], ...]:
        routers = self._routers
        return tuple([(name, routers[name].settings.block_bytes, endpoint) for name, endpoint in self._known])


def _began(entry: outbox.Began, place: int) -> message.Began:
    return message.Began(
        entry.number,
        place,
        entry.back,
        entry.depth,
        message.pack(entry.hashes),
        _tokens(entry.prompt_tokens),
        entry.uncached_tokens,
        _tokens(entry.gpu_tokens),
        _tokens(entry.cached_tokens),
        entry.prefills,
        entry.again,
    )


def _retracted(entry: outbox.Retracted, place: int, *, again: bool = False) -> message.Retracted:
    return message.Retracted(
        entry.number,
        place,
        entry.end,
        entry.depth,
        entry.left,
        _tokens(entry.prompt_tokens),
        _tokens(entry.gpu_tokens),
        _tokens(entry.cached_tokens),
        again,
    )


def _tokens(value: float) -> int:
    return max(round(value), 0)
