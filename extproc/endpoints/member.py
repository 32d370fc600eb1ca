"""Member: one endpoint being watched: its probes, its readings, and what follows from them.

Never: an endpoint that delays another. Called by: endpoints.fleet.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from extproc import ledger, pool, scrape, sent, signals, standing, views, vitals
from extproc.endpoints import health
from extproc.vitals import learned as _learned

if TYPE_CHECKING:
    from extproc.endpoints import fleet

__all__ = ["Member"]

_log = logging.getLogger("kvring")

_FULL_INTERVALS = 2  # a full queue keeps an endpoint out for so many scrapes
_TTFT_S = 60.0


class Member:
    """One endpoint of a fleet. `models_told`: by itself; None if it does not tell."""

    def __init__(self, owner: fleet.Fleet, endpoint: pool.Endpoint, *, is_new: bool) -> None:
        """Watch `endpoint` from now on; `is_new`: it must answer well once before it may be chosen."""
        self.endpoint = endpoint
        self._is_new = is_new
        self.models_told: frozenset[str] | None = None
        self._fleet = owner
        self._judge = health.Judge(owner.settings.health)
        self._probed = False
        self._models_known = True
        self._restarts = vitals.Restarts()
        self._refusals = vitals.Refusals()
        self._truth = vitals.Truth()
        self._window = _learned.Window()
        self._reading: signals.Reading | None = None
        self._read_s: float | None = None
        self._silent = ""
        self._asked_s = 0.0
        self._asked_sent = sent.Sent()
        self._asked_load = ledger.Load(0, 0)
        self._size: tuple[float, float] = (0.0, 0.0)  # of its cache, as the router was told last
        self._older: list[tuple[float, signals.Reading]] = []  # readings of a minute and two ago
        settings = owner.settings
        self._tasks = [owner.spawn("probe", lambda: self._probe(endpoint.address))]
        if settings.signals.interval_s:
            ask_models = endpoint.models is None and settings.signals.models_interval_s > 0
            self._models_known = not ask_models
            self._tasks.append(
                owner.spawn("scrape", lambda: self._scrape(endpoint.address, ask_models=ask_models))
            )

    @property
    def is_known(self) -> bool:
        """Whether it was asked for its health and its models, with or without an answer."""
        return self._probed and self._models_known

    def stop(self) -> None:
        """Watch it no more."""
        for task in self._tasks:
            task.cancel()

    def envoy(self, *, well: bool) -> None:
        """Whether an Envoy holds it for well; the fleet publishes."""
        self._set(standing.Against.ENVOY, holds=not well)

    def answered(self, *, good: bool) -> None:
        """One of its answers was seen on its way to the client."""
        if self._refusals.answered(good=good, now=self._fleet.clock()):
            self._eject("answers seen")

    def known(self, now: float) -> views.Known:
        """What is known of it at `now` [s, monotonic]."""
        return views.Known(
            self._fleet.standings.against(self.endpoint.id, now),
            self._reading,
            self._read_s,
            self._silent,
            self._truth.predicted,
            self._truth.true,
            self._truth.scale,
            self._older[0][1] if self._older else None,
        )

    async def _probe(self, address: str) -> None:
        await health.watch(address, self._fleet.settings.health, self._told, self._fleet.chance)

    async def _scrape(self, address: str, *, ask_models: bool) -> None:
        asked = self._fleet.settings.signals
        await scrape.watch(address, asked, self, self._fleet.chance, ask_models=ask_models)

    # ---- its health ----

    def _told(self, problem: str) -> None:
        """One probe's answer."""
        fleet = self._fleet
        fleet.counted.probed(good=not problem)
        verdict = self._judge.judge(problem)
        if verdict is health.Verdict.REFUSED:
            self._restarts.refused()
        if verdict is not health.Verdict.OPEN:
            self._set(standing.Against.REFUSED, holds=verdict is health.Verdict.REFUSED)
            self._set(standing.Against.PROBE, holds=verdict is health.Verdict.FAILED)
        if verdict is health.Verdict.READY and self._restarts.well():
            self._restarted()
        if not self._probed and self._is_new and verdict is health.Verdict.OPEN:
            self._set(standing.Against.PROBE, holds=bool(problem))  # nothing stands from before
        self._probed = True
        self._settle()

    def _settle(self, *, changed: bool = False) -> None:
        if self.is_known:
            self._set(standing.Against.NEW, holds=False)
        self._fleet.publish(changed=changed)
        self._fleet.asked_once()

    # ---- its signals (scrape.Heard) ----

    def asking(self) -> None:
        """Metrics are being asked for."""
        router, name = self._fleet.router, self.endpoint.id
        self._asked_s = self._fleet.clock()
        self._asked_sent = router.sent.to(name).net()
        self._asked_load = router.ledger.load(name, self._asked_s)

    def silent(self, problem: str, *, nobody: bool) -> None:
        """It did not tell its metrics."""
        self._silent = problem
        self._fleet.counted.scraped(problem)
        if nobody:  # no need to wait for the next probe, which will tell when somebody listens again
            self._restarts.refused()
            self._set(standing.Against.REFUSED, holds=True)
            self._fleet.publish()

    def models(self, names: frozenset[str] | None) -> None:
        """The models it serves."""
        if names is not None:
            names |= self._reading.adapters if self._reading is not None else frozenset()
        changed = names is not None and names != self.models_told
        if changed:
            self.models_told = names
        self._models_known = True
        self._settle(changed=changed)

    def reading(self, reading: signals.Reading) -> None:
        """Its metrics."""
        fleet, name, now = self._fleet, self.endpoint.id, self._fleet.clock()
        fleet.counted.scraped("")
        self._silent, self._reading, self._read_s = "", reading, self._asked_s
        if self._restarts.read(reading):
            self._restarted()
        if self._truth.read(reading, self._asked_sent, self._asked_s):
            fleet.router.residency.forget(name)
            self._happened("cache_lost")
        if reading.asleep:
            fleet.router.residency.forget(name)
        self._set(standing.Against.ASLEEP, holds=reading.asleep)
        if self._refusals.read(reading, now):
            self._eject("its own counters")
        elif self._refusals.well:
            fleet.standings.calm(name)
        if self._refusals.full:
            full_s = _FULL_INTERVALS * fleet.settings.signals.interval_s
            fleet.standings.eject(name, standing.Against.FULL, full_s, now)
        self._signal(reading, now)
        if reading.whole:
            fleet.learned.read(self._window, reading, self._asked_sent)
            fleet.retune()
            self._keep_for_ttft(reading)
        told = self.models_told
        news = told is not None and not reading.adapters <= told  # loaded since it was asked for its models
        if told is not None and news:
            self.models_told = told | reading.adapters
        fleet.publish(changed=news)

    def _signal(self, reading: signals.Reading, now: float) -> None:
        """Tell the router the engine's load and capacity."""
        router, name, given = self._fleet.router, self.endpoint.id, self._fleet.settings
        kv_tokens = given.kv_tokens or reading.kv_tokens or router.settings.kv_tokens
        host_tokens = given.host_kv_tokens
        if host_tokens is None:
            host_tokens = reading.host_kv_tokens or 0
        asked, own = self._asked_load, router.ledger.load(name, now)
        foreign = max(0, round(reading.in_engine or 0.0) - max(asked.inflight, own.inflight))
        held = (reading.kv_usage or 0.0) * kv_tokens
        foreign_kv = max(0.0, held - max(asked.kv_tokens, own.kv_tokens))
        sent_tokens = self._asked_sent.uncached_tokens
        told = signals.Signal(self._asked_s, reading.kv_usage, kv_tokens, foreign, sent_tokens, foreign_kv)
        router.signals.put(name, told)
        size = kv_tokens * self._truth.scale, host_tokens
        if size != self._size:
            self._size = size
            router.resize(name, *size)

    def _restarted(self) -> None:
        self._truth.restart()
        self._refusals.forgive()
        self._older.clear()
        self._fleet.router.restart(self.endpoint.id, self._fleet.clock())
        self._happened("restarted")

    def _eject(self, why: str) -> None:
        fleet = self._fleet
        seconds = fleet.settings.health.eject_s
        self._refusals.forgive()
        if not seconds:
            return
        lasts_s = fleet.standings.eject_longer(
            self.endpoint.id, standing.Against.FAILING, seconds, fleet.clock()
        )
        fleet.router.ramp.begin(self.endpoint.id, fleet.clock() + lasts_s)
        self._happened("ejected", why=why, lasts_s=lasts_s)
        fleet.publish()

    def _happened(self, event: str, **more: object) -> None:
        fleet = self._fleet
        fleet.counted.happened(fleet.settings.name, event)
        _log.warning(
            f"endpoint {event.replace('_', ' ')}",
            extra={"pool": fleet.settings.name, "endpoint": self.endpoint.id, **more},
        )

    def _set(self, against: standing.Against, *, holds: bool) -> None:
        self._fleet.standings.set(self.endpoint.id, against, holds=holds)

    def _keep_for_ttft(self, reading: signals.Reading) -> None:
        if not self._older or self._asked_s - self._older[-1][0] >= _TTFT_S:
            self._older = [*self._older[-1:], (self._asked_s, reading)]
