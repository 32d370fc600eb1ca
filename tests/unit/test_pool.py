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


def serving(made: pool.Pool, model: str) -> list[str]:
    return [e.id for e in made.serving(model)]


def test_who_serves_a_model_is_who_says_so_or_does_not_tell() -> None:
    told = [
        dataclasses.replace(A, models=frozenset({"m", "adapter"})),
        dataclasses.replace(B, models=frozenset({"m"})),
        C,
    ]
    made = pool.make("p", told)
    assert serving(made, "m") == ["a", "b", "c"]
    assert serving(made, "adapter") == serving(made, "adapter") == ["a", "c"]
    assert serving(made, "unheard of") == ["c"]
    assert made.models == {"m", "adapter"}


def test_a_model_that_nobody_serves_goes_to_anybody_and_is_not_remembered() -> None:
    made = pool.make("p", [dataclasses.replace(e, models=frozenset({"m"})) for e in (A, B)])
    for number in range(10):
        assert serving(made, f"invented {number}") == ["a", "b"]
    assert not made._serving


def test_a_model_served_only_by_who_is_down_has_nobody() -> None:
    down = dataclasses.replace(A, ready=False, models=frozenset({"adapter"}))
    made = pool.make("p", [down, dataclasses.replace(B, models=frozenset({"m"}))])
    assert serving(made, "adapter") == []
    assert serving(pool.with_ready(made, {down.id: True}), "adapter") == ["a"]
