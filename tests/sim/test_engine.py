"""The engine under a virtual clock: step times, batching, admission, aborts, numbers."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest

from extproc.sim import engine, job, kv_cache, performance

A100 = performance.PRESETS["codellama-13b-a100-40"]
FP8 = performance.PRESETS["32b-fp8-h100"]


def request(
    request_id: str, prompt_tokens: int, output_tokens: int = 1, *, seed: int = 0, **fields
) -> job.Request:
    """Requests of one seed share every prefix."""
    text = random.Random(seed).randbytes((prompt_tokens + output_tokens) * kv_cache.TOKEN_BYTES)
    hashes = kv_cache.chain(text, 16)
    return job.Request(request_id, prompt_tokens, output_tokens, hashes, **fields)


def finish(model: engine.Engine) -> list[job.Token]:
    """All tokens until the engine is idle."""
    tokens = []
    while model.next_step_at is not None:
        tokens += model.advance(model.next_step_at)
    return tokens


def at(tokens: list[job.Token], request_id: str) -> list[float]:
    return [token.at for token in tokens if token.request_id == request_id]


class TestStepTime:
    @pytest.mark.parametrize(
        ("step", "expected_ms"),
        [
            ({"prefill_tokens": 0, "decodes": 1, "decode_context": 1000}, 2 + 16.7 + 0.53),
            # a full budget is bound by arithmetic: 2048 * .080
            ({"prefill_tokens": 2018, "decodes": 30, "decode_context": 0}, 2 + 163.84),
            # up to 208 tokens cost no more than reading the weights
            ({"prefill_tokens": 200, "decodes": 8}, 2 + 16.7),
            ({"prefill_tokens": 200, "decodes": 9}, 2 + 16.72),
        ],
    )
    def test_of_the_a100(self, step, expected_ms):
        assert A100.step_s(**step) * 1000 == pytest.approx(expected_ms)

    def test_of_a_chunk_deep_in_a_long_prompt(self):
        # 8192 tokens from 100,000 on: .6 ns * 8192 * 104,096 more than the arithmetic
        expected_ms = 2 + 8192 * 0.080 + 0.6e-6 * 8192 * 104_096
        assert FP8.step_s(8192, 0, chunk_work=8192 * 104_096) * 1000 == pytest.approx(expected_ms)

    def test_of_a_load_from_host_memory(self):
        assert FP8.step_s(16, 0, loaded_tokens=90_000) == pytest.approx(0.013 + 1.0)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("kv_tokens", 15),
            ("budget_tokens", 255),
            ("token_s", -1.0),
            ("seqs_max", 0),
            ("load_tokens_per_s", 0.0),
            ("queued_requests_max", -1),
        ],
    )
    def test_impossible_engines_are_refused_by_name(self, field, value):
        with pytest.raises(ValueError, match=field):
            dataclasses.replace(A100, **{field: value})

    def test_an_engine_whose_steps_take_no_time_is_refused(self):
        with pytest.raises(ValueError, match="weights_s"):
            dataclasses.replace(A100, weights_s=0.0, overhead_s=0.0)


class TestOneRequest:
    def test_an_idle_engine_begins_at_once_and_ends_idle(self):
        model = engine.Engine(A100)
        assert model.next_step_at is None
        assert model.submit(request("a", 1000), 5.0) is None
        assert model.next_step_at == pytest.approx(5.0 + 0.002 + 1000 * 80e-6)
        assert model.advance(5.05) == []
        (token,) = finish(model)
        assert token == job.Token("a", pytest.approx(5.082), 0, True, 0)
        assert model.next_step_at is None
        assert (model.running, model.waiting, model.kv_usage) == (0, 0, 0.0)

    def test_a_long_prompt_takes_a_step_per_chunk_of_the_budget(self):
        model = engine.Engine(A100)
        model.submit(request("a", 5000), 0.0)
        (token,) = finish(model)
        assert model.tally.steps == 3
        assert token.at == pytest.approx(3 * 0.002 + 5000 * 80e-6)

    def test_attention_of_a_cold_prompt_is_half_its_square_however_it_is_cut(self):
        model = engine.Engine(FP8)
        model.submit(request("a", 20_000), 0.0)
        (token,) = finish(model)
        assert model.tally.steps == 3
        assert token.at == pytest.approx(3 * 0.002 + 20_000 * 80e-6 + 0.6e-9 * 20_000**2 / 2)

    def test_decoding_costs_a_step_a_token_and_its_context(self):
        model = engine.Engine(A100)
        model.submit(request("a", 1000, 3), 0.0)
        times = at(finish(model), "a")
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert gaps == pytest.approx([0.0187 + 0.53e-6 * 1000, 0.0187 + 0.53e-6 * 1001])

    def test_a_repeated_prompt_computes_its_tail_only(self):
        model = engine.Engine(A100)
        model.submit(request("a", 4000), 0.0)
        finish(model)
        model.submit(request("b", 4000), 10.0)
        (token,) = finish(model)
        # the last block has 16 tokens, one step bound by the weights: the "18 ms" of a warm replica
        assert token.cached_tokens == 3984
        assert token.at - 10.0 == pytest.approx(0.0187)

    def test_generated_tokens_are_cached_too_but_for_the_newest(self):
        model = engine.Engine(A100)
        model.submit(request("a", 100, 60), 0.0)
        finish(model)
        # 100 + 60 - 1 tokens have KV: 9 full blocks
        model.submit(request("b", 170), 10.0)
        assert finish(model)[0].cached_tokens == 144

    def test_a_step_late_observed_yields_every_token_at_its_own_time(self):
        one, other = engine.Engine(A100), engine.Engine(A100)
        for model in (one, other):
            model.submit(request("a", 3000, 20), 0.0)
        assert one.advance(1000.0) == finish(other)

    def test_a_request_that_skips_the_cache_is_not_counted_as_a_query(self):
        model = engine.Engine(A100)
        model.submit(request("a", 160), 0.0)
        finish(model)
        model.submit(request("b", 160, reads_cache=False), 1.0)
        assert finish(model)[0].cached_tokens == 0
        assert (model.tally.prefix_queries, model.tally.prefix_hits) == (160, 0)


class TestBatch:
    def test_a_prefill_slows_the_decodes_beside_it(self):
        model = engine.Engine(A100)
        model.submit(request("a", 100, 50), 0.0)
        tokens = model.advance(0.1)
        model.submit(request("b", 4000, 1, seed=1), 0.1)
        times = at(tokens + finish(model), "a")
        gaps = [after - before for before, after in itertools.pairwise(times)]
        # 2047 prompt tokens and the decode fill one step's budget, the rest the next
        assert sorted(gaps)[-2:] == pytest.approx(
            [0.002 + 80e-6 * 1954 + 0.53e-6 * 107, 0.002 + 80e-6 * 2048 + 0.53e-6 * 106], rel=1e-3
        )
        assert min(gaps) < 0.019

    def test_prompts_share_a_step_and_the_budget_in_order_of_arrival(self):
        model = engine.Engine(A100)
        model.submit(request("first", 10, 1, seed=9), 0.0)
        model.submit(request("a", 1500, 1, seed=1), 0.0)
        model.submit(request("b", 1500, 1, seed=2), 0.0)
        tokens = finish(model)
        first, a, b = (at(tokens, name)[0] for name in ("first", "a", "b"))
        # one step carries all of a and 548 tokens of b, the next the rest of b
        assert a - first == pytest.approx(0.002 + 80e-6 * 2048)
        assert b - a == pytest.approx(0.002 + 80e-6 * 952)

    def test_a_request_hits_what_a_running_prefill_has_computed_so_far(self):
        model = engine.Engine(A100)
        model.submit(request("a", 8000, 50), 0.0)
        model.advance(0.2)
        model.submit(request("b", 8000), 0.2)
        tokens = finish(model)
        # b joins the step of a's fourth chunk, which leaves it budget; the first three are stored by then
        (cached,) = {token.cached_tokens for token in tokens if token.request_id == "b"}
        assert cached == 3 * 2048
        assert model.tally.computed_tokens == 8000 + 8000 - 3 * 2048

    def test_no_more_sequences_than_allowed_run(self):
        model = engine.Engine(dataclasses.replace(A100, seqs_max=3))
        for index in range(5):
            model.submit(request(f"r{index}", 20, 10, seed=index), 0.0)
        model.advance(0.03)
        assert (model.running, model.waiting) == (3, 2)
        assert len(finish(model)) > 0
        assert model.tally.finished == 5

    def test_of_several_loads_in_a_step_the_largest_counts(self):
        model = engine.Engine(dataclasses.replace(FP8, kv_tokens=4096, host_kv_tokens=100_000))
        for index in (1, 2):
            model.submit(request(f"w{index}", 1601, seed=index), float(index))
            finish(model)
        for index in (3, 4):  # evict both to the host tier
            model.submit(request(f"x{index}", 4000, seed=index), float(index))
            finish(model)
        model.submit(request("tick", 1, seed=5), 10.0)
        for index in (1, 2):
            model.submit(request(f"y{index}", 1601, seed=index), 10.0)
        begin, *ends = (token.at for token in finish(model))
        work = 2 * 1 * 1600.5
        assert ends == pytest.approx([begin + FP8.step_s(2, 0, 0, work, 1600)] * 2)
        assert model.tally.host_hits == model.tally.host_tokens == 3200


class TestAdmission:
    def test_a_request_waits_until_blocks_for_prompt_and_output_are_free(self):
        model = engine.Engine(A100)  # 700 blocks
        model.submit(request("a", 8000, 1000, seed=1), 0.0)  # 563
        model.submit(request("b", 2000, 200, seed=2), 0.0)  # 138 more do not fit
        finished = 0.0
        tokens = []
        while model.next_step_at is not None:
            now = model.next_step_at
            tokens += model.advance(now)
            if at(tokens, "a")[-1:] == [now] and tokens[-1].last:
                finished = now
                assert (model.running, model.waiting) == (1, 0)
        assert at(tokens, "b")[0] >= finished > 0
        assert model.tally.queue_s.total == pytest.approx(finished)

    def test_only_tokens_not_held_already_need_room(self):
        model = engine.Engine(A100)
        model.submit(request("a", 8000, 1000, seed=1), 0.0)
        tokens = model.advance(1.0)
        model.submit(request("b", 8000, 1000, seed=1), 1.0)
        model.advance(1.1)
        # 500 of b's 563 blocks are shared with a; 563 + 63 <= 700
        assert (model.running, model.waiting) == (2, 0)
        assert tokens

    def test_the_head_of_the_queue_holds_up_smaller_ones_behind_it(self):
        model = engine.Engine(A100)
        model.submit(request("a", 8000, 100, seed=1), 0.0)
        model.submit(request("big", 8000, 100, seed=2), 0.0)
        model.submit(request("small", 10, 1, seed=3), 0.0)
        model.advance(1.0)
        assert (model.running, model.waiting, model.waiting_tokens) == (1, 2, 8010)
        tokens = finish(model)
        assert at(tokens, "small")[0] > at(tokens, "a")[-1]

    def test_usage_counts_blocks_of_live_requests_only_and_as_they_are_filled(self):
        model = engine.Engine(A100)
        model.submit(request("a", 4000, 100), 0.0)
        assert model.kv_usage == pytest.approx(128 / 700)  # the first chunk
        model.advance(0.4)
        assert model.kv_usage == pytest.approx(251 / 700)  # 4000 tokens, and the first decode's block
        finish(model)
        assert model.kv_usage == 0.0
        assert len(model.cache.cached_hashes) == 256

    def test_a_request_that_never_fits_is_rejected(self):
        model = engine.Engine(A100)
        assert model.submit(request("a", 11_000, 201), 0.0) is job.Rejection.TOO_LONG
        assert model.submit(request("a", 11_000, 200), 0.0) is None

    def test_a_full_queue_rejects_by_count(self):
        model = engine.Engine(dataclasses.replace(A100, queued_requests_max=2))
        answers = [model.submit(request(f"r{index}", 1000, seed=index), 0.0) for index in range(5)]
        assert answers == [None, None, None, *[job.Rejection.QUEUED_REQUESTS] * 2]
        assert model.tally.rejected == {"max_num_queued_reqs": 2}
        finish(model)
        assert model.tally.finished == 3

    def test_a_full_queue_rejects_by_tokens(self):
        model = engine.Engine(dataclasses.replace(A100, queued_tokens_max=2500))
        answers = [model.submit(request(f"r{index}", 1000, seed=index), 0.0) for index in range(4)]
        assert answers == [None, None, None, job.Rejection.QUEUED_TOKENS]

    @pytest.mark.parametrize(("prompt_tokens", "output_tokens"), [(0, 1), (1, 0)])
    def test_a_request_without_tokens_is_an_error(self, prompt_tokens, output_tokens):
        with pytest.raises(ValueError, match="must be >= 1"):
            engine.Engine(A100).submit(job.Request("a", prompt_tokens, output_tokens, ()), 0.0)

    def test_a_live_id_is_an_error(self):
        model = engine.Engine(A100)
        model.submit(request("a", 10), 0.0)
        with pytest.raises(ValueError, match="live"):
            model.submit(request("a", 10), 0.0)


class TestAbort:
    def test_a_decoding_request_stops_at_once(self):
        model = engine.Engine(A100)
        model.submit(request("a", 1000, 100), 0.0)
        model.advance(0.5)
        model.abort("a")
        assert (model.running, model.kv_usage) == (0, 0.0)
        assert finish(model) == []
        assert model.next_step_at is None

    def test_a_prefilling_request_stops_after_the_running_step_and_leaves_its_blocks(self):
        model = engine.Engine(A100)
        model.submit(request("a", 8000), 0.0)
        model.advance(0.2)  # the second of four chunks is running
        model.abort("a")
        assert model.running == 1
        assert finish(model) == []
        assert model.tally.steps == 2
        assert (model.running, model.kv_usage) == (0, 0.0)
        model.submit(request("b", 8000), 10.0)
        assert finish(model)[0].cached_tokens == 4096

    def test_a_waiting_request_leaves_the_queue_at_once(self):
        model = engine.Engine(A100)
        model.submit(request("a", 1000), 0.0)
        model.submit(request("b", 500, seed=1), 0.0)
        model.abort("b")
        assert (model.waiting, model.waiting_tokens) == (0, 0)
        assert {token.request_id for token in finish(model)} == {"a"}

    def test_others_in_the_batch_go_on(self):
        model = engine.Engine(A100)
        for name in ("a", "b"):
            model.submit(request(name, 1000, 50, seed=ord(name)), 0.0)
        tokens = model.advance(0.4)
        model.abort("a")
        tokens += finish(model)
        assert len(at(tokens, "b")) == 50
        assert len(at(tokens, "a")) < 50

    def test_the_freed_room_admits_the_next(self):
        model = engine.Engine(A100)
        model.submit(request("a", 8000, 1000, seed=1), 0.0)
        model.submit(request("b", 8000, 1000, seed=2), 0.0)
        model.advance(1.0)
        assert model.waiting == 1
        model.abort("a")
        model.advance(model.next_step_at)
        assert (model.running, model.waiting) == (1, 0)

    def test_unknown_and_finished_ids_are_ignored_and_no_abort_counts_as_a_success(self):
        model = engine.Engine(A100)
        model.submit(request("a", 10), 0.0)
        finish(model)
        model.abort("a")
        model.abort("nobody")
        assert (model.tally.finished, model.tally.aborted) == (1, 0)


class TestTally:
    def test_the_numbers_add_up(self):
        model = engine.Engine(A100)
        tokens, now = [], 0.0
        for index in range(40):
            tokens += model.advance(now)
            model.submit(request(f"r{index}", 200 + 37 * index, 1 + index % 7, seed=index % 3), now)
            now += 0.05
        tokens += finish(model)
        counts = model.tally
        assert counts.finished == 40
        assert counts.prompt_tokens == sum(200 + 37 * index for index in range(40))
        assert counts.prompt_tokens == counts.computed_tokens + counts.device_tokens + counts.host_tokens
        assert counts.prefix_queries == counts.prompt_tokens
        # hits are the sum of cached_tokens over replies
        firsts = [token for token in tokens if token.position == 0]
        assert counts.prefix_hits == sum(token.cached_tokens for token in firsts) > 0
        assert counts.generation_tokens == len(tokens) == sum(1 + index % 7 for index in range(40))
        assert counts.step_tokens.total == counts.computed_tokens + counts.generation_tokens
        assert counts.step_tokens.count == counts.steps
        assert counts.inter_token_s.count == len(tokens) - 40
        assert counts.e2e_s.total == pytest.approx(counts.queue_s.total + counts.inference_s.total)
        assert counts.inference_s.total == pytest.approx(counts.prefill_s.total + counts.decode_s.total)
        assert counts.ttft_s.total == pytest.approx(counts.queue_s.total + counts.prefill_s.total)
        assert counts.inter_token_s.total == pytest.approx(counts.decode_s.total)

    def test_a_value_on_a_bound_belongs_below_it(self):
        histogram = engine.Engine(A100).tally.ttft_s
        for value in (0.001, 0.0011, 3000.0):
            histogram.observe(value)
        assert histogram.counts[:2] == [1, 1]
        assert histogram.counts[-1] == 1

    def test_reset_forgets_only_an_idle_cache(self):
        model = engine.Engine(A100)
        model.submit(request("a", 160), 0.0)
        assert not model.reset_prefix_cache()
        finish(model)
        assert model.reset_prefix_cache()
        model.submit(request("b", 160), 1.0)
        assert finish(model)[0].cached_tokens == 0


def test_eight_engines_reproduce_the_first_article():
    """What the article measured: round robin 1.1 / 6.8 s (P50 / P99), a home for each prefix 0.87 / 1.0 s.

    The time is that of the 33rd token, as its client saw it. 30 users, 5 prefixes, 150 virtual seconds; the
    prefixes' lengths decide much, hence the wide bounds.
    """
    spread_p50, spread_p99, spread_hits = _article(sticky=False)
    homes_p50, homes_p99, homes_hits = _article(sticky=True)
    assert 0.8 < spread_p50 < 2.0
    assert 4.0 < spread_p99 < 12.0
    assert 0.33 < spread_hits < 0.53
    assert 0.75 < homes_p50 < 1.1
    assert homes_p99 < 2.5
    assert homes_hits > 0.95


def _article(*, sticky: bool) -> tuple[float, float, float]:
    rng = random.Random(5)
    engines = [engine.Engine(A100) for _ in range(8)]
    prefixes = [rng.randbytes(4 * tokens) for tokens in (2200, 3200, 4400, 5600, 7400)]
    homes = [0, 2, 4, 5, 7]
    arrivals = sorted((rng.uniform(0, 2), user) for user in range(30))
    sent: dict[str, tuple[int, float]] = {}
    seen: list[float] = []
    count = 0
    while True:
        until = arrivals[0][0] if arrivals else math.inf
        due = [(model.next_step_at, index) for index, model in enumerate(engines) if model.next_step_at]
        if due and min(due)[0] <= until:
            now, index = min(due)
            for token in engines[index].advance(now):
                user, began = sent[token.request_id]
                if token.position == 32 and now > 60:
                    seen.append(now - began)
                if token.last:
                    arrivals.append((now + rng.uniform(0.5, 2), user))
            arrivals.sort()
            continue
        if until >= 150:
            break
        now, user = arrivals.pop(0)
        prefix = rng.randrange(5)
        text = prefixes[prefix] + rng.randbytes(4 * 100)
        count += 1
        sent[str(count)] = (user, now)
        target = engines[homes[prefix] if sticky else count % 8]
        asked = job.Request(str(count), len(text) // 4, 100, kv_cache.chain(text, 16))
        assert target.submit(asked, now) is None
    seen.sort()
    hits = sum(model.tally.prefix_hits for model in engines)
    return (
        seen[len(seen) // 2],
        seen[int(len(seen) * 0.99)],
        hits / sum(model.tally.prefix_queries for model in engines),
    )
