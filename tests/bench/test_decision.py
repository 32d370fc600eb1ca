"""What a choice costs apart from hashing, by the number of endpoints; residency's memory; ring rebuilds.

Ratios between sizes are asserted, with slack for a machine that is busy.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
import tracemalloc
from typing import NamedTuple

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


class Times(NamedTuple):
    """What a choice took [us]: `warm`, of a prompt that some endpoint holds; `cold`, of one that none does.

    The quickest tenth, since a machine that is busy with something else makes any choice slow.
    """

    warm: float
    cold: float


def choose(endpoints: int, policy: str) -> Times:
    """Choices among so many endpoints, of conversations that share a system prompt."""
    rng = random.Random(endpoints)
    members = [
        pool.Endpoint(pool.EndpointId(f"e{n}"), f"10.0.{n // 200}.{n % 200}:80") for n in range(endpoints)
    ]
    of = router.Router(pool.make("p", members), router.Settings(policy=policy, kv_tokens=10_000_000))
    for member in members:  # all are busy, and nothing is evicted: warm stays warm
        for _ in range(2):
            of.ledger.take(member.id, 0, 0.0)
    system = conversation(rng, 40)
    talks = [request(conversation(rng, BLOCKS, system)) for _ in range(100)]
    times: list[list[float]] = []
    for round_ in range(6):
        times.append([])
        for asked in rng.sample(talks, len(talks)):
            start = time.thread_time_ns()
            decided = of.place(asked, float(round_), rng.random())
            times[-1].append((time.thread_time_ns() - start) / 1000)
            assert isinstance(decided, choice.Decision)
            decided.lease.release()
    cold, warm = sorted(times[0]), sorted(itertools.chain(*times[1:]))
    return Times(warm[len(warm) // 10], cold[len(cold) // 10])


@pytest.mark.parametrize("policy", ["cost", "ring"])  # by load alone nothing stays warm
def test_choosing_grows_by_less_than_half_as_much_as_the_endpoints(policy: str) -> None:
    took = {endpoints: choose(endpoints, policy) for endpoints in (8, 64, 256)}
    told = ", ".join(f"{n} endpoints {us.warm:,.0f} (cold {us.cold:,.0f})" for n, us in took.items())
    sys.stdout.write(f"\n{policy}, {BLOCKS} blocks: {told} us\n")
    assert took[64].warm <= 4 * took[8].warm  # 8 times as many
    assert took[256].warm <= 16 * took[8].warm  # 32 times as many


def test_choosing_by_cost_takes_at_most_60_us_at_8_endpoints_and_500_at_256() -> None:
    for endpoints, limit_us in ((8, 60.0), (256, 500.0)):
        took = min(choose(endpoints, "cost").warm for _ in range(3))
        assert took <= limit_us, f"{endpoints} endpoints: {took:.0f} us"


def test_residency_takes_at_most_300_mb_for_a_million_blocks() -> None:
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
    assert each < 300


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
