"""Ledger: what is in flight at each endpoint, as counted by this process.

    work = pending + 512 * inflight                       [tokens]
    kv   = 256 * distinct marks of open requests + rests    [tokens]

`pending` is uncached prompt tokens sent and not yet prefilled, `inflight` open requests. A lease adds both
in the same step as the choice, so that arrivals of one loop turn see each other. Pending falls when prefill
is seen to be over (first piece of the answer's body) or is expected to be: an endpoint prefills what it was
sent in order, at `prefill_tokens_per_s`, and what is over or was given up before its turn takes no time. An
estimate is for what is not seen: while answers are seen to begin, it waits `_SEEN_PATIENCE` times as long.
Inflight and kv fall at release.

What an endpoint's open requests hold of its KV cache decides whether one more starts or queues; the engine's
own gauge tells it a second late, and a burst needs it at once.

When is a request over? When its ext_proc stream ends, however it ends. Answer headers are too early:
tokens follow for minutes.

Never below zero; keyed by lease, never by request id. A lease of an endpoint that left counts on the entry
it was taken from, so an endpoint that comes back under its name starts clean.
Called by: router (take, load), exchange (release).
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from extproc import chain, outbox, pool
from extproc.footprint import MARK_TOKENS, NOTHING, Footprint

__all__ = [
    "REQUEST_TOKENS",
    "Lease",
    "Ledger",
    "Load",
    "bound",
    "has_room",
]

REQUEST_TOKENS = 512
"""What one open request weighs beside its prefill [tokens]: the decode it slows down."""


@dataclass(frozen=True, slots=True)
class Load:
    """One endpoint's load: requests in flight, prompt tokens waiting for prefill, tokens of KV held open."""

    inflight: int
    pending: int
    kv_tokens: int = 0

    @property
    def work(self) -> int:
        """Load in one number [tokens]."""
        return self.pending + REQUEST_TOKENS * self.inflight


def bound(total: float, endpoints: int, factor: float, floor: float) -> float:
    """The load up to which an endpoint may take more, in work [tokens] or in open requests.

    max(floor, factor * total / endpoints)

    Args: total [of all endpoints, the request to place included], endpoints [>= 1], factor [ratio, > 1],
        floor: below it nothing is worth moving a prompt for.
    Source: consistent hashing with bounded loads, arXiv:1608.01350; the floor is ours (docs/decisions).
    """
    return max(floor, factor * total / endpoints)


def has_room(load: float, limit: float) -> bool:
    """Whether an endpoint with this load may take more under `limit` (from `bound`)."""
    return load < limit


_SEEN_PATIENCE = 4.0
"""How much longer than expected a prefill may take where answers are seen to begin: long prompts do."""


