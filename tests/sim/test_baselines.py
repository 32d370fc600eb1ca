"""Baselines: the law of every rule on a small hand-made case, and what all of them owe the simulator."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter

import pytest

from extproc import chain, choice, footprint, ledger, policy, pool, router
from extproc.sim import baselines, chooser, content, policies, simulation, workloads
from extproc.sim.baselines import (
    aibrix,
    baseline,
    cache_aware,
    dualmap,
    dynamo,
    envoy_hash,
    inflight,
    kubeai,
    llmd,
    lmetric,
    ranvier,
)

N = 8
ALL = list(baselines.BASELINES)


def members(count: int = N) -> pool.Pool:
    return pool.make("p", [pool.Endpoint(pool.EndpointId(f"r{i}"), f"10.0.0.{i}:80") for i in range(count)])


def start(rule: type[baseline.Baseline], count: int = N, **settings: float) -> baseline.Baseline:
    return rule(members(count), router.Settings(**{"kv_tokens": 100_000, **settings}))


def ask(prompt: int = 0, tokens: int = 1024, shared: int = 0, **fields: object) -> chooser.Request:
    """A prompt of blocks of 64 tokens; those of equal `prompt` are starts of each other.

    `shared`: so many of its first tokens are the same in every prompt.
    """
    common = [10**6 + block for block in range(shared // 64)]
    own = [content.piece(prompt, block) for block in range(shared // 64, tokens // 64)]
    tail = content.piece(prompt, tokens)
    return chooser.Request(chain.Chain(tuple(common + own), tail), tokens, user=prompt, **fields)  # type: ignore[arg-type]


class Driver:
    """Sends to a chooser and keeps the leases."""

    def __init__(self, of: chooser.Chooser) -> None:
        self.of = of
        self.open: list[tuple[str, ledger.Lease]] = []
        self.rng = random.Random(1)

    def send(self, request: chooser.Request, now: float = 0.0, chance: float | None = None) -> choice.Choice:
        decided = self.of.place(request, now, self.rng.random() if chance is None else chance)
        assert isinstance(decided, choice.Decision)
        self.open.append((decided.choice.endpoint.id, decided.lease))
        return decided.choice

    def costs(self, request: chooser.Request) -> tuple[float, ...]:
        """What the rule computes for each endpoint; nothing is sent."""
        of = self.of
        assert isinstance(of, baseline.Baseline)
        return of.pick(of.asked(request, of.pool.ready, 0.0, 0.5)).costs

    def visit(self, request: chooser.Request, now: float = 0.0) -> str:
        """One that is over at once."""
        made = self.send(request, now)
        self.open.pop()[1].release()
        return made.endpoint.id

    def load(self, endpoint: int, requests: int, pending: int = 0) -> None:
        """Put open requests there, as if the rule had."""
        book = self.of.ledger  # type: ignore[attr-defined]
        for number in range(requests):
            lease = book.take(pool.EndpointId(f"r{endpoint}"), 0 if number else pending, 0.0)
            self.open.append((f"r{endpoint}", lease))

    def counts(self) -> Counter[str]:
        return Counter(name for name, _ in self.open)


class TestAll:
    @pytest.mark.parametrize("name", ALL)
    def test_every_request_is_placed_and_every_lease_ends(self, name: str) -> None:
        of = baselines.BASELINES[name](members(), router.Settings())
        driver = Driver(of)
        for number in range(200):
            driver.send(ask(number % 7, 640 + 64 * (number % 9)), number / 10)
            if number % 3 == 0:
                driver.open[0][1].prefilled()
            if number % 2:
                driver.open.pop(0)[1].release()
        for _, lease in driver.open:
            lease.release()
            lease.release()
        book = of.ledger  # type: ignore[attr-defined]
        assert book.open_leases == 0
        loads = [book.load(endpoint.id, 1e6) for endpoint in members().endpoints]
        assert loads == [ledger.Load(0, 0, 0)] * N

    @pytest.mark.parametrize("name", ALL)
    def test_only_ready_endpoints_are_chosen_and_none_is_an_answer(self, name: str) -> None:
        everyone = members()
        of = baselines.BASELINES[name](everyone, router.Settings())
        driver = Driver(of)
        for number in range(40):
            driver.send(ask(number % 5))
        up = {endpoint.id: endpoint.id in ("r2", "r5") for endpoint in everyone.endpoints}
        of.publish(pool.with_ready(everyone, up))
        assert {driver.send(ask(number % 5)).endpoint.id for number in range(40)} <= {"r2", "r5"}
        of.publish(pool.with_ready(everyone, dict.fromkeys(up, False)))
        assert of.place(ask(), 0.0, 0.5) == choice.NoEndpoint(N, 0)

    @pytest.mark.parametrize("name", ALL)
    def test_one_endpoint_takes_all_and_a_prompt_without_a_chain_is_placed(self, name: str) -> None:
        of = baselines.BASELINES[name](members(1), router.Settings())
        driver = Driver(of)
        assert {driver.send(ask(number)).endpoint.id for number in range(20)} == {"r0"}
        assert driver.send(chooser.Request(tokens=500)).endpoint.id == "r0"

    @pytest.mark.parametrize("name", ALL)
    def test_what_is_not_prefilled_leaves_no_work_and_no_trace(self, name: str) -> None:
        of = baselines.BASELINES[name](members(), router.Settings())
        where = Driver(of).send(ask(1, prefills=False)).endpoint.id
        assert of.ledger.load(where, 0.0).pending == 0  # type: ignore[attr-defined]
        assert of.residency.blocks(where) == 0  # type: ignore[attr-defined]

    @pytest.mark.parametrize("name", ALL)
    def test_a_run_comes_out_the_same_twice_and_ends_every_lease(self, name: str) -> None:
        asked = dataclasses.replace(workloads.make("first:users=6"), duration_s=16.0, warmup_s=2.0)
        seen: list[baseline.Baseline] = []

        def watched(members: pool.Pool, settings: router.Settings) -> chooser.Chooser:
            made = baselines.BASELINES[name](members, settings)
            assert isinstance(made, baseline.Baseline)
            seen.append(made)
            return made

        first, second = (
            [(one.endpoint, one.started_s, one.finished_s) for one in simulation.run(asked, watched, 3)]
            for _ in range(2)
        )
        assert first == second
        assert len(first) > 20
        assert [one.ledger.open_leases for one in seen] == [0, 0]

    def test_every_rule_says_what_it_is(self) -> None:
        assert all(policies.summary(name) for name in ALL)
        assert all(rule.name == name for name, rule in baselines.BASELINES.items())  # type: ignore[attr-defined]
        assert set(baselines.SCRAPE_S) <= set(ALL)

    def test_a_restart_empties_the_index_of_those_that_notice(self) -> None:
        for rule, left in ((lmetric.LMetric, 0), (cache_aware.CacheAware, 16)):
            of = start(rule)
            where = pool.EndpointId(Driver(of).send(ask(1)).endpoint.id)
            of.observe(where, chooser.Signals(0.1, 1, 0, started_s=0.0), 1.0)
            assert of.residency.blocks(where) == 16
            of.observe(where, chooser.Signals(0.0, 0, 0, started_s=9.0), 10.0)
            assert of.residency.blocks(where) == left


class TestInflight:
    def test_least_goes_where_fewest_are_open(self) -> None:
        driver = Driver(start(inflight.LeastInflight))
        for number in range(8 * 5):
            driver.send(ask(number))
        assert set(driver.counts().values()) == {5}

    def test_ties_reach_everybody(self) -> None:
        driver = Driver(start(inflight.LeastInflight))
        assert len({driver.visit(ask()) for _ in range(200)}) == N

    def test_of_two_the_better_is_taken_so_the_fullest_never_is(self) -> None:
        driver = Driver(start(inflight.PowerOfTwo))
        driver.load(3, 1)
        assert "r3" not in {driver.visit(ask()) for _ in range(400)}

    def test_all_pairs_of_two_different_ones_are_drawn(self) -> None:
        driver = Driver(start(inflight.PowerOfTwo, 3))
        for endpoint in range(3):
            driver.load(endpoint, endpoint)
        # r0 wins two of three unordered pairs, r1 the last, r2 none
        won = Counter(driver.visit(ask()) for _ in range(3000))
        assert won["r2"] == 0
        assert won["r0"] / 3000 == pytest.approx(2 / 3, abs=0.04)


class TestKubeAI:
    def test_the_bound_of_one_and_a_quarter(self) -> None:
        assert kubeai.may_take(0, 0, 8)  # nothing in flight
        assert kubeai.may_take(1, 15, 8)  # 2 <= 1.25 * 16 / 8
        assert not kubeai.may_take(2, 15, 8)
        assert not kubeai.may_take(0, 4, 8)  # 1 > 1.25 * 5 / 8

    def test_one_key_fills_its_home_while_nobody_may_then_the_bound_holds(self) -> None:
        driver = Driver(start(kubeai.KubeAI))
        for number in range(400):
            total = sum(driver.counts().values())
            made = driver.send(ask(1))
            after = driver.counts()[made.endpoint.id]
            if total + 1 >= N / 1.25 and number:
                assert after <= 1.25 * (total + 1) / N
            else:
                assert made.reason is policy.Reason.HOME
        assert len(driver.counts()) == N

    def test_equal_user_messages_meet_and_the_system_prompt_is_no_key(self) -> None:
        driver = Driver(start(kubeai.KubeAI))
        assert len({driver.visit(ask(7, 640, system=s, system_tokens=300)) for s in range(20)}) == 1
        assert len({driver.visit(ask(7, 640, adapter=str(a))) for a in range(40)}) == N
        assert len({driver.visit(ask(u, 640, system=1, system_tokens=300)) for u in range(60)}) == N

    def test_overflow_goes_on_clockwise_and_one_leaving_moves_only_its_own(self) -> None:
        of = start(kubeai.KubeAI)
        driver = Driver(of)
        homes = {key: driver.visit(ask(key)) for key in range(200)}
        everyone = members()
        of.publish(pool.with_ready(everyone, {pool.EndpointId("r3"): False}))
        moved = {key for key in homes if driver.visit(ask(key)) != homes[key]}
        assert moved == {key for key, home in homes.items() if home == "r3"}


class TestEnvoyHash:
    def test_the_bound_is_envoys(self) -> None:
        # tests/envoy/test_hash.py: of 16 equal ones over 4 endpoints 7, 7 and 2
        assert envoy_hash.slots(15, 4, 1.5) == 6
        assert envoy_hash.slots(0, 8, 1.5) == 1
        driver = Driver(start(envoy_hash.EnvoyHash, 4))
        driver.visit(ask(1))
        for _ in range(16):
            driver.send(ask(1))
        assert sorted(driver.counts().values()) == [2, 7, 7]

    def test_equal_starts_meet_and_overflow_in_an_order_of_their_own(self) -> None:
        driver = Driver(start(envoy_hash.EnvoyHash))
        for number in range(100):
            driver.visit(ask(number))
        homes = {key: driver.visit(ask(key)) for key in range(100)}
        assert len(set(homes.values())) == N
        assert all(driver.visit(ask(key, 1024 + 64 * key)) == home for key, home in homes.items())
        keys = [key for key, home in homes.items() if home == homes[0]]
        driver.load(int(homes[0][1:]), 9)
        second = {key: driver.visit(ask(key)) for key in keys}
        assert len(set(second.values())) > 1
        assert all(driver.visit(ask(key)) == where for key, where in second.items())

    def test_without_a_prompt_endpoints_are_drawn(self) -> None:
        driver = Driver(start(envoy_hash.EnvoyHash))
        assert len({driver.visit(chooser.Request(tokens=500)) for _ in range(100)}) == N


class TestRanvier:
    def test_jump_hash_is_even_and_moves_only_to_the_new_bucket(self) -> None:
        keys = [random.Random(i).getrandbits(64) for i in range(4000)]
        shares = Counter(ranvier.jump_hash(key, 8) for key in keys)
        assert all(400 < shares[bucket] < 600 for bucket in range(8))
        for key in keys:
            before, after = ranvier.jump_hash(key, 8), ranvier.jump_hash(key, 9)
            assert after in (before, 8)

    def test_the_home_is_left_above_twice_the_median_and_two_and_not_before(self) -> None:
        asked = ask(1, system=5, system_tokens=300)
        home = int(Driver(start(ranvier.HashMedian)).visit(asked)[1:])
        for median in (0, 1, 3):
            for over in (0, 1):
                driver = Driver(start(ranvier.HashMedian))
                for endpoint in range(N):
                    driver.load(endpoint, 2 * median + 2 + over if endpoint == home else median)
                made = driver.send(asked)
                assert (made.endpoint.id != f"r{home}") == bool(over)
                assert made.reason is (policy.Reason.OVERFLOW if over else policy.Reason.HOME)

    def test_a_diverted_prompt_goes_home_again(self) -> None:
        driver = Driver(start(ranvier.HashMedian))
        asked = ask(1, system=5, system_tokens=300)
        home = driver.visit(asked)
        driver.load(int(home[1:]), 3)
        assert driver.send(asked).endpoint.id != home
        for _, lease in driver.open:
            lease.release()
        assert driver.visit(asked) == home

    def test_a_learned_home_outlives_a_change_of_the_pool(self) -> None:
        of = start(ranvier.HashMedian)
        driver = Driver(of)
        homes = {key: driver.visit(ask(key)) for key in range(100)}
        of.publish(pool.with_ready(members(), {pool.EndpointId("r0"): False}))
        kept = {key: driver.visit(ask(key)) for key in homes}
        assert all(kept[key] == home for key, home in homes.items() if home != "r0")

    def test_the_key_is_the_system_prompt_else_128_tokens(self) -> None:
        driver = Driver(start(ranvier.HashMedian))
        assert len({driver.visit(ask(u, system=5, system_tokens=300)) for u in range(20)}) == 1
        assert len({driver.visit(ask(p, 1024, shared=128)) for p in range(20)}) == 1
        assert len({driver.visit(ask(p, 1024, shared=64)) for p in range(60)}) == N
        assert len({driver.visit(ask(p, 100)) for p in range(60)}) == N  # shorter: all of it

    def test_bounded_never_exceeds_the_ceiling_of_one_and_a_quarter_means(self) -> None:
        driver = Driver(start(ranvier.HashBounded))
        rng = random.Random(2)
        for _ in range(600):
            total = sum(driver.counts().values())
            made = driver.send(ask(1, system=rng.choice([5, 5, 5, 6]), system_tokens=300))
            assert driver.counts()[made.endpoint.id] <= max(1, math.ceil(1.25 * (total + 1) / N))
            if rng.random() < 0.4:
                driver.open.pop(rng.randrange(len(driver.open)))[1].release()


class TestCacheAware:
    def warm(self, rule: type[baseline.Baseline]) -> tuple[Driver, str]:
        driver = Driver(start(rule))
        return driver, driver.visit(ask(1))

    def test_a_match_above_the_threshold_is_followed_one_at_it_is_not(self) -> None:
        for shared, followed in ((512, False), (576, True)):  # of 1024: exactly half, and more
            driver = Driver(start(cache_aware.CacheAware))
            driver.load(0, 1)  # so that the shortest queue is another than the first
            home = driver.visit(ask(1, 1024, shared=shared))
            driver.load(int(home[1:]), 2)
            made = driver.send(ask(2, 1024, shared=shared))
            assert (made.endpoint.id == home) is followed
            assert (made.reason is policy.Reason.WARM) is followed

    @pytest.mark.parametrize(
        ("rule", "load", "others", "switches"),
        [
            (cache_aware.CacheAware, 32, 0, False),  # the gap must exceed 32
            (cache_aware.CacheAware, 33, 0, True),
            (cache_aware.CacheAware, 440, 400, False),  # 440 > 1.1 * 400 it is not
            (cache_aware.CacheAware, 441, 400, True),
            (cache_aware.CacheAwareTight, 8, 0, False),
            (cache_aware.CacheAwareTight, 9, 0, True),
            (cache_aware.CacheAwareTight, 30, 20, False),
            (cache_aware.CacheAwareTight, 31, 20, True),
        ],
    )
    def test_beyond_both_thresholds_the_shortest_queue_takes_it(
        self, rule: type[baseline.Baseline], load: int, others: int, *, switches: bool
    ) -> None:
        driver, home = self.warm(rule)
        for endpoint in range(N):
            driver.load(endpoint, load if f"r{endpoint}" == home else others)
        assert (driver.send(ask(1)).endpoint.id != home) is switches

    def test_of_several_holders_always_the_same_is_asked(self) -> None:
        of = start(cache_aware.CacheAware)
        asked = ask(1)
        assert asked.chain is not None
        for name in ("r2", "r4", "r7"):
            of.residency.add(pool.EndpointId(name), asked.chain, 0.0)
        driver = Driver(of)
        first = driver.visit(asked)
        assert first in ("r2", "r4", "r7")
        assert {driver.visit(asked) for _ in range(20)} == {first}


class TestLlmd:
    def test_queue_scores_go_from_one_to_nothing(self) -> None:
        assert llmd.queue_scores([3, 3]) == [1.0, 1.0]
        assert llmd.queue_scores([0, 5, 10]) == [1.0, 0.5, 0.0]

    def observe(self, of: baseline.Baseline, kv: dict[int, float], waiting: dict[int, int]) -> None:
        for number in range(N):
            signals = chooser.Signals(kv.get(number, 0.0), 0, waiting.get(number, 0))
            of.observe(pool.EndpointId(f"r{number}"), signals, 0.0)

    def test_a_full_match_outweighs_a_full_cache_but_not_the_longest_queue_too(self) -> None:
        of = start(llmd.Weighted)
        driver = Driver(of)
        home = int(driver.visit(ask(1))[1:])
        self.observe(of, {home: 1.0}, {})  # 3 + 2 + 0 against 0 + 2 + 2
        assert driver.visit(ask(1)) == f"r{home}"
        self.observe(of, {home: 1.0}, {home: 1})  # 3 + 0 + 0 against 4
        assert driver.visit(ask(1)) != f"r{home}"

    def test_weighted_sees_no_more_than_the_last_scrape(self) -> None:
        of = start(llmd.Weighted)
        self.observe(of, {}, {number: 1 for number in range(N) if number != 3})
        driver = Driver(of)
        assert {driver.send(ask(number)).endpoint.id for number in range(50)} == {"r3"}

    def test_stickiness_is_given_up_above_the_penalty_and_not_at_it(self) -> None:
        assert not llmd.saturated([100], [0], 100)
        assert llmd.saturated([101], [0], 100)
        assert not llmd.saturated([], [0], 0)
        assert not llmd.saturated([9], [], 0)

    @pytest.mark.parametrize(("rule", "penalty_s"), [(llmd.Sticky, 18), (llmd.Sticky2s, 2)])
    def test_sticky_stays_warm_until_the_penalty_in_tokens(
        self, rule: type[baseline.Baseline], penalty_s: int
    ) -> None:
        for over in (0, 1):
            driver = Driver(start(rule, prefill_tokens_per_s=1000.0))
            home = driver.visit(ask(1))
            driver.load(int(home[1:]), 1, pending=penalty_s * 1000 + over)
            assert (driver.send(ask(1)).endpoint.id == home) is not bool(over)

    def test_sticky_takes_the_least_tokens_of_the_warm_and_four_fifths_is_warm(self) -> None:
        of = start(llmd.Sticky)
        asked = ask(1, 640)
        for name, blocks in (("r1", 8), ("r2", 8), ("r3", 7)):
            assert asked.chain is not None
            of.residency.add(pool.EndpointId(name), chain.Chain(asked.chain.hashes[:blocks], 0), 0.0)
        driver = Driver(of)
        driver.load(1, 1, pending=500)
        driver.load(2, 1, pending=400)
        assert driver.send(asked).endpoint.id == "r2"  # though r3 has nothing to do


class TestDynamo:
    def test_the_cost_in_blocks(self) -> None:
        assert dynamo.cost(640, 7, 64, 1) == 17
        assert dynamo.cost(640, 7, 64, 4) == 47

    def test_blocks_that_open_requests_share_count_once(self) -> None:
        driver = Driver(start(dynamo.Dynamo))
        where = pool.EndpointId(driver.send(ask(1)).endpoint.id)
        driver.open[0][1].prefilled()
        assert driver.send(ask(1)).endpoint.id == where
        of = driver.of
        assert isinstance(of, dynamo.Dynamo)
        assert of.ledger.load(where, 0.0).kv_tokens == 16 * footprint.MARK_TOKENS
        assert of.ledger.kv_after(where, of.footprint(ask(2))) == 32 * footprint.MARK_TOKENS

    @pytest.mark.parametrize(("rule", "stays"), [(dynamo.Dynamo, False), (dynamo.DynamoW4, True)])
    def test_the_weight_decides_how_much_decode_a_hit_is_worth(
        self, rule: type[baseline.Baseline], *, stays: bool
    ) -> None:
        driver = Driver(start(rule))
        home = driver.visit(ask(1))  # 16 blocks warm
        driver.of.ledger.take(pool.EndpointId(home), 0, 0.0, footprint.Footprint(tuple(range(40)), 0))  # type: ignore[attr-defined]
        # warm: 0 + 40 + 16, cold: 16 w + 16
        assert (driver.send(ask(1)).endpoint.id == home) is stays

    def test_pending_falls_at_the_first_token_and_never_by_time(self) -> None:
        driver = Driver(start(dynamo.Dynamo))
        where = pool.EndpointId(driver.send(ask(1)).endpoint.id)
        book = driver.of.ledger  # type: ignore[attr-defined]
        assert book.load(where, 1e5).pending == 1024
        driver.open[0][1].prefilled()
        assert book.load(where, 1e5).pending == 0

    def test_a_hit_in_the_host_tier_is_worth_three_quarters(self) -> None:
        of = start(dynamo.Dynamo, 2, kv_tokens=1024, host_kv_tokens=100_000)
        driver = Driver(of)
        home = driver.visit(ask(1))
        for number in range(2, 30):  # push it out of the small GPU tier
            driver.visit(ask(number), float(number))
        costs = driver.costs(ask(1))
        assert costs[int(home[1:])] == 0.25 * 16 + 16
        assert costs[1 - int(home[1:])] == 16 + 16


class TestLMetric:
    def test_the_least_product_of_work_and_batch(self) -> None:
        assert lmetric.score(100, 50, 2) == 450
        driver = Driver(start(lmetric.LMetric, 3))
        home = int(driver.visit(ask(1, 1024))[1:])
        others = [number for number in range(3) if number != home]
        asked = ask(1, 2048)  # half of it is at home
        for number in others:
            driver.load(number, 1)
        driver.load(home, 2)  # 1024 * 3 < 2048 * 2
        assert driver.send(asked).endpoint.id == f"r{home}"
        driver.open.pop()[1].release()
        driver = Driver(start(lmetric.LMetric, 3))
        home = int(driver.visit(ask(1, 1024))[1:])
        driver.load(home, 2)  # 1024 * 3 > 2048 * 1
        assert driver.send(asked).endpoint.id != f"r{home}"

    def test_it_is_the_argmin_of_what_it_tells(self) -> None:
        driver = Driver(start(lmetric.LMetric))
        for number in range(100):
            asked = ask(number % 6, 640 * (1 + number % 4))
            costs = driver.costs(asked)
            assert costs[int(driver.send(asked).endpoint.id[1:])] == min(costs)


class TestDualMap:
    def test_a_prompt_has_two_homes_and_no_third(self) -> None:
        driver = Driver(start(dualmap.DualMap))
        for number in range(60):  # traffic enough that no prompt is everybody's
            driver.visit(ask(number))
        seen = set()
        for _ in range(6):
            driver.load(int(driver.send(ask(1)).endpoint.id[1:]), 1, pending=100_000)
            seen.add(driver.open[-1][0])
        assert len(seen) == 2

    def test_the_warmer_home_until_the_slo_then_the_quicker(self) -> None:
        of = start(dualmap.DualMap, prefill_tokens_per_s=1000.0)
        driver = Driver(of)
        for number in range(60):
            driver.visit(ask(number))
        warm = driver.visit(ask(1, 1024))
        driver.load(int(warm[1:]), 1, pending=int(dualmap.SLO_S * 1000))
        assert driver.send(ask(1, 1024)).endpoint.id == warm
        driver.load(int(warm[1:]), 1, pending=1)
        assert driver.send(ask(1, 1024)).endpoint.id != warm


class TestAibrix:
    def test_mean_and_sigma(self) -> None:
        assert aibrix.within_sigma(2, [0, 2])  # mean 1, sigma 1
        assert not aibrix.within_sigma(3, [0, 1, 3])

    def test_the_longest_match_within_sigma_is_taken_the_one_above_is_not(self) -> None:
        driver = Driver(start(aibrix.Aibrix))
        home = driver.visit(ask(1))
        assert driver.visit(ask(1)) == home
        driver.load(int(home[1:]), 1)
        made = driver.send(ask(1))  # one of eight has one: 1 > 1/8 + .33
        assert made.endpoint.id != home
        assert made.reason is policy.Reason.LEAST_LOAD

    def test_a_gap_above_eight_leaves_only_the_idlest(self) -> None:
        for gap, home_kept in ((8, True), (9, False)):
            driver = Driver(start(aibrix.Aibrix))
            home = int(driver.visit(ask(1))[1:])
            for number in range(N):
                # the busiest is another: the home itself stays within sigma
                driver.load(number, 4 if number == home else gap if number == (home + 1) % N else 4)
            driver.load((home + 2) % N, 0)
            for lease in [lease for name, lease in driver.open if name == f"r{(home + 3) % N}"]:
                lease.release()
            assert (driver.send(ask(1)).endpoint.id == f"r{home}") is home_kept
