"""Cases of load over time: each holds with its mechanism and not without it.

The bound of L06 is in test_simulation_cases.py; in each body mode it is in functional/test_limits.py and,
through Envoy, in envoy/test_burst.py. What else heals a lost stream's count (L09): functional/test_server.py.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter

import pytest

from extproc import ledger, outbox
from extproc.news import view
from extproc.sim import client, content, policies, sharing, simulation
from tests.sim import staged
from tests.sim.staged import LARGE, cold, made_of, once, really_open

NAMES = [f"replica-{number}" for number in range(8)]


class Zeroed(ledger.Ledger):
    """Sets an endpoint that left to nothing, and keeps its entry for when it is back."""

    __slots__ = ()

    def retain(self, members):
        for name in self._accounts.keys() - set(members):
            self._accounts[name].inflight = self._accounts[name].pending = 0


class Flapping(staged.Told):
    """Is told that replica-0 left, at 2 s, and that it is back, at 3 s; its process goes on all the while."""

    def place(self, request, now, chance):
        whole = getattr(self, "whole", None) or self.router.pool
        self.whole = whole
        names = NAMES[1:] if 2.0 <= now < 3.0 else NAMES
        if {one.id for one in self.router.pool.endpoints} != set(names):
            members = tuple(one for one in whole.endpoints if one.id in names)
            self.publish(type(whole)(whole.name, members, self.router.pool.generation + 1))
        return super().place(request, now, chance)


class TestRejoin:
    """L03: an endpoint leaves with ten requests open, and is back under its name."""

    @pytest.mark.parametrize(("book", "holds"), [(ledger.Ledger, True), (Zeroed, False)])
    def test_ends_of_old_requests_neither_go_below_zero_nor_hide_new_ones(self, book, holds):
        def traffic():
            yield from staged.filled({"replica-0": 10}, 1.0, output=600)  # until about 5.5 s
            for number in range(20):  # looks
                if number == 15:
                    yield from staged.filled({"replica-0": 5}, 4.4, output=2000)
                yield client.Start(1.5 + 0.2 * number, once(staged.keyed("replica-7", number, 0, 1)))
            yield client.Start(8.0, once(staged.keyed("replica-7", 99, 0, 1)))

        def spoil(told):
            told.keep_books_in(book(told.router.ledger.prefill_tokens_per_s))

        asked = made_of(traffic, models=(LARGE,) * 8, duration_s=9.0)
        records, told = staged.run(asked, "cost", spoil, Flapping)
        assert really_open(records, 8.0) == {"replica-0": 5}
        seen = [(at_s, load.get("replica-0", ledger.Load(0, 0))) for at_s, load in told.loads]
        assert next(load.inflight for at_s, load in seen if at_s > 1.4) == 10
        assert next(load.inflight for at_s, load in seen if at_s > 3.3) == 0
        assert (min(load.inflight for _, load in seen) >= 0 and seen[-1][1].inflight == 5) is holds
        assert told.load(60.0)["replica-0"].inflight <= 0
        assert (told.load(60.0)["replica-0"].inflight == 0) is holds


class Late(staged.Told):
    """Knows of requests what the engines tell once a second."""

    def choose(self, request, now, chance):
        decided = super().choose(request, now, chance)
        decided.lease.release()
        return decided


class TestAtOnce:
    """L04: each decision sees the ones before it."""

    @pytest.mark.parametrize(("kind", "holds"), [(staged.Told, True), (Late, False)])
    @pytest.mark.parametrize("policy", ["cost", "ring"])
    def test_256_arrivals_in_100_ms_are_not_sent_to_one(self, policy, kind, holds):
        def burst():
            for number in range(256):  # not all of them: what nearly all begin with is soon everywhere
                key, tokens = ("hot", 2000) if number % 8 else (f"own {number}", 0)
                ask = staged.keyed(key, content.piece(number), tokens, 50)
                if policy == "cost":  # which does not decide about explicit keys
                    ask = dataclasses.replace(ask, read=None)
                yield client.Start(1.0 + number * 0.1 / 256, once(ask))

        records, _ = staged.run(made_of(burst, models=(LARGE,) * 8, duration_s=2.0), policy, kind=kind)
        used = Counter(one.endpoint for one in records)
        assert (max(used.values()) <= 2 * 256 / 8 + 1) is holds

    @pytest.mark.parametrize(("kind", "holds"), [(staged.Told, True), (Late, False)])
    def test_prompts_of_32000_tokens_with_answers_of_one_count_while_they_are_computed(self, kind, holds):
        def burst():
            for number in range(16):
                yield client.Start(1.0 + 0.001 * number, once(cold(number, 32_000, 1)))

        records, _ = staged.run(made_of(burst, models=(LARGE,) * 8, duration_s=2.0), "cost", kind=kind)
        assert (set(Counter(one.endpoint for one in records).values()) == {2}) is holds


class Cut(sharing.Sharing):
    """Nothing of the first router arrives any more from 2 s on: it is lost with all it had open."""

    def _arrive(self, sender, data):
        if sender or self._timer.now < 2.0:
            super()._arrive(sender, data)


class TestOrphans:
    """L09: what a lost replica of kvring had open stays in nobody's count for good, and is told."""

    @pytest.mark.parametrize(("silent_s", "holds"), [(view.Settings().silent_s, True), (math.inf, False)])
    def test_its_leases_end_with_it_in_the_others_books(self, silent_s, holds):
        def parked():
            return (client.Start(0.02 * n, once(cold(n, 256, 1000))) for n in range(60))  # until about 9 s

        def telling(members, settings):
            return policies.Production(members, settings, outbox.Outbox())

        asked = made_of(parked, models=(LARGE,) * 8, duration_s=20.0, routers=3)
        run = simulation.Simulation(asked, telling, 1)
        run._sharing = Cut(run._clock, run._choosers, 0.01, view.Settings(silent_s=silent_s))
        records = run.run()
        for _ in range(4000):  # the others go on: no requests, only beats
            run._clock.step()
        assert all(one.error is None for one in records)
        books = [one.router.ledger for one in run._choosers[1:]]
        at_s = run._clock.now
        assert at_s > 30.0
        left = [book.load(name, at_s).inflight for book in books for name in NAMES]
        assert (sum(left) == 0) is holds
        assert [one.counts.expired for one in run._sharing._views[1:]] == [int(holds)] * 2


