"""Cases of hot keys, work, restarts and newcomers: each holds with its mechanism and not without it.

The rest of balance and load: test_simulation_{balance,load,lease}_cases.py.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest

from extproc import policy
from extproc.sim import client, content, performance, policies, scenario, simulation, workloads
from tests.sim import staged
from tests.sim.staged import FACTORIES, LARGE, UNBOUNDED, keyed, made_of, measure, once, poisson


class TestHotKey:
    """B02, B04, L06: what a key gives its home is bounded."""

    def test_the_bound_takes_more_than_a_third_off_the_tail_and_costs_few_hits(self):
        """The first article's hot prefix: P95 -36 %, P99 -45 %, hits 82 -> 78 %."""

        def one_hot_key():
            rng = random.Random(5)
            for number, at_s in enumerate(poisson(rng, 27.0, 60.0)):
                key = "hot" if rng.random() < 0.5 else f"key {rng.randrange(24)}"
                yield client.Start(at_s, once(keyed(key, content.piece("q", number), 4000, 30, 600)))

        asked = made_of(one_hot_key, duration_s=60.0, models=(performance.PRESETS["32b-fp8-h100"],) * 8)
        bound, free = measure(asked, "ring"), measure(staged.with_settings(asked, limits=UNBOUNDED), "ring")
        assert bound.ttft_p95_ms <= (1 - 0.36) * free.ttft_p95_ms
        assert bound.ttft_p99_ms <= (1 - 0.45) * free.ttft_p99_ms
        assert bound.engine_hit >= free.engine_hit - 0.05

    @pytest.mark.parametrize(("limits", "holds"), [(policy.Limits(), True), (UNBOUNDED, False)])
    def test_100_parked_requests_of_one_key_use_more_endpoints_than_its_home(self, limits, holds):
        def parked():
            return (client.Start(0.01 * n, once(keyed("hot", n, 1500, 400))) for n in range(100))

        asked = staged.with_settings(made_of(parked, models=(LARGE,) * 8, duration_s=5.0), limits=limits)
        used = Counter(one.endpoint for one in simulation.run(asked, FACTORIES["ring"], 1))
        assert (len(used) >= 4 and max(used.values()) <= 2 * 100 / 8 + 1) is holds


class TestSeveralReplicas:
    """R03: without a shared view the sum over replicas is bounded, since they divide the floor."""

    @pytest.mark.parametrize(("divided", "holds"), [(True, True), (False, False)])
    def test_a_hot_key_fills_its_home_no_more_than_one_replica_would(self, divided, holds):
        def parked():
            return (client.Start(0.001 * n, once(keyed("hot", n, 320, 400))) for n in range(48))

        def production(members, settings):
            made = FACTORIES["ring"](members, settings)
            if not divided:
                made.router.unheard = 0
            return made

        asked = made_of(parked, models=(LARGE,) * 8, duration_s=0.5, routers=3)
        used = Counter(one.endpoint for one in simulation.run(asked, production, 1))
        one_fills = 16 + 3  # the floor of 8,192 tokens, and a request more of each
        assert (max(used.values()) <= one_fills) is holds


class TestWork:
    """B11: a prompt counts as its tokens, not as one request."""

    @pytest.mark.parametrize(("name", "holds"), [("cost", True), ("least_inflight", False)])
    def test_short_prompts_keep_away_from_one_of_100000_tokens(self, name, holds):
        def traffic():
            whole = client.Ask(content.Content.of([(1, 100_000)]), 4)
            yield client.Start(1.0, once(whole))
            for number, at_s in enumerate(poisson(random.Random(2), 20.0, 4.0)):
                short = content.Content.of([(content.piece("short", number), 200)])
                yield client.Start(1.05 + at_s, once(client.Ask(short, 30)))

        asked = made_of(traffic, models=(LARGE,) * 4, duration_s=6.0)
        records = simulation.run(asked, FACTORIES[name], 1)
        busy = next(one for one in records if one.prompt_tokens == 100_000)
        beside = [
            one
            for one in records
            if one is not busy and one.endpoint == busy.endpoint and one.started_s < busy.first_s
        ]
        assert (not beside) is holds


class TestRestart:
    """M08: an engine that restarts under its address has lost what it held; its keys stay."""

    @pytest.mark.parametrize(("noticed", "holds"), [(True, True), (False, False)])
    def test_nobody_counts_on_what_died_with_its_process(self, noticed, holds):
        wrong = []

        class Told(policies.Production):
            def observe(self, endpoint, signals, now):
                if not noticed:
                    signals = dataclasses.replace(signals, started_s=0.0)
                super().observe(endpoint, signals, now)

            def place(self, request, now, chance):
                decided = super().place(request, now, chance)
                if now > 42 and isinstance(decided, simulation.choice.Decision):
                    wrong.append((now, decided.choice.endpoint.id, decided.choice.cached_tokens))
                return decided

        asked = dataclasses.replace(
            workloads.make("documents:documents=16,endpoints=2,readers=4"),
            duration_s=60.0,
            boot_s=0.5,
            events=(scenario.Event(scenario.Kind.RESTART, "replica-0", 40.0),),
        )
        records = simulation.run(asked, Told, 1)
        actual = {(one.started_s, one.endpoint): one.device_tokens for one in records}
        over = [told - actual[at_s, name] for at_s, name, told in wrong if name == "replica-0"]
        assert over
        assert (max(over) < 10_000) is holds  # a document has 13,200; of one that is being computed, some


class TestNewcomer:
    """B12: a ninth endpoint joins eight busy ones; test_slow_start.py has its share over the whole window."""

    @pytest.mark.parametrize(("slow_start_s", "holds"), [(30.0, True), (0.0, False)])
    def test_it_is_neither_flooded_nor_ignored(self, slow_start_s, holds):
        def traffic():
            for number, at_s in enumerate(poisson(random.Random(6), 46.0, 20.0)):
                yield client.Start(at_s, once(staged.cold(number, 2000, 100)))

        asked = staged.with_settings(
            made_of(
                traffic,
                models=(performance.PRESETS["32b-fp8-h100"],) * 8,
                duration_s=20.0,
                events=(scenario.Event(scenario.Kind.ADD, "replica-8", 10.0),),
            ),
            slow_start_s=slow_start_s,
        )
        records = simulation.run(asked, FACTORIES["cost"], 1)
        shares = [
            9 * sum(one.endpoint == "replica-8" for one in begun) / len(begun)
            for begun in (
                [one for one in records if from_s <= one.started_s < from_s + 4.0] for from_s in (10.0, 16.0)
            )
        ]
        assert (shares[0] < 1.2) is holds
        assert shares[0] > 0.4
        assert 0.7 < shares[1] < 1.3
