"""Cases of counting requests over time, leases: each holds with its mechanism and not without it.

How streams end through gRPC and Envoy (L01, L02, L07): functional/test_server.py, functional/test_picker.py,
envoy/test_leases.py.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from extproc import ledger
from extproc.sim import client, content, scenario
from tests.sim import staged
from tests.sim.staged import LARGE, cold, made_of, once, really_open

NAMES = [f"replica-{number}" for number in range(8)]


def counting_with(kind: type[ledger.Lease]):
    """What makes a router count with leases of `kind`."""

    def spoil(told):
        told.keep_books_in(staged.Book(told.router.ledger.prefill_tokens_per_s, kind))

    return spoil


class OnlyPrefilled(ledger.Lease):
    """Given back by whoever saw an answer begin."""

    __slots__ = ()

    def release(self):
        if not self.tokens:
            super().release()


class TestEndings:
    """L01: however requests end, nothing is left."""

    @pytest.mark.parametrize(("kind", "holds"), [(ledger.Lease, True), (OnlyPrefilled, False)])
    def test_after_4000_requests_of_every_ending_all_loads_are_zero(self, kind, holds):
        def traffic():
            rng = random.Random(1)
            for number, at_s in enumerate(staged.poisson(rng, 200.0, 20.0)):
                # some 0.05 s of prefill, 0.5 s of answer
                patience_s = rng.choice([None, rng.uniform(0.001, 0.04), rng.uniform(0.1, 0.5)])
                prompt = content.Content.of(
                    [(content.piece(number % 50), 1000), (content.piece(number), 500)]
                )
                yield client.Start(at_s, once(client.Ask(prompt, 64, patience_s=patience_s)))

        kills = tuple(  # and once all at a time, as where Envoy is lost
            scenario.Event(scenario.Kind.RESTART, name, at_s)
            for name, at_s in (("replica-3", 5.0), ("replica-3", 8.0), ("*", 12.0))
        )
        asked = made_of(traffic, models=(LARGE,) * 8, duration_s=21.0, events=kills, detect_s=0.1, boot_s=0.3)
        records, told = staged.run(asked, "cost", counting_with(kind))
        seen = Counter(one.error for one in records)
        assert set(seen) == {None, "hung_up", "endpoint_died", "refused", "no_endpoint"}
        assert sum(one.error == "hung_up" and one.first_s is None for one in records) > 200
        assert sum(one.error == "hung_up" and one.first_s is not None for one in records) > 200
        loads = set(told.load(30.0).values())
        assert (loads == {ledger.Load(0, 0)} and told.router.ledger.open_leases == 0) is holds
        if holds:
            kept = [told.router.ledger.account_of(name) for name in NAMES]
            assert [(len(one.leases), len(one.marks), len(one.prefilling)) for one in kept] == [(0, 0, 0)] * 8


class BySession(staged.Told):
    """Keeps one lease for each id that requests bring."""

    def __init__(self, *how):
        super().__init__(*how)
        self._leases: dict[str, ledger.Lease] = {}

    def choose(self, request, now, chance):
        decided = super().choose(request, now, chance)
        before = self._leases.setdefault(request.session, decided.lease)
        if before is not decided.lease:
            decided.lease.release()
        return decided


class TestIds:
    """L02: streams that bring the same id, or none, are counted and given back separately."""

    @pytest.mark.parametrize(("kind", "holds"), [(staged.Told, True), (BySession, False)])
    @pytest.mark.parametrize("session", ["one id", ""])
    def test_streams_alike_in_everything_are_as_many_as_they_are(self, session, kind, holds):
        def traffic():
            for number in range(6):
                yield client.Start(0.01 * number, once(cold("same", 256, 100 + 50 * number, session=session)))
            for number in range(30):  # looks
                yield client.Start(0.1 + 0.1 * number, once(cold(number, 64, 1)))

        records, told = staged.run(made_of(traffic, models=(LARGE,), duration_s=4.0), "cost", kind=kind)
        seen = [load["replica-0"].inflight for _, load in told.loads]
        assert (seen == [really_open(records, at_s)["replica-0"] for at_s, _ in told.loads]) is holds
        assert max(seen) == 6 or not holds


class Twice(ledger.Lease):
    """Is given back more than once, before and after its prompt is said to be prefilled again."""

    __slots__ = ()

    def release(self):
        super().release()
        super().prefilled()
        super().release()


class TwiceUnguarded(ledger.Lease):
    """The same, of one that does not know whether it is open."""

    __slots__ = ()

    def release(self):
        super().release()
        self._account.inflight -= 1


class TestTwice:
    """L05: giving back twice, or after what was expected is over, has no effect."""

    @pytest.mark.parametrize(
        ("kind", "holds"), [(ledger.Lease, True), (Twice, True), (TwiceUnguarded, False)]
    )
    def test_the_count_is_what_is_open(self, kind, holds):
        def traffic():
            rng = random.Random(4)
            for number, at_s in enumerate(staged.poisson(rng, 30.0, 10.0)):
                yield client.Start(at_s, once(cold(number, rng.choice([100, 4000]), rng.choice([1, 100]))))

        records, told = staged.run(
            made_of(traffic, models=(LARGE,) * 8, duration_s=12.0), "cost", counting_with(kind)
        )
        right = [
            {name: load.inflight for name, load in loads.items()}
            == {name: really_open(records, at_s)[name] for name in NAMES}
            for at_s, loads in told.loads
        ]
        assert len(right) > 200
        assert all(right) is holds


class Early(staged.Told):
    """Counts a request before it knows whether anybody takes it."""

    def choose(self, request, now, chance):
        early = self.router.ledger.take(self.router.pool.endpoints[0].id, 0, now)
        decided = super().choose(request, now, chance)
        if hasattr(decided, "lease"):
            early.release()
        return decided


class TestRefused:
    """L07: where the answer is 503, 429 or no opinion, nothing is counted."""

    @pytest.mark.parametrize(("kind", "holds"), [(staged.Told, True), (Early, False)])
    def test_a_full_and_an_empty_pool_leave_no_lease_and_serve_again(self, kind, holds):
        def traffic():
            for burst, at_s in enumerate((1.0, 3.2, 5.0)):
                for number in range((100, 20, 15)[burst]):
                    yield client.Start(at_s + 0.001 * number, once(cold(f"{burst} {number}", 64, 100)))

        asked = staged.with_settings(
            made_of(
                traffic,
                models=(LARGE,) * 8,
                duration_s=7.0,
                events=(scenario.Event(scenario.Kind.RESTART, "*", 3.0),),
                detect_s=0.1,
                boot_s=0.5,
            ),
            inflight_max=2,
        )
        records, told = staged.run(asked, "cost", kind=kind)
        why = Counter((one.why.value, round(at_s)) for at_s, one in told.refused)
        assert why["saturated", 1] >= 80
        assert why["no_endpoint", 3] == 20
        assert (told.router.ledger.open_leases == 0) is holds
        last = Counter(one.error for one in records if one.started_s >= 5.0)
        assert (last == {None: 15}) is holds
