"""An engine's own metrics become its model; what they do not tell stays as it was and is named."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from extproc.sim import engine, exposition, job, observed, performance

PRESET = performance.PRESETS["codellama-13b-a100-40"]
REAL = Path(__file__).parents[1] / "data" / "vllm_metrics.txt"


def test_a_real_vllm_tells_capacity_rate_and_step():
    seen = observed.observe(REAL.read_bytes(), PRESET)
    assert seen.model.kv_tokens == 35_200
    assert 1 / seen.model.token_s == pytest.approx(2002, abs=1)
    assert not seen.untold


def test_the_simulated_engine_is_recognised_by_its_own_metrics():
    """Alone in its engine a prompt is prefilled at the model's rate, but for each step's overhead."""
    model = performance.PRESETS["8b-h100"]
    made = engine.Engine(model)
    now = 0.0
    for number in range(30):
        hashes = tuple(range(number * 1000, number * 1000 + 256))
        made.submit(job.Request(f"r{number}", 4096, 20, hashes), now)
        while made.next_step_at is not None:
            now = made.next_step_at
            made.advance(now)
    text = exposition.render(made, exposition.Identity("m", 0.0))
    seen = observed.observe(text, PRESET).model
    assert seen.kv_tokens == model.kv_tokens // 16 * 16
    assert seen.token_s == pytest.approx(model.token_s, rel=0.15)
    step_s = model.weights_s + model.overhead_s
    assert seen.weights_s + seen.overhead_s == pytest.approx(step_s, rel=0.15)


def test_what_is_not_told_stays_and_is_named():
    seen = observed.observe(b"", PRESET)
    assert seen.model == PRESET
    assert not seen.told
    assert [text.partition(" (")[0] for text in seen.untold] == [
        "KV cache",
        "prefill rate",
        "time between tokens",
    ]


@given(st.binary(max_size=2000))
def test_no_text_is_an_error(noise):
    observed.observe(noise, PRESET)
    observed.observe(REAL.read_bytes()[:5000] + noise, PRESET)
