"""Views: a pool and its endpoints as they stand: one record, which metrics, /api/state and tests read.

Never: anything of a prompt. Called by: endpoints.fleet (makes), metrics, admin (read).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from extproc import apart, ledger, pool, router, sent, signals, standing

__all__ = ["EndpointView", "Known", "PoolView", "SharingView", "SourceView", "Views", "alone", "look"]


@dataclass(frozen=True, slots=True)
class SourceView:
    """Where the members come from. `age_s`: since it last gave a good answer, None if it never did."""

    kind: str = ""
    age_s: float | None = None
    problem: str | None = None
    detail: str = ""
    faults: Mapping[str, int] = field(default_factory=dict)
    resyncs: int = 0


@dataclass(frozen=True, slots=True)
class SharingView:
    """How this replica and the others share what they know.

    `kind`: of the link. `problem`: what is wrong with it, "" if nothing. `peers`: other replicas heard
    lately; `peer_leases`: their open requests; `warm`: whether what they knew before was heard. `lost`,
    `mended`: messages and entries that could not be used, and holes that were noticed, by why [totals].
    The rest: totals.
    """

    kind: str
    connected: bool
    problem: str
    peers: int
    peer_leases: int
    warm: bool
    lost: Mapping[str, int]
    mended: Mapping[str, int]
    told: int
    told_bytes: int
    heard: int
    heard_bytes: int
    dispatches: int


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an endpoint beside what the router knows.

    `reading`, asked for at `read_s` [s, monotonic]; `scrape_problem`: why there is no newer one. `predicted`,
    `true`: shares of prompt tokens cached, as thought and as told, in the last window; `scale`: see
    `vitals.truth`. `older`: a reading of one to two minutes before.
    """

    against: tuple[standing.Against, ...] = ()
    reading: signals.Reading | None = None
    read_s: float | None = None
    scrape_problem: str = ""
    predicted: float | None = None
    true: float | None = None
    scale: float = 1.0
    older: signals.Reading | None = None

    def ttft_s(self, share: float) -> float | None:
        """The time to first token of the last minute or two below which `share` [0..1] of them lay [s]."""
        if self.reading is None or self.older is None:
            return None
        before = dict(self.older.ttft)
        rise = [(bound, max(0.0, count - before.get(bound, 0.0))) for bound, count in self.reading.ttft]
        return signals.quantile(rise, share)


@dataclass(frozen=True, slots=True)
class EndpointView:
    """An endpoint.

    `share`: see `ramp`; `signal`: the newest, however old; `sent`: totals; `oldest_lease_s`: age [s], None
    without an open request; `work`: load in one number [tokens]; `filled`: its load over the pool's bound
    [ratio]: from 1 on it takes no more, but up to 1.5 where leaving is dear (see `policy.cost`).
    """

    endpoint: pool.Endpoint
    inflight: int
    pending_tokens: int
    residency_blocks: int
    share: float
    signal: signals.Signal | None
    sent: sent.Sent
    known: Known
    oldest_lease_s: float | None = None
    capacity_blocks: int = 0
    work: float = 0.0
    filled: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool. `bound`: up to which an endpoint takes more: open requests by `cost`, work [tokens] by others
    (see `policy.Limits`).
    """

    name: str
    generation: int
    open_leases: int
    settings: router.Settings
    endpoints: tuple[EndpointView, ...]
    source: SourceView = SourceView()
    prefill_learned: float | None = None
    bytes_learned: float | None = None
    bound: float = 0.0

    @property
    def panics(self) -> bool:
        """Whether nobody may be chosen."""
        return not any(view.endpoint.ready for view in self.endpoints)


Views = Callable[[float], Sequence[PoolView]]
"""All pools at a time [s, monotonic]."""


def look(
    chooser: router.Router,
    now: float,
    known: Mapping[pool.EndpointId, Known],
    source: SourceView,
    learned: tuple[float | None, float | None],
) -> PoolView:
    """The pool of `chooser` at `now`; `learned`: prefill rate [tokens/s] and bytes per token."""
    loads = {endpoint.id: _load(chooser, endpoint.id, now) for endpoint in chooser.pool.endpoints}
    bound = _bound(chooser, loads)
    endpoints = [
        EndpointView(
            endpoint=endpoint,
            inflight=loads[endpoint.id].inflight,
            pending_tokens=loads[endpoint.id].pending,
            residency_blocks=chooser.residency.blocks(endpoint.id),
            share=chooser.ramp.share(endpoint.id, now),
            signal=chooser.signals.newest(endpoint.id),
            sent=chooser.sent_own.to(endpoint.id),
            known=known.get(endpoint.id, Known()),
            oldest_lease_s=chooser.ledger.oldest_s(endpoint.id, now),
            capacity_blocks=chooser.residency.capacity_blocks(endpoint.id),
            work=loads[endpoint.id].work,
            filled=loads[endpoint.id].bounded / bound if bound else 0.0,
        )
        for endpoint in chooser.pool.endpoints
    ]
    return PoolView(
        chooser.pool.name,
        chooser.pool.generation,
        chooser.ledger.open_leases,
        chooser.settings,
        tuple(endpoints),
        source,
        *learned,
        bound=bound,
    )


@dataclass(frozen=True, slots=True)
class _Load:
    """`bounded`: what the pool's policy holds against its bound."""

    inflight: int
    pending: int
    work: float
    bounded: float


def _load(chooser: router.Router, endpoint: pool.EndpointId, now: float) -> _Load:
    load = chooser.ledger.load(endpoint, now)
    _, foreign = chooser.signals.load(endpoint, chooser.sent.to(endpoint).uncached_tokens, now)
    work = (load.work + ledger.REQUEST_TOKENS * foreign) / chooser.ramp.share(endpoint, now)
    bounded = float(load.inflight + foreign) if chooser.settings.policy == "cost" else work
    return _Load(load.inflight, load.pending, work, bounded)


def _bound(chooser: router.Router, loads: Mapping[pool.EndpointId, _Load]) -> float:
    limits = apart.limits(chooser.settings.limits, chooser.unheard, told=bool(chooser.signals))
    ready = chooser.pool.ready
    by_requests = chooser.settings.policy == "cost"
    total = sum(loads[endpoint.id].bounded for endpoint in ready) + by_requests
    floor = limits.floor_requests if by_requests else limits.floor_tokens
    return ledger.bound(total, max(len(ready), 1), limits.factor, floor)


def alone(chooser: router.Router) -> Views:
    """Views of one pool of which nothing is known but what its router knows."""
    return lambda now: [look(chooser, now, {}, SourceView(), (None, None))]