class TestFirstToken:
    """L08: a prompt weighs until its first token, where that is seen, and not until an estimate is over."""

    @pytest.mark.parametrize(("seen", "holds"), [(True, True), (False, False)])
    def test_a_prompt_of_40000_tokens_weighs_nothing_once_its_answer_begins(self, seen, holds):
        pending = []

        class Told(policies.Production):
            def place(self, request, now, chance):
                loads = [self.router.ledger.load(endpoint.id, now) for endpoint in self.router.pool.ready]
                pending.append(sum(load.pending for load in loads))
                return super().place(request, now, chance)

        def traffic():
            yield client.Start(0.0, once(client.Ask(content.Content.of([(1, 40_000)]), 400)))
            yield client.Start(4.0, once(client.Ask(content.Content.of([(2, 64)]), 4)))

        # The router is told ten times too low a rate.
        slow = dataclasses.replace(LARGE, token_s=LARGE.token_s * 10)
        asked = made_of(traffic, models=(LARGE,), duration_s=6.0, sees_first_token=seen)
        told = dataclasses.replace(asked, models=(slow,)).router_settings()
        records = simulation.run(asked, lambda members, _: Told(members, told), 1)
        assert records[0].first_s < records[1].started_s < records[0].finished_s
        assert pending[0] == 0
        assert (pending[1] == 0) is holds


class Ghost:
    """What a request that was given up leaves in the row of prompts: its time, and no weight."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def settle(self) -> None:
        self.tokens = 0


class Lingering(ledger.Lease):
    """Keeps its turn after its end."""

    __slots__ = ()

    def release(self):
        queue = self._account.prefilling
        if self.tokens and self in queue:
            queue[queue.index(self)] = Ghost(self.tokens)
        super().release()


class TestGivenUp:
    """L08: by estimate too, what clients give up before its turn makes nobody behind it wait."""

    @pytest.mark.parametrize(("kind", "holds"), [(ledger.Lease, True), (Lingering, False)])
    def test_what_is_believed_to_wait_does_wait(self, kind, holds):
        def traffic():
            rng = random.Random(1)
            for number, at_s in enumerate(staged.poisson(rng, 200.0, 12.0)):
                patience_s = rng.uniform(0.001, 0.02) if rng.random() < 0.5 else None
                yield client.Start(at_s, once(cold(number, 2000, 60, patience_s=patience_s)))

        def spoil(told):
            told.keep_books_in(staged.Book(told.router.ledger.prefill_tokens_per_s, kind))

        asked = made_of(traffic, models=(LARGE,) * 8, duration_s=13.0, sees_first_token=False)
        records, told = staged.run(asked, "cost", spoil)
        believed = waiting = 0
        for at_s, loads in told.loads[::100]:
            believed += sum(load.pending for load in loads.values())
            waiting += sum(
                one.prompt_tokens
                for one in records
                if one.started_s < at_s and one.first_s is not None and at_s < one.first_s
            )
        assert waiting > 100_000
        assert (believed < 2 * waiting) is holds
