"""Every workload under kvring's policies, several seeds: `make bench ARGS="-k simulation"`. Minutes.

Prints the figures; asserts only how policies stand to each other. Traces are replayed where KVRING_DATA names
the folder that holds them.
"""

from __future__ import annotations

import dataclasses
import sys
import time

import pytest

from extproc.sim import comparison, figures, performance, policies, simulation, traces, workloads
from tests import shared_data

pytestmark = pytest.mark.bench

POLICIES = ("round_robin", "cost", "ring", "least_load", "random")
FACTORIES = policies.factories()
LOADS = [
    *workloads.WORKLOADS,
    "first:prefixes=20",
    "first:prefixes=50",
    "first:shared=.7",
    "first:shared=.5",
    "first:users=10",
    "first:users=20",
    "first:model=8b",
    "first:model=70b",
]


def show(made: comparison.Comparison) -> dict[str, dict[str, figures.Spread]]:
    sys.stdout.write(f"\n{made.asked.summary}\n")
    merged = {name: figures.merge(runs) for name, runs in made.runs.items()}
    for name, spread in merged.items():
        ttft, tail = spread["ttft_mean_ms"].mean, spread["ttft_p99_ms"].mean
        sys.stdout.write(
            f"  {name:12} TTFT mean {ttft:8,.0f}, P99 {tail:8,.0f} ms, "
            f"hit {spread['engine_hit'].mean:6.1%}, {spread['requests_per_s'].mean:6.2f} requests/s\n"
        )
    return merged


@pytest.mark.parametrize("text", LOADS)
def test_cost_is_no_slower_than_turns_and_hits_at_least_as_often(text):
    made = comparison.compare(workloads.make(text), {name: FACTORIES[name] for name in POLICIES}, (1, 2, 3))
    merged = show(made)
    cost, turns = merged["cost"], merged["round_robin"]
    assert cost["ttft_mean_ms"].mean <= 1.05 * turns["ttft_mean_ms"].mean
    assert cost["engine_hit"].mean >= turns["engine_hit"].mean
    assert cost["requests_per_s"].mean >= 0.97 * turns["requests_per_s"].mean


@pytest.mark.parametrize(
    "name",
    [
        "mooncake_conversation.jsonl.gz",
        "azure_2023_conv.csv.gz",
        "azure_2023_code.csv.gz",
        "tau_bench_airline.json.gz",
    ],
)
def test_on_recorded_traffic_cost_is_no_slower_than_turns(name):
    model = dataclasses.replace(performance.PRESETS["32b-fp8-h100"], block_tokens=64)
    asked = traces.load(shared_data.path(f"traces/{name}"), model, 8)
    merged = show(comparison.compare(asked, {one: FACTORIES[one] for one in POLICIES}, (1,)))
    assert merged["cost"]["ttft_mean_ms"].mean <= 1.05 * merged["round_robin"]["ttft_mean_ms"].mean


def test_five_minutes_of_the_first_article_take_seconds():
    before_s = time.process_time()
    records = simulation.run(workloads.make("first"), FACTORIES["cost"], 1)
    used_s = time.process_time() - before_s
    sys.stdout.write(f"\n{len(records)} requests, 300 s of traffic: {used_s:.1f} s of CPU\n")
    assert used_s < 30  # a tenth of the traffic, whatever else the machine does