class _Account:
    """One endpoint's entry."""

    __slots__ = (
        "began_s", "inflight", "leases", "looked_s", "marks", "pending", "prefilling", "rest_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.leases: dict[Lease, None] = {}  # those open, in the order they were taken
        self.marks: Counter[chain.BlockHash] = Counter()
        self.rest_tokens = 0
        self.inflight = 0
        self.pending = 0
        self.prefilling: deque[Lease] = deque()  # in the order they were taken, some settled
        self.began_s = 0.0  # when the first of these is believed to have had its turn
        self.looked_s = 0.0


class Lease:
    """One request's entry in the ledger; give it back with `release`, once or more often."""

    __slots__ = (
        "_account", "_after", "_holds", "_ledger", "_open", "guessed", "number", "taken_s", "tokens",
    )  # fmt: skip

    def __init__(
        self, ledger: Ledger, account: _Account, uncached_tokens: int, now: float, holds: Footprint
    ) -> None:
        """Only `Ledger.take` makes leases. `number`: in the outbox, 0 where nobody is told of it."""
        self.number = 0
        self.taken_s = now
        self._holds = holds
        self._ledger = ledger
        self._account = account
        self._open = True
        self._after = ledger.ended
        self.guessed = False  # whether its prefill was taken for over, and its answer not seen to begin since
        self.tokens = 0  # still pending
        self._enter(uncached_tokens, now)

    def is_younger_than(self, ended: float) -> bool:
        """Whether more leases than `ended` had been released when it was taken, or as many."""
        return self._after >= ended

    def prefilled(self) -> None:
        """The prompt is seen to be prefilled: its tokens wait no more."""
        self.guessed = False
        self._ledger.sees = True
        if self.number and self._ledger.outbox is not None and self._open:
            self._ledger.outbox.prefilled(self.number)
        self.settle()

    def settle(self) -> None:
        """Its tokens wait no more, as far as is expected."""
        self._account.pending -= self.tokens
        self.tokens = 0

    def move(
        self, endpoint: pool.EndpointId, uncached_tokens: int, now: float, cached_tokens: float = 0.0
    ) -> None:
        """Another endpoint got the request: it counts there from `now` on. No effect once released.

        Args: uncached_tokens: left to prefill there [>= 0]; 0 if the prompt is prefilled already;
            cached_tokens: thought to be held there, for others to know.
        """
        if not self._open:
            return
        if self.tokens:
            queue = self._account.prefilling
            if queue[0] is self:  # the next has its turn from now on
                self._account.began_s = now
            queue.remove(self)
        waits = uncached_tokens if self.tokens else 0
        self._leave()
        if self.number and self._ledger.outbox is not None:
            self.number = self._ledger.outbox.moved(self.number, endpoint, waits, cached_tokens)
        self._account = account = self._ledger.account_of(endpoint)
        self._enter(waits, now)
        account.leases = dict.fromkeys(sorted(account.leases, key=_taken_s))  # it may be older than others

    def release(self) -> None:
        """The request is over. Repeating it has no effect."""
        if not self._open:
            return
        self._open = False
        if self.guessed:  # the gateway shows no answers any more
            self._ledger.sees = False
        self._leave()
        self._ledger.open_leases -= 1
        self._ledger.ended += 1
        if self.number and self._ledger.outbox is not None:
            self._ledger.outbox.ended(self.number)

    def _enter(self, uncached_tokens: int, now: float) -> None:
        account, holds = self._account, self._holds
        _expire(account, now, self._ledger)
        self.tokens = uncached_tokens
        account.leases[self] = None
        account.marks.update(holds.marks)
        account.rest_tokens += holds.rest_tokens
        account.inflight += 1
        account.pending += uncached_tokens
        if uncached_tokens:
            account.prefilling.append(self)

    def _leave(self) -> None:
        self.settle()
        self._account.inflight -= 1
        del self._account.leases[self]
        _lift(self._account, self._holds)


class Ledger:
    """All endpoints' entries. Bounded by the open requests and by the members of the pool."""

    __slots__ = ("_accounts", "ended", "open_leases", "outbox", "prefill_tokens_per_s", "sees")

    def __init__(self, prefill_tokens_per_s: float, entries: outbox.Outbox | None = None) -> None:
        """`prefill_tokens_per_s`: what one endpoint prefills [tokens/s, > 0]; `entries`: what happens to
        leases that have a number is noted there.
        """
        self.outbox = entries
        self.prefill_tokens_per_s = prefill_tokens_per_s
        self.open_leases = 0
        self.ended = 0  # leases released so far
        self.sees = False  # whether answers are seen to begin: one was, and none has ended unseen since
        self._accounts: dict[pool.EndpointId, _Account] = {}

    def load(self, endpoint: pool.EndpointId, now: float) -> Load:
        """What `endpoint` holds at `now` [s, monotonic]."""
        account = self._accounts.get(endpoint)
        if account is None:
            return Load(0, 0)
        _expire(account, now, self)
        return Load(account.inflight, account.pending, _kv_tokens(account))

    def loads(
        self, endpoints: Sequence[pool.EndpointId], now: float
    ) -> tuple[list[int], list[int], list[int]]:
        """Requests in flight, pending tokens and KV tokens held, each by endpoint; see `load`."""
        inflight, pending, kv = [0] * len(endpoints), [0] * len(endpoints), [0] * len(endpoints)
        accounts = self._accounts
        for index, endpoint in enumerate(endpoints):
            account = accounts.get(endpoint)
            if account is None:
                continue
            if account.prefilling:
                _expire(account, now, self)
            if account.inflight:
                inflight[index] = account.inflight
                pending[index] = account.pending
                kv[index] = len(account.marks) * MARK_TOKENS + account.rest_tokens
        return inflight, pending, kv

    def oldest_s(self, endpoint: pool.EndpointId, now: float) -> float | None:
        """Age of the oldest open lease of `endpoint` at `now` [s, monotonic]; None if none is open."""
        account = self._accounts.get(endpoint)
        oldest = None if account is None else next(iter(account.leases), None)
        return None if oldest is None else max(0.0, now - oldest.taken_s)

    def kv_after(self, endpoint: pool.EndpointId, more: Footprint) -> int:
        """Tokens of KV that open requests would hold at `endpoint` with one more of this footprint."""
        account = self._accounts.get(endpoint)
        if account is None:
            return more.tokens
        shared = _held(account, more.marks) * MARK_TOKENS
        return _kv_tokens(account) + more.tokens - shared

    def has_new_crowd(self, endpoint: pool.EndpointId) -> bool:
        """Whether more than three quarters of what is open at `endpoint` came within half a request's life.

        Half a life is over when half as many requests have ended as are open, at all endpoints (Little's
        law). In steady traffic about half of the open ones came so lately, or fewer.
        """
        account = self._accounts.get(endpoint)
        if account is None or not account.leases:
            return False
        newest_first = reversed(account.leases)
        lease = next(itertools.islice(newest_first, 3 * len(account.leases) // 4, None))
        return lease.is_younger_than(self.ended - self.open_leases / 2)

    def take(
        self,
        endpoint: pool.EndpointId,
        uncached_tokens: int,
        now: float,
        holds: Footprint = NOTHING,
    ) -> Lease:
        """A lease for a request of `uncached_tokens` [>= 0] sent to `endpoint` at `now` [s, monotonic].

        `holds`: the KV it holds until it is released.
        """
        self.open_leases += 1
        return Lease(self, self.account_of(endpoint), uncached_tokens, now, holds)

    def account_of(self, endpoint: pool.EndpointId) -> _Account:
        """The entry of `endpoint`, an empty one if there was none."""
        return self._accounts.setdefault(endpoint, _Account())

    def forget(self, endpoint: pool.EndpointId) -> None:
        """Begin with nothing open at `endpoint`; leases that are open now end harmlessly."""
        self._accounts.pop(endpoint, None)

    def retain(self, members: Collection[pool.EndpointId]) -> None:
        """Forget endpoints that are not in `members`; their open leases end harmlessly."""
        for endpoint in self._accounts.keys() - set(members):
            del self._accounts[endpoint]


def _taken_s(lease: Lease) -> float:
    return lease.taken_s


def _expire(account: _Account, now: float, book: Ledger) -> None:
    """Settle whose prefill is expected to be over by `now`."""
    queue = account.prefilling
    while queue:
        first = queue[0]
        if first.tokens:
            # what others of kvring see comes late, or not at all
            is_watched = book.sees and (first.number > 0 or book.outbox is None)
            patience = _SEEN_PATIENCE if is_watched else 1.0
            over_s = account.began_s + patience * first.tokens / book.prefill_tokens_per_s
            if over_s > now:
                break
            first.settle()
            first.guessed = True
            account.began_s = over_s
        else:  # over before it was expected to be, at some time after the last look
            account.began_s = max(account.began_s, account.looked_s)
        queue.popleft()
    if not queue:
        account.began_s = now
    account.looked_s = now


def _kv_tokens(account: _Account) -> int:
    return len(account.marks) * MARK_TOKENS + account.rest_tokens


def _lift(account: _Account, held: Footprint) -> None:
    account.rest_tokens -= held.rest_tokens
    marks = account.marks
    for mark in held.marks:
        left = marks[mark] - 1
        if left:
            marks[mark] = left
        else:
            del marks[mark]


def _held(account: _Account, marks: tuple[chain.BlockHash, ...]) -> int:
    """How many leading `marks` some open request holds; whoever holds one holds those before it."""
    low, high = 0, len(marks)
    while low < high:
        middle = (low + high + 1) // 2
        if marks[middle - 1] in account.marks:
            low = middle
        else:
            high = middle - 1
    return low
