from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import pool, ring

NAMES = st.sets(st.text("ab1-", min_size=1, max_size=4).map(pool.EndpointId), min_size=1, max_size=6)
MEMBERS = NAMES.flatmap(
    lambda names: st.fixed_dictionaries({name: st.integers(1, 3) for name in sorted(names)})
)
KEY = st.integers(0, 2**64 - 1)
KEYS = st.lists(KEY, min_size=1, max_size=10)


def wheel(members: dict[pool.EndpointId, int]) -> ring.Ring:
    return ring.Ring(list(members.items()), 8)


@given(MEMBERS, KEY)
def test_order_is_a_permutation_of_the_members(members: dict[pool.EndpointId, int], key: int) -> None:
    assert sorted(wheel(members).order(key)) == sorted(members)


@given(MEMBERS, KEY)
def test_home_is_the_first_of_the_order(members: dict[pool.EndpointId, int], key: int) -> None:
    assert wheel(members).home(key) == next(wheel(members).order(key))


@settings(deadline=None)
@given(MEMBERS, st.data(), KEYS)
def test_order_among_some_equals_the_order_of_a_ring_of_them_alone(
    members: dict[pool.EndpointId, int], data: st.DataObject, keys: list[int]
) -> None:
    some = data.draw(st.sets(st.sampled_from(sorted(members))))
    alone = wheel({name: members[name] for name in some})
    for key in keys:
        assert list(wheel(members).order(key, some)) == list(alone.order(key))


@settings(deadline=None)
@given(MEMBERS, st.data(), KEYS)
def test_removing_one_endpoint_moves_only_its_own_keys(
    members: dict[pool.EndpointId, int], data: st.DataObject, keys: list[int]
) -> None:
    gone = data.draw(st.sampled_from(sorted(members)))
    before, after = wheel(members), wheel({n: w for n, w in members.items() if n != gone})
    for key in keys:
        assert before.home(key) in (gone, after.home(key))


@given(MEMBERS, st.randoms(use_true_random=False), KEYS)
def test_list_order_is_irrelevant(
    members: dict[pool.EndpointId, int], rng: "st.random.Random", keys: list[int]
) -> None:
    listed = list(members.items())
    rng.shuffle(listed)
    for key in keys:
        assert list(ring.Ring(listed, 8).order(key)) == list(wheel(members).order(key))
