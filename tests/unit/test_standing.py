"""Why an endpoint may not be chosen, and how many the guesses may keep out."""

from hypothesis import given
from hypothesis import strategies as st

from extproc import pool, standing
from extproc.standing import Against

NAMES = [pool.EndpointId(f"e{n}") for n in range(6)]
A, B, C = NAMES[:3]


def able(made: standing.Standings, now: float = 0.0) -> set[str]:
    return {name for name, ready in made.ready(NAMES, now).items() if ready}


def test_hard_reasons_keep_out_anybody_and_everybody() -> None:
    made = standing.Standings()
    made.set(A, Against.PROBE, holds=True)
    made.set(A, Against.SOURCE, holds=True)
    made.set(A, Against.PROBE, holds=False)
    assert able(made) == set(NAMES) - {A}
    assert made.against(A, 0.0) == (Against.SOURCE,)
    for name in NAMES:
        made.set(name, Against.REFUSED, holds=True)
    assert able(made) == set()
    assert made.against(A, 0.0) == (Against.SOURCE, Against.REFUSED)


def test_an_ejection_ends_by_itself_and_is_longer_each_time_until_calm() -> None:
    made = standing.Standings()
    assert [made.eject_longer(A, Against.FAILING, 10.0, 0.0) for _ in range(6)] == [10, 20, 40, 80, 80, 80]
    assert A not in able(made, 79.9)
    assert A in able(made, 80.0)
    made.calm(A)
    assert made.eject_longer(A, Against.FAILING, 10.0, 100.0) == 10
    assert made.against(A, 105.0) == (Against.FAILING,)
    assert made.against(A, 110.0) == ()


def test_it_is_known_when_the_answer_may_differ() -> None:
    made = standing.Standings()
    assert made.may_differ(0.0)
    made.ready(NAMES, 0.0)
    assert not made.may_differ(1e9)
    made.set(A, Against.PROBE, holds=False)
    assert not made.may_differ(1e9), "no news"
    made.eject(B, Against.FULL, 5.0, 10.0)
    assert made.may_differ(10.0)
    made.ready(NAMES, 10.0)
    assert not made.may_differ(14.9)
    assert made.may_differ(15.0)


def test_who_left_is_forgotten() -> None:
    made = standing.Standings()
    made.set(A, Against.PROBE, holds=True)
    made.eject_longer(A, Against.FAILING, 10.0, 0.0)
    made.retain(NAMES[1:])
    assert made.against(A, 1.0) == ()
    assert made.eject_longer(A, Against.FAILING, 10.0, 0.0) == 10


EVENTS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(list(Against)), st.booleans(), st.floats(0, 100)),
    max_size=30,
)


@given(EVENTS, st.floats(0, 200))
def test_guesses_keep_out_half_of_the_able_at_most(
    events: list[tuple[pool.EndpointId, Against, bool, float]], now: float
) -> None:
    made = standing.Standings()
    hard = {name: set[Against]() for name in NAMES}
    for name, against, holds, at_s in events:
        if against in (Against.FAILING, Against.FULL):
            made.eject_longer(name, against, 20.0, at_s)
        else:
            made.set(name, against, holds=holds)
            (hard[name].add if holds else hard[name].discard)(against)
    well = {name for name in NAMES if not hard[name]}
    chosen = able(made, now)
    assert chosen <= well
    assert len(chosen) >= len(well) - len(well) // 2
    assert {name for name in well if not made.soft(name, now)} <= chosen
