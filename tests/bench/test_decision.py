"""What a choice costs apart from hashing, by the number of endpoints; residency's memory; ring rebuilds.

Ratios between sizes are asserted, with slack for a machine that is busy.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
import tracemalloc

import pytest

from extproc import chain, choice, pool, residency, ring, router

pytestmark = pytest.mark.bench

BLOCKS = 500


def conversation(rng: random.Random, blocks: int, shared: chain.Chain | None = None) -> chain.Chain:
    """A chain of random hashes, behind those of `shared`."""
    own = tuple(rng.getrandbits(64) for _ in range(blocks - (len(shared) if shared else 0)))
    return chain.Chain((*(shared.hashes if shared else ()), *own), rng.getrandbits(64))


def request(blocks: chain.Chain) -> router.Request:
    return router.Request(chain=blocks, tokens=len(blocks) * 64.0)


def choose_us(endpoints: int, policy: str) -> float:
    """Median time of a choice among so many endpoints, warm with conversations that share a system prompt."""
    rng = random.Random(endpoints)
    members = [
        pool.Endpoint(pool.EndpointId(f"e{n}"), f"10.0.{n // 200}.{n % 200}:80") for n in range(endpoints)
    ]
    of = router.Router(pool.make("p", members), router.Settings(policy=policy))
    system = conversation(rng, 40)
    talks = [request(conversation(rng, BLOCKS, system)) for _ in range(min(4 * endpoints, 200))]
    times = []
    for round_ in range(3):
        for asked in rng.sample(talks, len(talks)):
            start = time.thread_time_ns()
            decided = of.place(asked, float(round_), rng.random())
            times.append((time.thread_time_ns() - start) / 1000)
            assert isinstance(decided, choice.Decision)
            if rng.random() < 0.9:
                decided.lease.release()
    return statistics.median(times)


@pytest.mark.parametrize("policy", ["cost", "ring", "least_load"])
def test_choosing_is_linear_in_the_endpoints(policy: str) -> None:
    cost = {endpoints: choose_us(endpoints, policy) for endpoints in (8, 64, 256)}
    told = ", ".join(f"{endpoints} endpoints {us:,.0f}" for endpoints, us in cost.items())
    sys.stdout.write(f"\n{policy}, {BLOCKS} blocks: {told} us\n")
    assert cost[64] <= 12 * cost[8]
    assert cost[256] <= 6 * cost[64]


def test_residency_takes_some_hundred_bytes_a_block() -> None:
    rng = random.Random(1)
    of = residency.Residency(residency.Capacity(60_000), idle_s=1e9)
    talks = [conversation(rng, BLOCKS) for _ in range(100)]
    tracemalloc.start()
    for talk in talks:
        of.add(pool.EndpointId("e"), talk, 0.0)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    each = held / (100 * BLOCKS)
    sys.stdout.write(f"\nresidency: {each:.0f} bytes a block\n")
    assert each < 600


def test_the_ring_is_rebuilt_in_about_linear_time() -> None:
    each: dict[int, float] = {}
    for endpoints in (8, 64, 256):
        members = [(pool.EndpointId(f"e{n}"), 1) for n in range(endpoints)]
        times = []
        for _ in range(7):
            start = time.thread_time_ns()
            ring.Ring(members, 256)
            times.append((time.thread_time_ns() - start) / 1000)
        each[endpoints] = statistics.median(times) / (endpoints * 256)
    sys.stdout.write(
        "\nring: " + ", ".join(f"{n} endpoints {us:.2f}" for n, us in each.items()) + " us a point\n"
    )
    assert each[256] <= 8 * each[8]  # it sorts, and outgrows the caches
