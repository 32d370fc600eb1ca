import dataclasses

import pytest

from extproc import pool


def endpoint(name: str, address: str = "10.0.0.1:80", **fields: int) -> pool.Endpoint:
    return pool.Endpoint(pool.EndpointId(name), address, **fields)


A, B, C = (endpoint(name) for name in "abc")


def test_pools_of_equal_endpoints_are_equal_in_any_order() -> None:
    assert pool.make("p", [C, A, B]) == pool.make("p", [A, B, C])


def test_of_one_name_repeated_the_last_stands() -> None:
    made = pool.make("p", [A, endpoint("a", "10.0.0.9:80")])
    assert [e.address for e in made.endpoints] == ["10.0.0.9:80"]


def test_membership_ignores_readiness_and_address() -> None:
    one = pool.make("p", [A, B])
    other = pool.make("p", [endpoint("a", "10.0.0.9:80"), dataclasses.replace(B, ready=False)])
    assert one.membership == other.membership
    assert one.membership != pool.make("p", [A, endpoint("b", weight=2)]).membership


def test_only_ready_endpoints_may_be_chosen() -> None:
    made = pool.make("p", [A, dataclasses.replace(B, ready=False), C])
    assert made.ready == (A, C)


def test_changed_readiness_makes_the_next_generation() -> None:
    first = pool.make("p", [A, B])
    second = pool.with_ready(first, {A.id: False})
    assert second.ready == (B,)
    assert second.generation == first.generation + 1
    assert first.ready == (A, B)
    assert pool.with_ready(second, {A.id: True}).endpoints == first.endpoints


def test_unchanged_readiness_keeps_the_pool() -> None:
    made = pool.make("p", [A, B])
    assert pool.with_ready(made, {A.id: True, pool.EndpointId("stranger"): False}) is made


def test_pool_can_not_be_edited() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        pool.make("p", [A]).generation = 2  # type: ignore[misc]


def test_empty_pool_has_nobody() -> None:
    assert pool.make("p", []).ready == ()
