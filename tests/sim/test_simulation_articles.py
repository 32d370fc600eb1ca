"""The model gives back what the two articles published, with the simulator's clients and engines.

First article: 8 replicas of a 13B model, 30 users. Its TTFT is read after 32 buffered tokens and its
"requests" are about 5.8 client events each, so 36.3 "req/s" are 6.3. Its own draw of prefixes is not known;
round robin depends on their sum, here 20,700 tokens. Second article: one engine, documents of 13,200 tokens,
coding clients.
"""

from __future__ import annotations

import dataclasses
import statistics

import pytest

from extproc.sim import figures, policies, scenario, simulation, workloads

FIRST = "first:prefix_tokens=20700"


def measure(text: str, policy: str = "round_robin", seed: int = 1, **changes) -> figures.Figures:
    asked: scenario.Scenario = dataclasses.replace(workloads.make(text), **changes)
    records = simulation.run(asked, policies.factories()[policy], seed)
    return figures.figures(records, asked.warmup_s, asked.duration_s, len(asked.models))


def mean(runs: list[figures.Figures], name: str) -> float:
    return statistics.fmean(getattr(run, name) for run in runs)


@pytest.fixture(scope="module")
def by_turns() -> list[figures.Figures]:
    return [measure(FIRST, seed=seed) for seed in range(1, 5)]


class TestFirstArticle:
    @pytest.mark.parametrize(
        ("figure", "published"), [("shown_p50_ms", 1100), ("shown_p99_ms", 6800), ("requests_per_s", 6.3)]
    )
    def test_round_robin_is_within_15_percent_of_the_published(self, by_turns, figure, published):
        assert mean(by_turns, figure) == pytest.approx(published, rel=0.15)

    def test_round_robins_tail_is_that_of_misses_under_load(self, by_turns):
        assert mean(by_turns, "ttft_p99_ms") / mean(by_turns, "ttft_p50_ms") > 5

    def test_without_a_thought_for_prefixes_one_request_in_eight_meets_its_own(self):
        # 12.5 %, the published share, is that of chance; strict rotation rarely comes round in step
        assert measure(FIRST, "random").affinity_hit == pytest.approx(0.125, rel=0.15)

    def test_cost_finds_what_is_cached_and_is_quicker_by_more_than_the_published(self, by_turns):
        ours = measure(FIRST, "cost")
        assert ours.engine_hit > 0.95 > 2 * 0.9 * mean(by_turns, "engine_hit")
        assert ours.shown_p99_ms < 0.35 * mean(by_turns, "shown_p99_ms")
        assert ours.ttft_p99_ms / ours.ttft_p50_ms < 4

    def test_97_percent_meet_their_prefix(self):
        # of requests, as the published 97.5 %; of tokens the questions, 4 %, are never cached
        asked = workloads.make(FIRST)
        for name, least, most in (("cost", 0.97, 1), ("random", 0, 0.7)):
            records = simulation.run(asked, policies.factories()[name], 1)
            found = [one.device_tokens > 0.8 * one.prompt_tokens for one in records if one.started_s > 60]
            assert least <= sum(found) / len(found) <= most

    def test_cost_has_a_seventh_of_the_tail_and_a_fifth_more_requests(self, by_turns):
        ours = [measure(FIRST, "cost", seed) for seed in (1, 2)]
        assert mean(ours, "ttft_p99_ms") <= mean(by_turns, "ttft_p99_ms") / 6.8
        assert mean(ours, "requests_per_s") >= 1.223 * mean(by_turns, "requests_per_s")

    def test_more_users_gain_more(self):
        gains = [
            measure(f"{FIRST},users={users}", "cost", duration_s=120.0).requests_per_s
            / measure(f"{FIRST},users={users}", duration_s=120.0).requests_per_s
            for users in (10, 30)
        ]
        assert gains[0] < gains[1]


class TestSecondArticle:
    READER = "documents:endpoints=1,readers=1,order=cycle"

    def measure(self, text: str, seconds: float = 240.0, warmup_s: float = 150.0) -> figures.Figures:
        return measure(f"{self.READER},{text}", duration_s=seconds, warmup_s=warmup_s)

    def test_documents_that_fit_are_hot(self):
        found = self.measure("documents=30")
        assert found.engine_hit > 0.99
        assert 112 * 0.85 < found.ttft_mean_ms < 122 * 1.15

    def test_48_documents_do_not_fit_and_none_hits(self):
        found = self.measure("documents=48")
        assert found.engine_hit == 0
        assert found.ttft_mean_ms == pytest.approx(1350, rel=0.15)

    def test_a_cpu_tier_gives_them_back(self):
        found = self.measure("documents=48,host_tokens=2000000")
        assert found.host_hit > 0.99
        assert found.ttft_mean_ms == pytest.approx(164, rel=0.15)

    def test_so_does_an_external_store(self):
        found = self.measure("documents=48,external_tokens=2000000")
        assert found.external_hit > 0.99
        assert found.ttft_mean_ms == pytest.approx(140, rel=0.15)

    def test_after_a_restart_the_cpu_tier_is_cold(self):
        assert self.measure("documents=48,host_tokens=2000000,restart_s=110", 180, 131).engine_hit == 0

    def test_after_a_restart_the_external_store_is_not(self):
        assert self.measure("documents=48,external_tokens=2000000,restart_s=110", 180, 131).engine_hit > 0.99

    def test_coding_clients_do_at_least_5_6_times_as_much_with_reuse(self):
        # 8 clients of 30 turns each, from the first request to the last answer
        text = "coding:clients=8,endpoints=1,projects=1,sessions=1,kv_tokens=1100000,preset=second-article"
        per_min = {}
        for reuse in ("true", "false"):
            asked = workloads.make(f"{text},reuse={reuse}")
            asked = dataclasses.replace(asked, duration_s=3600.0, models=(slim(asked.models[0]),))
            records = simulation.run(asked, cost(), 1)
            assert len(records) == 240
            per_min[reuse] = 240 / max(one.finished_s for one in records) * 60
        assert per_min["true"] >= 5.6 * per_min["false"]
        assert 6 < per_min["false"] < 12
        assert 45 < per_min["true"] < 80


def slim(model):
    """Fewer, larger blocks: the same, quicker."""
    return dataclasses.replace(model, block_tokens=64)


def cost():
    return policies.factories()["cost"]
