"""What readings mean over time: restarts, refusals, truth of predictions, learned figures."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from extproc import sent, signals, vitals
from extproc.vitals import learned as _learned
from extproc.vitals import truth as _truth

BASE = signals.Reading(
    engine=signals.Engine.VLLM, started_s=1000.0, queries=100.0, hits=50.0, requests=10.0,
    prompt_tokens=100.0, computed=50.0, prefill_s=1.0, answers=10.0, faults=0.0, rejections=0.0,
)  # fmt: skip


def reading(**fields: Any) -> signals.Reading:
    return msgspec.structs.replace(BASE, **fields)


# ---- restarts ----


@pytest.mark.parametrize(
    ("second", "restarted"),
    [
        (reading(), False),
        (reading(started_s=1000.4, queries=200.0), False),
        (reading(started_s=1002.0), True),
        (reading(started_s=1002.0, queries=200.0), True),
        (reading(queries=1.0), False),  # the start time is the better witness
        (reading(started_s=None, queries=1.0), True),
        (reading(started_s=None, queries=None), False),
    ],
)
def test_a_restart_is_another_start_time_or_else_a_counter_that_fell(
    second: signals.Reading,
    restarted: bool,  # noqa: FBT001
) -> None:
    seen = vitals.Restarts()
    assert not seen.read(BASE)
    assert seen.read(second) is restarted
    assert not seen.read(second)


def test_who_is_first_seen_to_refuse_has_only_started() -> None:
    seen = vitals.Restarts()
    seen.refused()
    assert not seen.well()
    seen.refused()
    assert seen.well()


def test_who_was_refused_and_tells_nothing_is_taken_as_restarted_once() -> None:
    seen = vitals.Restarts()
    assert not seen.well()
    seen.refused()
    assert seen.well()
    assert not seen.well()


def test_who_tells_its_start_is_not_blamed_for_a_refusal() -> None:
    seen = vitals.Restarts()
    seen.read(BASE)
    seen.refused()
    assert not seen.well()
    assert not seen.read(reading(queries=150.0))


def test_an_empty_reading_tells_nothing() -> None:
    seen = vitals.Restarts()
    seen.read(signals.Reading())
    seen.refused()
    assert seen.read(signals.Reading())


# ---- refusals ----


def test_an_engine_whose_answers_are_half_5xx_is_failing() -> None:
    seen = vitals.Refusals()
    assert not seen.read(BASE, 0.0)
    assert not seen.read(reading(answers=20.0, faults=2.0), 1.0)
    assert seen.read(reading(answers=24.0, faults=6.0), 2.0) is False  # of 14 answers 6
    assert seen.read(reading(answers=34.0, faults=16.0), 3.0)


def test_slow_traffic_that_only_fails_is_noticed_after_a_few() -> None:
    seen = vitals.Refusals()
    verdicts = [seen.read(reading(answers=10.0 + n, faults=float(n)), float(n)) for n in range(6)]
    assert verdicts.index(True) in (3, 4)


def test_a_few_faults_among_many_answers_are_no_failure() -> None:
    seen = vitals.Refusals()
    for n in range(30):
        assert not seen.read(reading(answers=10.0 + 100 * n, faults=10.0 * n), float(n))


def test_a_full_queue_is_told_apart_from_a_fault() -> None:
    seen = vitals.Refusals()
    seen.read(BASE, 0.0)
    assert not seen.read(reading(answers=20.0, faults=10.0, rejections=10.0), 1.0)
    assert seen.full
    assert not seen.read(reading(answers=21.0, faults=10.0, rejections=10.0), 2.0)
    assert not seen.full


def test_answers_seen_on_their_way_count_and_are_forgiven() -> None:
    seen = vitals.Refusals()
    assert [seen.answered(good=False, now=0.1 * n) for n in range(3)] == [False, False, True]
    seen.forgive()
    assert not seen.answered(good=False, now=1.0)
    for n in range(9):
        assert not seen.answered(good=True, now=1.0 + n / 10)


def test_counters_of_a_new_process_say_nothing_about_the_old() -> None:
    seen = vitals.Refusals()
    seen.read(BASE, 0.0)
    assert not seen.read(reading(started_s=2000.0, answers=50.0, faults=50.0), 1.0)


# ---- truth ----


class Pair:
    """Both sides' counters, moved together."""

    def __init__(self) -> None:
        self.sent = sent.Sent()
        self.truth = vitals.Truth()
        self.queries = self.hits = self.cold = self.now = 0.0
        self.read()

    def serve(
        self, tokens: float, predicted: float, true: float, cold: float = 0.0, requests: int = 5
    ) -> None:
        self.sent.requests += requests
        self.sent.prompt_tokens += tokens
        self.sent.gpu_tokens += predicted * tokens
        self.queries += tokens
        self.hits += true * tokens
        self.cold += cold * tokens
        self.now += 5.0

    def read(self) -> bool:
        told = reading(queries=self.queries, hits=self.hits, cold_hits=self.cold)
        return self.truth.read(told, self.sent.copy(), self.now)

    def window(self, predicted: float, true: float, cold: float = 0.0) -> None:
        for _ in range(2):
            self.serve(10_000, predicted, true, cold)
            assert not self.read()


def test_an_estimate_that_promises_too_much_shrinks_until_both_meet_and_recovers() -> None:
    pair = Pair()
    pair.window(0.8, 0.6)
    assert pair.truth.scale == pytest.approx(0.75)
    assert pair.truth.gap == pytest.approx(0.2)
    pair.window(0.7, 0.63)
    assert pair.truth.scale == pytest.approx(0.75)  # near enough
    for _ in range(6):
        pair.window(0.6, 0.6)
    assert pair.truth.scale == 1.0


