"""Seats and limits of a router that does not hear of others."""

import random
from collections import Counter

import pytest

from extproc import apart, policy, pool, ring

NAMES = [pool.EndpointId(f"e{number}") for number in range(8)]
WHEEL = ring.Ring([(name, 1) for name in NAMES])
KEYS = [random.Random(number).getrandbits(64) for number in range(20)]


def seated(keys: list[int], wheel: ring.Ring = WHEEL, now: float = 0.0) -> apart.Seats:
    seats = apart.Seats(wheel)
    for key in keys:
        seats.take(key, now)
    return seats


def homes(seats: apart.Seats, keys: list[int]) -> list[str | None]:
    return [seats.find(key) for key in keys]


def test_few_keys_are_spread_evenly_where_the_ring_alone_would_pile_them_up() -> None:
    alone = Counter(WHEEL.home(key) for key in KEYS)
    assert max(alone.values()) > 3
    counts = Counter(homes(seated(KEYS), KEYS))
    assert None not in counts
    assert max(counts.values()) == 3  # 20 keys, 8 endpoints


def test_most_keys_stay_at_the_home_that_the_ring_gives_them() -> None:
    seats = seated(KEYS)
    assert sum(seats.find(key) == WHEEL.home(key) for key in KEYS) == 13  # the others have theirs at the next


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 20, 100])
def test_who_sits_where_does_not_depend_on_the_order_in_which_keys_came(count: int) -> None:
    keys = [random.Random(1000 + number).getrandbits(64) for number in range(count)]
    expected = homes(seated(keys), keys)
    for seed in range(5):
        shuffled = random.Random(seed).sample(keys, count)
        assert homes(seated(shuffled), keys) == expected


def test_replicas_that_know_nearly_the_same_keys_find_nearly_the_same_homes() -> None:
    one, other = seated(KEYS), seated(KEYS[:-1])
    assert sum(one.find(key) != other.find(key) for key in KEYS[:-1]) <= 2


def test_an_endpoint_of_twice_the_weight_has_twice_the_seats() -> None:
    wheel = ring.Ring([(name, 2 if name == "e0" else 1) for name in NAMES[:5]])
    keys = [random.Random(number).getrandbits(64) for number in range(60)]
    counts = Counter(homes(seated(keys, wheel), keys))
    assert counts["e0"] == 20
    assert all(counts[name] == 10 for name in NAMES[1:5])


def test_a_key_that_is_idle_gives_its_seat_back() -> None:
    seats = seated(KEYS)
    seats.take(KEYS[0], 200.0)
    seats.take(KEYS[0], 320.0)
    assert len(seats) == 1
    assert seats.find(KEYS[0]) == WHEEL.home(KEYS[0])


def test_with_many_keys_the_ring_alone_is_even_and_nobody_has_a_seat() -> None:
    keys = [random.Random(number).getrandbits(64) for number in range(16 * 8 + 1)]
    seats = seated(keys)
    assert len(seats) == 0
    seats.take(KEYS[0], 100.0)
    assert seats.find(KEYS[0]) is None
    seats.take(KEYS[0], 301.0)  # few again
    assert seats.find(KEYS[0]) == WHEEL.home(KEYS[0])


def test_without_endpoints_there_are_no_seats() -> None:
    assert seated(KEYS, ring.Ring(())).find(KEYS[0]) is None


@pytest.mark.parametrize(
    ("unheard", "asked", "expected"),
    [
        (0, {"told": True}, policy.Limits(2.0, 8192.0, 6.0)),
        (3, {"told": False}, policy.Limits(2.0, 2048.0, 1.5)),
        (3, {"told": True}, policy.Limits(2.0, 2048.0, 6.0)),
    ],
)
def test_floors_are_divided_but_where_engines_tell_of_the_others_requests(
    unheard: int, asked: dict[str, bool], expected: policy.Limits
) -> None:
    assert apart.limits(policy.Limits(2.0, 8192.0, 6.0), unheard, **asked) == expected
