"""Fleet: one pool at work: who its members are, how they fare, and what the router is told of it.

    source ── members ──┐
    health, an Envoy ───┼── standing ── pool ──> router.publish
    answers seen ───────┤
    scrape ── vitals ───┴── signals, restarts, capacity, learned figures ──> router

A member that the source names is watched from then on, and may be chosen once it has answered its health
check and was asked for its models; one that the source drops is forgotten.

Never: a pool without its members because one of them fails, or because watching it does: a fault of our own
is logged, counted, and the watching begun again; all of them out in silence. Called by: app.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from extproc import config, metrics, pool, router, standing, views, vitals
from extproc.endpoints import envoy_clusters, member, source

__all__ = ["Fleet"]

_log = logging.getLogger("kvring")

_SETTLE_S = 10.0  # after this long kvring starts without an answer from the source
_AGAIN_S = 1.0  # from a fault of ours in a task to its next try
_TUNE = 0.02  # a learned figure is taken over when it has moved by more than this share


class Fleet:
    """One pool's members. `settled` is set once all first members were asked, or their source is too slow."""

    def __init__(
        self,
        settings: config.Pool,
        chooser: router.Router,
        source_: source.Source,
        counted: metrics.Metrics,
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        """Args: source_: of the members; clock: monotonic [s]; chance: uniform in [0, 1)."""
        self.settings = settings
        self.router = chooser
        self.counted = counted
        self.clock = clock
        self.chance = chance
        self.learned = vitals.Learned()
        self.standings = standing.Standings()
        self.settled = asyncio.Event()
        self._source = source_
        self._group: asyncio.TaskGroup | None = None
        self._members: dict[pool.EndpointId, member.Member] = {}
        self._listed: Sequence[pool.Endpoint] = ()
        self._heard_of = False
        self._envoy: Mapping[str, bool] = {}
        self._panics = False
        self._was_ready: set[pool.EndpointId] = set()  # at some time, as members

    async def run(self) -> None:
        """Follow the source and watch its members until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.spawn("source", lambda: self._source.run(self._take))
            if self.settings.health.envoy is not None:
                envoy = self.settings.health.envoy
                asked = envoy_clusters.Settings(envoy.admin, envoy.cluster, envoy.poll_interval_s)
                view = envoy_clusters.Health(asked, self.clock, self.chance)
                self.spawn("envoy", lambda: view.run(self._take_envoy))
            await asyncio.sleep(_SETTLE_S)
            if not self.settled.is_set():
                _log.warning("starting without all endpoints", extra={"pool": self.settings.name})
                self.settled.set()

    def spawn(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """A task of this fleet that does `work` until it is cancelled, after a fault in it from the start.

        Args: what: one of metrics.TASKS.
        """
        if self._group is None:
            raise RuntimeError("a fleet that runs has members, no other")
        return self._group.create_task(self._forever(what, work))

    async def _forever(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
            except Exception:  # noqa: BLE001  (one endpoint must not take all away)
                self.counted.task_failed(what)
                _log.exception(
                    "fault in a task; it begins again", extra={"pool": self.settings.name, "task": what}
                )
            await asyncio.sleep(_AGAIN_S * (0.5 + self.chance()))

    def answered(self, endpoint: pool.Endpoint, *, good: bool) -> None:
        """An answer of `endpoint`, as it was when it was chosen, was seen on its way to the client."""
        found = self._members.get(endpoint.id)
        if found is not None and found.endpoint.address == endpoint.address:  # not of who had its name before
            found.answered(good=good)

    def publish(self, *, changed: bool = False) -> None:
        """Tell the router who is a member and who may be chosen, if that changed.

        Args: changed: not only what is against an endpoint may have. Asked after every probe and reading, so
            it must cost nothing where there is no news.
        """
        now = self.clock()
        if not changed and not self.standings.may_differ(now):
            return
        ready = self.standings.ready(self._members, now)
        endpoints = [
            pool.Endpoint(listed.id, listed.address, listed.weight, ready[listed.id], self._models(listed))
            for listed in self._listed
        ]
        before = self.router.pool
        made = pool.make(before.name, endpoints, before.generation + 1)
        if made.endpoints == before.endpoints:
            return
        was = {endpoint.id: endpoint.ready for endpoint in before.endpoints}
        for endpoint in made.endpoints:
            if was.get(endpoint.id, False) != endpoint.ready:
                against = self.standings.against(endpoint.id, now)
                calm = endpoint.ready or against == (standing.Against.FULL,)  # comes and goes under overload
                _log.log(
                    logging.INFO if calm else logging.WARNING,
                    "endpoint is ready" if endpoint.ready else "endpoint is not ready",
                    extra={
                        "pool": made.name,
                        "endpoint": endpoint.id,
                        "against": [one.value for one in against],
                        "ready": len(made.ready),
                    },
                )
        self.router.publish(made)
        for endpoint in made.ready:
            if endpoint.id not in self._was_ready and self.settled.is_set():
                self.router.ramp.begin(
                    endpoint.id, now
                )  # from when it can work, however long it took to load
        self._was_ready.update(endpoint.id for endpoint in made.ready)
        self._watch_panic(made)

    def retune(self) -> None:
        """Let the router reckon with what was learned, as far as it was not configured."""
        known, learned, given = self.router.settings, self.learned, self.settings
        rate, dense = known.prefill_tokens_per_s, known.bytes_per_token
        if given.prefill_tokens_per_s is None:
            rate = learned.prefill_tokens_per_s or rate
        if given.bytes_per_token is None:
            dense = learned.bytes_per_token or dense
        moved = abs(rate / known.prefill_tokens_per_s - 1), abs(dense / known.bytes_per_token - 1)
        if max(moved) > _TUNE:
            self.router.retune(rate, dense)

    def asked_once(self) -> None:
        """A member was asked for its health and its models: see whether all were."""
        if self._heard_of and all(one.is_known for one in self._members.values()):
            self.settled.set()

    def view(self, now: float) -> views.PoolView:
        """The pool as it stands at `now` [s, monotonic]."""
        state = self._source.state
        learned = self.learned
        return views.look(
            self.router,
            now,
            {name: one.known(now) for name, one in self._members.items()},
            views.SourceView(
                next(key for key in config.SOURCES if getattr(self.settings, key) is not None),
                self._source.contact_age_s(now),
                None if state.problem is None else state.problem.value,
                state.detail,
                {problem.value: count for problem, count in state.faults.items()},
                state.resyncs,
            ),
            (learned.prefill_tokens_per_s, learned.bytes_per_token),
        )

    def _take(self, listed: Sequence[pool.Endpoint]) -> None:
        """The source's members, all of them."""
        self._heard_of = True
        now = self.clock()
        before = {name: one.endpoint for name, one in self._members.items()}
        stay = {one.id for one in listed if one.id in before and before[one.id].address == one.address}
        for name in before.keys() - stay:
            self._members.pop(name).stop()
        self.standings.retain(stay)
        self._was_ready &= stay
        self._listed = tuple(listed)
        for endpoint in listed:
            known = self._members.get(endpoint.id)
            if known is None:
                if endpoint.id in before:
                    self.router.replace(endpoint.id, now)  # another process under the old name
                # Before the start all are taken for well until asked; an engine under load may be slow then.
                is_new = self.settled.is_set()
                self.standings.set(endpoint.id, standing.Against.NEW, holds=is_new)
                known = self._members[endpoint.id] = member.Member(self, endpoint, is_new=is_new)
            elif (known.endpoint.models is None) is not (endpoint.models is None):
                known.stop()  # from now on it is asked for its models, or no more
                known = self._members[endpoint.id] = member.Member(self, endpoint, is_new=False)
            self.standings.set(endpoint.id, standing.Against.SOURCE, holds=not endpoint.ready)
            known.envoy(well=self._envoy.get(endpoint.address, True))
        self.publish(changed=True)
        self.asked_once()

    def _take_envoy(self, well: Mapping[str, bool]) -> None:
        self._envoy = well
        for one in self._members.values():
            one.envoy(well=well.get(one.endpoint.address, True))
        self.publish()

    def _models(self, listed: pool.Endpoint) -> frozenset[str] | None:
        return listed.models if listed.models is not None else self._members[listed.id].models_told

    def _watch_panic(self, made: pool.Pool) -> None:
        panics = not made.ready
        if panics and not self._panics and self.settled.is_set():
            _log.error(
                "nobody can be chosen: no opinion until somebody is ready",
                extra={"pool": made.name, "members": len(made.endpoints)},
            )
        self._panics = panics
