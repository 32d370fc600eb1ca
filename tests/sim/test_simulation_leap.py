"""The leaping engine shows what the stepwise engine shows, at the same times."""

from __future__ import annotations

import dataclasses
import random

import pytest

from extproc.sim import content, engine, job, kv_cache, leap, performance

A100 = performance.PRESETS["codellama-13b-a100-40"]


def requests(seed: int, count: int) -> list[tuple[float, job.Request]]:
    """Requests that share starts, in bursts and with pauses, some too many for the cache at once."""
    rng = random.Random(seed)
    at_s, found = 0.0, []
    for number in range(count):
        at_s += rng.choice((0.0, 0.003, rng.expovariate(4.0)))
        prefix, prompt, output = rng.randrange(4), rng.randint(1, 3000), rng.choice((1, 2, 33, 34, 80, 200))
        whole = content.Content.of([(prefix, prompt), (100 + number, output)])
        found.append((at_s, job.Request(str(number), prompt, output, whole.hashes)))
    return found


def play(model: engine.Engine, work: list[tuple[float, job.Request]]) -> list[job.Token]:
    tokens = []
    for at_s, request in work:
        while model.next_step_at is not None and model.next_step_at <= at_s:
            tokens += model.advance(model.next_step_at)
        tokens += model.advance(at_s)
        assert model.submit(request, at_s) is None
    while model.next_step_at is not None:
        tokens += model.advance(model.next_step_at)
    return tokens


@pytest.mark.parametrize("seed", range(6))
def test_tokens_shown_come_when_the_stepwise_engine_gives_them(seed):
    work = requests(seed, 60)
    lengths = {request.request_id: request.output_tokens for _, request in work}
    wanted = {
        (token.request_id, token.position): (token.at, token.cached_tokens)
        for token in play(engine.Engine(A100), work)
        if token.position in (0, 32) or token.last
    }
    shown = play(leap.LeapingEngine(A100, shown=32), work)
    found = {(token.request_id, token.position): (token.at, token.cached_tokens) for token in shown}
    assert found.keys() == wanted.keys()
    for key, (at_s, cached) in wanted.items():
        assert found[key] == (pytest.approx(at_s, abs=1e-6), cached), key
    assert all(token.last == (token.position == lengths[token.request_id] - 1) for token in shown)


def test_leaps_save_steps_and_count_every_token():
    work = requests(1, 40)
    stepwise, leaping = engine.Engine(A100), leap.LeapingEngine(A100)
    play(stepwise, work)
    play(leaping, work)
    assert leaping.tally.steps < stepwise.tally.steps / 3
    assert leaping.tally.generation_tokens == stepwise.tally.generation_tokens
    assert leaping.tally.inter_token_s.count == stepwise.tally.inter_token_s.count
    assert leaping.cache.used_blocks == leaping.cache.blocks - leaping.cache.available_blocks == 0


def test_an_aborted_decode_ends_the_leap_with_the_running_step():
    model = leap.LeapingEngine(A100)
    for number in range(2):
        model.submit(job.Request(str(number), 100, 500, []), 0.0)
    model.advance(1.0)
    model.abort("0")
    assert model.next_step_at is not None
    assert 1.0 <= model.next_step_at < 1.0 + A100.step_s(0, 2, 1200)
    last = play(model, [])[-1]
    assert (last.request_id, last.position) == ("1", 499)


class TestExternalStore:
    def play(self, external: kv_cache.External, host: int = 0) -> leap.LeapingEngine:
        """30 prompts of 1,000 tokens twice over an engine that holds 11."""
        model = leap.LeapingEngine(dataclasses.replace(A100, host_kv_tokens=host), external)
        work = [
            (
                float(number),
                job.Request(str(number), 1000, 1, content.Content.of([(number % 30, 1000)]).hashes),
            )
            for number in range(60)
        ]
        play(model, work)
        return model

    def test_gives_back_what_the_device_lost(self):
        model = self.play(kv_cache.External(10_000))
        assert [model.take_hits(str(number)) for number in (0, 31)] == [(0, 0, 0), (0, 0, 992)]

    def test_outlives_the_engine(self):
        external = kv_cache.External(10_000)
        self.play(external)
        assert self.play(external).take_hits("0") == (0, 0, 992)

    def test_is_asked_after_host_memory(self):
        model = self.play(kv_cache.External(10_000), host=1_000_000)
        assert model.take_hits("31") == (0, 992, 0)

    def test_holds_no_more_than_it_may_and_drops_the_deepest_first(self):
        external = kv_cache.External(10)
        external.put([1, 2, 3])
        external.put(range(4, 13))
        assert len(external) == 10
        assert [value in external for value in (1, 2, 3, 4)] == [True, False, False, True]


def test_a_faster_engine_is_faster_by_its_factor():
    twice = performance.scaled(A100, 2)
    assert twice.step_s(500, 3, 2000) == pytest.approx(A100.step_s(500, 3, 2000) / 2)
    assert twice.kv_tokens == A100.kv_tokens
