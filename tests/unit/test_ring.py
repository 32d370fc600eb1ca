from collections import Counter

import pytest

from extproc import pool, ring


def wheel(*names: str, points: int = ring.POINTS) -> ring.Ring:
    return ring.Ring([(pool.EndpointId(name), 1) for name in names], points)


def weighted(**weights: int) -> ring.Ring:
    return ring.Ring([(pool.EndpointId(name), weight) for name, weight in weights.items()])


EIGHT = [f"vllm-{i}" for i in range(8)]
KEYS = range(0, 2**64, 2**64 // 4000)


def homes(of: ring.Ring) -> list[str]:
    return [str(of.home(key)) for key in KEYS]


def fullest(of: ring.Ring) -> float:
    """Exact share of the circle of the endpoint with most of it, over the fair share."""
    shares: Counter[str] = Counter()
    before = of._positions[-1] - 2**64
    for position, owner in zip(of._positions, of._owners, strict=True):
        shares[owner] += position - before
        before = position
    return max(shares.values()) / 2**64 * len(of.members)


def test_fullest_of_8_endpoints_holds_at_most_1_15_times_its_share_in_the_mean_over_names() -> None:
    names = ["vllm", "replica", "pod", "a", "b", "c", "llama", "qwen", "10.0.0.1"]
    found = [fullest(wheel(*(f"{name}-{i}" for i in range(8)))) for name in names]
    assert sum(found) / len(found) < 1.12
    assert max(found) < 1.2


def test_keys_find_the_shares_of_the_circle() -> None:
    counts = Counter(homes(wheel(*EIGHT)))
    assert len(counts) == 8
    assert max(counts.values()) / (len(KEYS) / 8) < 1.25  # 500 keys each: +-5 % by chance


def test_shares_follow_weights() -> None:
    counts = Counter(homes(weighted(a=1, b=2, c=5)))
    for name, weight in (("a", 1), ("b", 2), ("c", 5)):
        assert counts[name] / len(KEYS) == pytest.approx(weight / 8, rel=0.2)


def test_removed_endpoint_moves_only_its_own_keys_and_scatters_them() -> None:
    """M01."""
    before, after = homes(wheel(*EIGHT)), homes(wheel(*EIGHT[1:]))
    moved = Counter(new for old, new in zip(before, after, strict=True) if old == "vllm-0")
    assert all(old in ("vllm-0", new) for old, new in zip(before, after, strict=True))
    assert set(moved) == set(EIGHT[1:])
    assert max(moved.values()) < 2 * sum(moved.values()) / 7


def test_added_endpoint_takes_a_ninth_of_the_keys_and_moves_no_other() -> None:
    """M01."""
    before, after = homes(wheel(*EIGHT)), homes(wheel(*EIGHT, "vllm-8"))
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"vllm-8"}
    assert len(moved) / len(KEYS) == pytest.approx(1 / 9, rel=0.2)


def test_keys_of_one_home_overflow_to_all_the_others() -> None:
    eight = wheel(*EIGHT)
    orders = [list(eight.order(key)) for key in KEYS]
    seconds = Counter(order[1] for order in orders if order[0] == "vllm-3")
    assert len(seconds) == 7
    assert max(seconds.values()) < 2.5 * sum(seconds.values()) / 7


def test_overflow_does_not_go_to_the_neighbour_on_the_circle() -> None:
    sparse = wheel(*EIGHT, points=1)  # one neighbour each
    orders = [list(sparse.order(key)) for key in KEYS[::4]]
    for home in EIGHT:
        seconds = {order[1] for order in orders if order[0] == home}
        assert len(seconds) > 1 or not seconds


@pytest.mark.parametrize(("one", "other"), [("vllm-1", "vllm-11"), ("a", "a0"), ("pod-1", "pod-1\0")])
def test_names_that_start_alike_share_no_points(one: str, other: str) -> None:
    points = [set(wheel(name)._positions) for name in (one, other)]
    assert not points[0] & points[1]
    assert len(points[0]) == ring.POINTS


def test_order_of_the_list_and_repeats_are_irrelevant() -> None:
    """M01."""
    assert homes(wheel(*EIGHT[::-1])) == homes(wheel(*EIGHT)) == homes(wheel(*EIGHT, *EIGHT))


def test_empty_ring_has_no_home() -> None:
    assert wheel().home(1) is None
    assert list(wheel().order(1)) == []


def test_nobody_wanted_gives_nobody() -> None:
    assert list(wheel("a", "b").order(7, [])) == []
    assert list(wheel("a", "b").order(7, [pool.EndpointId("stranger")])) == []


def test_biggest_key_is_looked_up_like_any() -> None:
    assert set(wheel(*EIGHT).order(2**64 - 1)) == set(EIGHT)


def test_one_point_each_still_gives_everyone_once() -> None:
    assert sorted(wheel(*EIGHT, points=1).order(12345)) == EIGHT
