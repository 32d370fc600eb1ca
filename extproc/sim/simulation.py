"""Simulation: one run of a scenario under one policy and seed, on a virtual clock.

Scripts ask; a chooser places each request; the chosen replica's engine computes; tokens resume the scripts.
Nothing waits: minutes of traffic are a few thousand events. A chooser learns what the sidecar would: first
token and end of each request (its lease), a scrape each `scrape_s`, a changed pool `detect_s` after.

Law: equal scenario, policy and seed give equal records, in any process. Called by: comparison, tests.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from extproc import choice, ledger, policy, pool
from extproc.sim import chooser, client, clock, fleet, flight, job, policies, scenario, sharing

__all__ = ["DRAIN_S", "Simulation", "run"]

DRAIN_S = 3600.0
"""Requests not finished so long after the last one began count as failed."""

_REFUSED_S = 0.001  # a refused connection is told at once


def run(
    asked: scenario.Scenario,
    factory: chooser.Factory,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> list[flight.Record]:
    """The records of all requests, in the order they began.

    Args: seed, any integer; progress, told now and then how much of the duration is over [0..1].
    """
    return Simulation(asked, factory, seed).run(progress)


class Simulation:
    """One run's state."""

    def __init__(self, asked: scenario.Scenario, factory: chooser.Factory, seed: int) -> None:
        self._asked = asked
        self._clock = clock.Clock()
        self._random = random.Random(f"{seed}/routing")
        names = {f"replica-{number}": model for number, model in enumerate(asked.models)}
        self._fleet = fleet.Fleet(names, asked.external_kv_tokens, asked.shown)
        settings = replace(asked.router_settings(), replicas=asked.unheard + 1)
        views = 1 if asked.sharing is scenario.Sharing.EXACT else asked.routers
        self._choosers = [factory(self._fleet.pool, settings) for _ in range(views)]
        self._sharing: sharing.Sharing | None = None
        if asked.sharing is scenario.Sharing.DELAYED:
            own = [one.shares() for one in self._choosers if isinstance(one, policies.Production)]
            if own:  # baselines have nothing to share
                self._choosers = list[chooser.Chooser](own)
                self._sharing = sharing.Sharing(self._clock, own, asked.sharing_delay_s)
        self._settings = settings
        # The simulator's own count of work, the same for every policy.
        self._ledger = ledger.Ledger(settings.prefill_tokens_per_s)
        self._starts = asked.starts(seed)
        self._records: list[flight.Record] = []
        self._open = 0  # requests in flight

    @property
    def told(self) -> tuple[int, int]:
        """Messages and bytes that routers have told each other."""
        return (0, 0) if self._sharing is None else (self._sharing.told, self._sharing.told_bytes)

    @property
    def replicas(self) -> Mapping[pool.EndpointId, fleet.Replica]:
        """The model servers as they stand; one that is down has no engine."""
        return self._fleet.replicas

    def run(self, progress: Callable[[float], None] | None = None) -> list[flight.Record]:
        """Run to the end."""
        timer, asked = self._clock, self._asked
        for event in asked.events:
            timer.at(event.at_s, functools.partial(self._happen, event))
        timer.at(asked.scrape_s, self._scrape)
        self._start_next()
        told_s = 0.0
        while timer.step():
            if progress is not None and timer.now >= told_s + 1:
                told_s = timer.now
                progress(min(timer.now / asked.duration_s, 1.0))
            if timer.now >= asked.duration_s and not self._open:
                break
            if timer.now >= asked.duration_s + DRAIN_S:
                break
        for record in self._records:
            if record.finished_s is None and record.error is None:
                record.error = "unfinished"
        return self._records

    # scripts

    def _start_next(self) -> None:
        """Schedule the next script; the scripts' own order is by time."""
        start = next(self._starts, None)
        if start is not None and start.at_s < self._asked.duration_s:
            self._clock.at(start.at_s, functools.partial(self._start, start.script))

    def _start(self, script: client.Script) -> None:
        self._start_next()
        self._resume(flight.Thread(script), None)

    def _resume(self, thread: flight.Thread, answer: client.Answer | None) -> None:
        try:
            step = thread.script.send(answer)
        except StopIteration:
            self._end(thread)
            return
        match step:
            case client.Ask():
                self._ask(thread, step)
            case client.Pause(seconds):
                self._clock.after(seconds, functools.partial(self._resume, thread, None))
            case client.Fork(scripts):
                thread.children = len(scripts)
                for script in scripts:
                    self._clock.after(0, functools.partial(self._resume, flight.Thread(script, thread), None))
                if not scripts:
                    self._clock.after(0, functools.partial(self._resume, thread, None))

    def _end(self, thread: flight.Thread) -> None:
        parent = thread.parent
        if parent is not None:
            parent.children -= 1
            if not parent.children:
                self._resume(parent, None)

    # requests

    def _ask(self, thread: flight.Thread, ask: client.Ask) -> None:
        now = self._clock.now
        if now >= self._asked.duration_s:
            return  # no more requests: the script is left where it stands
        record = flight.Record(ask.group, now, ask.prompt.tokens, ask.output_tokens)
        self._records.append(record)
        index = self._random.randrange(len(self._choosers)) if len(self._choosers) > 1 else 0
        request = _request(ask)
        decision = self._choosers[index].place(request, now, self._random.random())
        one = flight.Flight(str(len(self._records)), record, thread)
        self._open += 1
        if isinstance(decision, choice.NoEndpoint):
            self._fail(one, "no_endpoint")
            return
        made = decision.choice
        one.leases.append(decision.lease)
        record.endpoint = made.endpoint.id
        record.overflow = made.reason is policy.Reason.OVERFLOW
        replica = self._fleet.replicas[made.endpoint.id]
        if replica.engine is None:
            self._fail(one, "refused")
            return
        self._advance(replica)
        self._submit(replica, one, ask)
        self._poke()

    def _submit(self, replica: fleet.Replica, one: flight.Flight, ask: client.Ask) -> None:
        engine, now = replica.engine, self._clock.now
        if engine is None:
            return
        whole = ask.prompt.then(ask.answer, ask.output_tokens) if ask.answer else ask.prompt
        hashes = whole.blocks(replica.model.block_tokens)
        reuse = self._asked.reuse
        device, beyond = engine.cache.match(hashes, ask.prompt.tokens) if reuse else (0, 0)
        cached = (device + beyond) * replica.model.block_tokens
        self._count(replica, one, ask.prompt.tokens - cached)
        replica.flights[one.request_id] = one
        rejection = engine.submit(
            job.Request(one.request_id, ask.prompt.tokens, ask.output_tokens, hashes, reuse), now
        )
        if rejection is not None:
            del replica.flights[one.request_id]
            self._fail(one, rejection.value)
        elif ask.patience_s is not None:
            self._clock.after(ask.patience_s, functools.partial(self._hang_up, replica, one))
        self._watch(replica)

    def _hang_up(self, replica: fleet.Replica, one: flight.Flight) -> None:
        """Its client goes, if it still waits."""
        self._advance(replica)
        if replica.engine is None or replica.flights.get(one.request_id) is not one:
            return
        replica.engine.abort(one.request_id)
        del replica.flights[one.request_id]
        self._fail(one, "hung_up")
        self._watch(replica)

    def _count(self, replica: fleet.Replica, one: flight.Flight, uncached: int) -> None:
        """Note how full the chosen replica was, and take the simulator's own lease."""
        now, limits = self._clock.now, self._settings.limits
        ready = self._fleet.pool.ready
        total = sum(self._ledger.load(endpoint.id, now).work for endpoint in ready)
        bound = ledger.bound(
            total + uncached + ledger.REQUEST_TOKENS, len(ready), limits.factor, limits.floor_tokens
        )
        one.record.fullness = self._ledger.load(replica.id, now).work / bound
        one.truth = self._ledger.take(replica.id, uncached, now)

    def _poke(self) -> None:
        if self._sharing is not None:
            self._sharing.poke()

    def _fail(self, one: flight.Flight, error: str) -> None:
        one.record.error = error
        self._open -= 1
        one.release()
        self._poke()
        self._clock.after(
            _REFUSED_S + self._asked.client_s,
            functools.partial(self._resume, one.thread, client.Answer(error)),
        )

    # replicas

    def _watch(self, replica: fleet.Replica) -> None:
        """Come back when the engine's next tokens are due."""
        if replica.engine is None:
            return
        due_s = replica.engine.next_step_at
        if due_s is not None and due_s != replica.due_s:
            replica.due_s = due_s
            self._clock.at(due_s, functools.partial(self._due, replica, due_s))

    def _due(self, replica: fleet.Replica, due_s: float) -> None:
        if replica.due_s == due_s:  # else the step was cut, or the process ended
            self._advance(replica)
            self._watch(replica)

    def _advance(self, replica: fleet.Replica) -> None:
        engine = replica.engine
        if engine is None:
            return
        for token in engine.advance(self._clock.now):
            one = replica.flights[token.request_id]
            record = one.record
            at_s = token.at + self._asked.client_s
            if token.position == 0:
                record.first_s = at_s
                record.device_tokens, record.host_tokens, record.external_tokens = engine.take_hits(
                    one.request_id
                )
                one.prefilled(seen=self._asked.sees_first_token)
            if token.position == self._asked.shown or (token.last and record.shown_s is None):
                record.shown_s = at_s
            if token.last:
                del replica.flights[one.request_id]
                record.finished_s = at_s
                self._open -= 1
                one.release()
                self._clock.at(at_s, functools.partial(self._resume, one.thread, client.Answer()))
        self._poke()

    def _scrape(self) -> None:
        now = self._clock.now
        for replica in self._fleet.replicas.values():
            signals = replica.signals()
            if signals is not None:
                for one in self._choosers:
                    one.observe(replica.id, signals, now)
        if now < self._asked.duration_s + DRAIN_S:
            self._clock.after(self._asked.scrape_s, self._scrape)

    def _happen(self, event: scenario.Event) -> None:
        if event.kind is scenario.Kind.ADD:
            self._fleet.join(event.endpoint, self._asked.models[0], self._clock.now)
            self._publish()
            return
        for replica in self._fleet.replicas.values():
            if event.endpoint in ("*", replica.id):
                for one in self._fleet.kill(replica):
                    self._fail(one, "endpoint_died")
                if event.kind is scenario.Kind.RESTART:
                    self._clock.after(self._asked.boot_s, functools.partial(self._boot, replica))
        self._clock.after(self._asked.detect_s, self._see)

    def _boot(self, replica: fleet.Replica) -> None:
        if replica.engine is None:  # else another restart was quicker
            self._fleet.boot(replica, self._clock.now)
        self._clock.after(self._asked.detect_s, self._see)

    def _see(self) -> None:
        if self._fleet.see():
            self._publish()

    def _publish(self) -> None:
        for one in self._choosers:
            one.publish(self._fleet.pool)


def _request(ask: client.Ask) -> chooser.Request:
    shown = chooser.Request(
        chain=ask.prompt.chain(),
        tokens=ask.prompt.tokens,
        session=ask.session,
        adapter=ask.adapter,
        system_tokens=ask.system_tokens,
        system=ask.system,
        user=ask.user,
    )
    read = ask.read
    if read is None:
        return shown
    return replace(
        shown,
        chain=read.chain,
        tokens=read.tokens,
        unread_tokens=read.unread_tokens,
        prefills=read.prefills,
        unkeyed=read.unkeyed,
        explicit=read.explicit,
        explicit_by=read.explicit_by,
        previous=read.previous,
    )
