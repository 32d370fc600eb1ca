"""The verdict says what the figures say, and nothing when there is nothing to compare."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from extproc.sim import comparison, figures, verdict, workloads
from extproc.sim.verdict import Pays

NOTHING = figures.Figures(**dict.fromkeys((field.name for field in fields(figures.Figures)), 0.0))
BASE = replace(
    NOTHING,
    ttft_mean_ms=400.0,
    ttft_p99_ms=2000.0,
    requests_per_s=5.0,
    engine_hit=0.4,
    prompt_tokens_mean=5000.0,
)


def judged(**own: float) -> verdict.Verdict | None:
    runs = {"round_robin": (BASE,), "cost": (replace(BASE, **own),)}
    return verdict.judge(comparison.Comparison(workloads.make("first"), (1,), runs, 10.0))


@pytest.mark.parametrize(
    ("own", "pays"),
    [
        ({"ttft_mean_ms": 359.0}, Pays.YES),
        ({"ttft_mean_ms": 361.0}, Pays.NO),
        ({"requests_per_s": 5.15}, Pays.YES),
        ({"requests_per_s": 5.14}, Pays.NO),
        ({"ttft_mean_ms": 421.0}, Pays.HARMS),
        ({"ttft_mean_ms": 419.0}, Pays.NO),
        ({"requests_per_s": 4.84}, Pays.HARMS),
    ],
)
def test_gain_and_harm_have_a_threshold_each(own, pays):
    assert judged(**own).pays is pays


def test_a_share_of_next_to_nothing_is_no_gain_and_no_harm():
    fast = replace(BASE, ttft_mean_ms=20.0)
    for mean_ms in (10.0, 24.0):
        runs = {"round_robin": (fast,), "cost": (replace(fast, ttft_mean_ms=mean_ms),)}
        made = comparison.Comparison(workloads.make("first"), (1,), runs, 10.0)
        assert verdict.judge(made).pays is Pays.NO


@pytest.mark.parametrize(
    ("own", "cause"),
    [
        ({"engine_hit": 0.05}, "share next to nothing: at most 5%"),
        (
            {"engine_hit": 0.9, "prompt_tokens_mean": 500.0},
            "short, 500 tokens on average: a whole miss costs 40 ms",
        ),
        ({"engine_hit": 0.43}, "round_robin finds 40% of prompt tokens as well"),
        (
            {"engine_hit": 0.9},
            "50% more prompt tokens were found in a cache, but this model computes them in 200 ms",
        ),
    ],
)
def test_no_gain_has_a_cause(own, cause):
    found = judged(**own)
    assert found.pays is Pays.NO
    assert cause in found.text


def test_without_both_arms_there_is_no_verdict():
    asked = workloads.make("first")
    for runs in ({"cost": (BASE,)}, {"round_robin": (BASE,), "ring": (BASE,)}):
        assert verdict.judge(comparison.Comparison(asked, (1,), runs, 10.0)) is None
    unserved = replace(BASE, ttft_mean_ms=None)
    runs = {"round_robin": (BASE,), "cost": (unserved,)}
    assert verdict.judge(comparison.Comparison(asked, (1,), runs, 10.0)) is None