def test_the_scale_never_leaves_its_bounds() -> None:
    pair = Pair()
    for _ in range(40):
        pair.window(0.4, 0.0)
        assert _truth.SCALE_LEAST <= pair.truth.scale <= 1.0
    assert pair.truth.scale == _truth.SCALE_LEAST
    for _ in range(60):
        pair.window(0.1, 0.9)
    assert pair.truth.scale == 1.0


def test_a_cache_that_is_gone_is_noticed_at_once() -> None:
    pair = Pair()
    pair.window(0.9, 0.9)
    pair.serve(5_000, 0.9, 0.02)
    assert pair.read()
    assert pair.truth.gap == pytest.approx(0.88)
    pair.serve(5_000, 0.05, 0.05)
    assert not pair.read()


def test_what_another_tier_found_is_not_gone() -> None:
    pair = Pair()
    pair.serve(5_000, 0.9, 0.02, cold=0.88)
    assert not pair.read()


def test_cold_traffic_and_little_traffic_are_no_lost_cache() -> None:
    pair = Pair()
    pair.serve(50_000, 0.3, 0.0)
    assert not pair.read()
    other = Pair()
    other.serve(3_000, 1.0, 0.0)
    assert not other.read()
    few = Pair()
    few.serve(50_000, 1.0, 0.0, requests=2)
    assert not few.read()


def test_prompts_sent_and_not_yet_looked_up_are_no_lost_cache() -> None:
    pair = Pair()
    pair.sent.requests += 10
    pair.sent.prompt_tokens += 100_000
    pair.sent.gpu_tokens += 90_000
    assert not pair.read()


def test_an_engine_that_does_not_tell_its_hits_is_believed() -> None:
    truth = vitals.Truth()
    for n in range(100):
        assert not truth.read(reading(hits=None), sent.Sent(), float(n))
    assert truth.scale == 1.0
    assert truth.gap is None


def test_after_a_restart_both_sides_begin_anew() -> None:
    pair = Pair()
    pair.serve(50_000, 0.9, 0.0)
    pair.truth.restart()
    pair.queries = pair.hits = 0.0
    assert not pair.read()
    assert pair.truth.scale == 1.0


# ---- learned ----


def test_the_prefill_rate_rises_fast_and_falls_slowly() -> None:
    found, window = vitals.Learned(), _learned.Window()
    found.read(window, reading(computed=0.0, prefill_s=0.0), sent.Sent())
    assert found.prefill_tokens_per_s is None
    found.read(window, reading(computed=10_000.0, prefill_s=1.0), sent.Sent())
    assert found.prefill_tokens_per_s == 10_000
    found.read(window, reading(computed=30_000.0, prefill_s=2.0), sent.Sent())
    assert found.prefill_tokens_per_s == 13_000
    found.read(window, reading(computed=40_000.0, prefill_s=102.0), sent.Sent())
    assert found.prefill_tokens_per_s == pytest.approx(13_000 - 0.02 * 12_900)


def test_little_work_teaches_nothing() -> None:
    found, window = vitals.Learned(), _learned.Window()
    found.read(window, reading(computed=0.0, prefill_s=0.0), sent.Sent())
    found.read(window, reading(computed=1_999.0, prefill_s=9.0), sent.Sent())
    found.read(window, reading(computed=1_999.0, prefill_s=0.1), sent.Sent())
    assert found.prefill_tokens_per_s is None


def prompts(count: int, prompt_bytes: float) -> sent.Sent:
    made = sent.Sent()
    made.requests = made.keyed = count
    made.prompt_bytes = prompt_bytes
    return made


def learn(ours: sent.Sent, **engine: float) -> float | None:
    found, window = vitals.Learned(), _learned.Window()
    found.read(window, reading(requests=0.0, prompt_tokens=0.0), sent.Sent())
    found.read(window, reading(**engine), ours)
    return found.bytes_per_token


def test_bytes_per_token_are_learned_while_both_sides_see_the_same_requests() -> None:
    assert learn(prompts(100, 300_000.0), requests=100.0, prompt_tokens=100_000.0) == 3.0
    assert learn(prompts(100, 300_000.0), requests=95.0, prompt_tokens=95_000.0) == 3.0


@pytest.mark.parametrize(
    ("ours", "engine"),
    [
        (prompts(100, 300_000.0), {"requests": 300.0, "prompt_tokens": 900_000.0}),  # others use it too
        (prompts(100, 300_000.0), {"requests": 50.0, "prompt_tokens": 900_000.0}),
        (prompts(10, 30_000.0), {"requests": 10.0, "prompt_tokens": 10_000.0}),  # too few
    ],
)
def test_bytes_per_token_are_not_learned_from_other_peoples_requests(
    ours: sent.Sent, engine: dict[str, float]
) -> None:
    assert learn(ours, **engine) is None


def test_requests_whose_prompt_was_not_read_teach_no_bytes() -> None:
    ours = prompts(100, 300_000.0)
    ours.keyed = 90
    assert learn(ours, requests=100.0, prompt_tokens=100_000.0) is None


LIMITS: list[tuple[Callable[[], float | None], float]] = [
    (lambda: learn(prompts(100, 1e9), requests=100.0, prompt_tokens=100.0), 16.0),
    (lambda: learn(prompts(100, 1.0), requests=100.0, prompt_tokens=1e6), 1.0),
]


@pytest.mark.parametrize(("found", "bound"), LIMITS)
def test_learned_values_are_bounded(found: Callable[[], float | None], bound: float) -> None:
    assert found() == bound
