"""The router weighs what a scrape said of KV usage, while it is fresh."""

from __future__ import annotations

import pytest

from extproc import chain, choice, pool, router

NAMES = ("a", "b", "c")


def make() -> router.Router:
    endpoints = [pool.Endpoint(pool.EndpointId(name), name) for name in NAMES]
    return router.Router(pool.make("p", endpoints), router.Settings())


def place(one: router.Router, now: float, number: int = 7) -> str:
    hashes = tuple(number * 1000 + block for block in range(100))
    made = one.place(router.Request(chain=chain.Chain(hashes, number), tokens=6400), now, 0.5)
    assert isinstance(made, choice.Decision)
    made.lease.release()
    return made.choice.endpoint.id


def full(one: router.Router, name: str, now: float, usage: float = 1.0) -> None:
    one.observe(pool.EndpointId(name), usage, now)


def test_an_endpoint_without_room_is_left_for_another_until_the_scrape_is_old():
    cold = {number: place(make(), 0.0, number) for number in range(20)}
    for number, home in cold.items():
        one = make()
        full(one, home, 0.0)
        assert place(one, 1.0, number) != home
        one = make()
        full(one, home, 0.0)
        assert place(one, 5.1, number) == home


@pytest.mark.parametrize("usage", [0.0, 0.5, 0.8])
def test_usage_below_four_fifths_changes_nothing(usage):
    home = place(make(), 0.0)
    one = make()
    full(one, home, 0.0, usage)
    assert place(one, 0.1) == home


@pytest.mark.parametrize("left", [True, False])
def test_usage_of_an_endpoint_that_left_is_forgotten(left):
    home = place(make(), 0.0)
    one = make()
    full(one, home, 0.0)
    if left:
        before = one.pool
        one.publish(pool.make("p", [e for e in before.endpoints if e.id != home], 2))
        one.publish(before)
    assert (place(one, 1.0) == home) is left
