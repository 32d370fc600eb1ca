import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import pytest

from extproc import policy
from extproc.policy import cost

LIMITS = policy.Limits(factor=2.0, floor_tokens=1000.0)


@dataclasses.dataclass(frozen=True)
class candidate:  # noqa: N801  (read as a word in what follows)
    """One line of a question."""

    inflight: int = 0
    pending: int = 0
    cached: float = 0.0
    kv_usage: float = 0.0
    kv_tokens: int = 0

    @property
    def work(self) -> int:
        return self.pending + 512 * self.inflight


def columns(candidates: Sequence[candidate]) -> dict[str, list[float]]:
    names = ("inflight", "pending", "work", "kv_tokens", "cached", "kv_usage")
    return {name: [getattr(each, name) for each in candidates] for name in names}


@dataclasses.dataclass(frozen=True)
class Looked:
    """A look at what a test says."""

    displaced: Sequence[float] | None
    taken: Sequence[float] | None
    new_crowds: Collection[int]

    def displaced_s(self, index: int) -> float:
        return -math.inf if self.displaced is None else self.displaced[index]

    def kv_taken(self, index: int) -> float:
        return 0.0 if self.taken is None else self.taken[index]

    def has_new_crowd(self, index: int) -> bool:
        return index in self.new_crowds


def ask(
    name: str,
    candidates: Sequence[candidate],
    prompt_tokens: float = 1000.0,
    order: Sequence[int] | None = None,
    limits: policy.Limits = LIMITS,
    turn: int = 0,
    chance: float = 0.0,
    displaced_s: Sequence[float] | None = None,
    kv_taken: Sequence[float] | None = None,
    new_crowds: Collection[int] = (),
    common_tokens: float = 0.0,
    shared_tokens: float = 0.0,
    heard: bool = True,  # noqa: FBT001, FBT002
) -> policy.Pick:
    def ring_order() -> Iterator[int]:
        return iter(range(len(candidates)) if order is None else order)

    question = policy.Question(
        **columns(candidates),
        prompt_tokens=prompt_tokens,
        ring_order=ring_order,
        limits=limits,
        turn=turn,
        chance=chance,
        look=Looked(displaced_s, kv_taken, new_crowds),
        common_tokens=common_tokens,
        shared_tokens=shared_tokens,
        heard=heard,
    )
    return policy.POLICIES[name](question)


def loaded(*pending: int) -> list[candidate]:
    return [candidate(1 if tokens else 0, tokens) for tokens in pending]


IDLE = [candidate() for i in range(4)]


@pytest.mark.parametrize("name", ["cost", "ring"])
def test_cold_prompt_on_an_idle_pool_goes_home(name: str) -> None:
    for order in itertools.permutations(range(4)):
        pick = ask(name, IDLE, order=order)
        assert (pick.index, pick.reason, pick.ring_steps) == (order[0], policy.Reason.HOME, 0)


def test_ring_stays_home_below_the_bound_whatever_the_others_hold() -> None:
    assert ask("ring", loaded(400, 0, 0, 0)).reason is policy.Reason.HOME


def test_ring_passes_over_all_that_are_at_the_bound() -> None:
    pick = ask("ring", loaded(9000, 9000, 0, 9000), order=[0, 3, 2, 1], limits=policy.Limits(1.1, 0.0))
    assert (pick.index, pick.reason, pick.ring_steps) == (2, policy.Reason.OVERFLOW, 2)


def test_ring_bound_counts_the_request_to_place() -> None:
    # Work 2512 of the home against 2 * (2512 + 1000 + 512) / 4 = 2012.
    assert ask("ring", loaded(2000, 0, 0, 0)).index == 1
    # A longer prompt raises the mean: 2 * (2512 + 6000 + 512) / 4 = 4512.
    assert ask("ring", loaded(2000, 0, 0, 0), prompt_tokens=6000).index == 0


def test_ring_bound_counts_only_what_is_not_cached_anywhere() -> None:
    warm = [candidate(1, 2000), *(candidate(cached=6000.0) for i in (1, 2, 3))]
    assert ask("ring", warm, prompt_tokens=6000).index == 1


@pytest.mark.parametrize("load", [(5000,) * 4, (5000, 5000, 5000, 4999), (10**9, 0, 0, 0)])
def test_ring_always_finds_room(load: tuple[int, ...]) -> None:
    pick = ask("ring", loaded(*load), prompt_tokens=0, limits=policy.Limits(1.01, 0.0))
    assert loaded(*load)[pick.index].work < 1.01 * (sum(c.work for c in loaded(*load)) + 512) / 4


def test_cost_goes_where_the_prompt_is_cached() -> None:
    pick = ask("cost", [*IDLE[:3], candidate(cached=900.0)])
    assert (pick.index, pick.reason, pick.ring_steps) == (3, policy.Reason.WARM, 3)


def test_cost_keeps_affinity_with_3_at_home_and_1_elsewhere() -> None:
    candidates = [candidate(3, cached=8000.0), *(candidate(1) for i in (1, 2, 3))]
    assert ask("cost", candidates, prompt_tokens=8000).reason is policy.Reason.HOME


def test_cost_leaves_a_warm_endpoint_when_waiting_there_costs_more() -> None:
    busy = candidate(1, pending=2600, cached=1000.0)
    assert ask("cost", [busy, *IDLE[1:]], limits=policy.Limits(3.0, 1e9)).index == 1
    less = candidate(1, pending=1400, cached=1000.0)
    assert ask("cost", [less, *IDLE[1:]], limits=policy.Limits(3.0, 1e9)).index == 0


def test_cost_goes_elsewhere_from_the_cap_on() -> None:
    candidates = [candidate(8, cached=1000.0), *(candidate(1) for _ in range(3))]
    pick = ask("cost", candidates, prompt_tokens=1000)
    assert pick.costs[0] < min(pick.costs[1:])
    # 8 open requests against max(8, 2 * (11 + 1) / 4)
    assert (pick.index, pick.reason) == (1, policy.Reason.OVERFLOW)
    candidates[3] = candidate(12)
    assert ask("cost", candidates, prompt_tokens=1000).index == 0  # 2 * (22 + 1) / 4


@pytest.mark.parametrize(
    ("open_requests", "kv_share", "prompt_tokens", "stays"),
    [
        (8, 0.5, 4000, True),
        (11, 0.5, 4000, True),
        (12, 0.5, 4000, False),  # half as many again as max(8, 2 * (12 + 4) / 4)
        (8, 0.51, 4000, False),  # its cache has no room for more to decode
        (8, 0.5, 1100, False),  # 2.25 * 1100 + 64 less 512: others cost 2,027 tokens more
        (8, 0.5, 1150, True),  # 2,139 tokens more
    ],
)
def test_the_cap_is_stretched_where_leaving_is_dearer(
    open_requests: int,
    kv_share: float,
    prompt_tokens: float,
    stays: bool,  # noqa: FBT001
) -> None:
    warm = candidate(open_requests, cached=prompt_tokens)
    candidates = [warm, *(candidate(1) for _ in range(3))]
    pick = ask("cost", candidates, prompt_tokens, kv_taken=[kv_share, 0, 0, 0])
    assert (pick.index == 0) is stays
    assert (pick.reason is policy.Reason.OVERFLOW) is not stays


def test_the_cap_is_not_stretched_for_what_many_share() -> None:
    candidates = [candidate(8, cached=4000.0), *(candidate(1) for _ in range(3))]
    assert ask("cost", candidates, 4000, shared_tokens=2850).index == 0  # 2,139 tokens more for the rest
    assert ask("cost", candidates, 4000, shared_tokens=2900).index == 1  # 2,027
    candidates[1] = candidate(1, cached=2900.0)  # who has it costs no less for that
    assert ask("cost", candidates, 4000, shared_tokens=2900).index == 1
    assert ask("cost", [candidate(8, cached=4300.0), *candidates[1:]], 4300, shared_tokens=2900).index == 0


@pytest.mark.parametrize(
    ("open_requests", "prompt_tokens", "stays"),
    [
        (8, 4000, True),
        (11, 4000, True),
        (12, 4000, False),  # half as many again as the cap
        (8, 1100, False),  # others cost 2,027 tokens more
        (8, 1150, True),
    ],
)
def test_a_crowd_that_has_just_come_stays_with_what_many_share_however_full_the_cache(
    open_requests: int,
    prompt_tokens: float,
    stays: bool,  # noqa: FBT001
) -> None:
    candidates = [candidate(open_requests, cached=prompt_tokens), *(candidate(1) for _ in range(3))]
    full = [0.9, 0, 0, 0]
    pick = ask("cost", candidates, prompt_tokens, shared_tokens=prompt_tokens, kv_taken=full, new_crowds=[0])
    assert (pick.index == 0) is stays
    assert (pick.reason is policy.Reason.OVERFLOW) is not stays
    for crowds in ([], [1, 2, 3]):
        asked = ask("cost", candidates, prompt_tokens, shared_tokens=prompt_tokens, new_crowds=crowds)
        assert asked.index == 1


def test_of_a_crowd_that_others_made_it_is_not_known_how_old_it_is() -> None:
    candidates = [candidate(8, cached=4000.0), *(candidate(1) for _ in range(3))]
    assert ask("cost", candidates, 4000, shared_tokens=4000, new_crowds=[0]).index == 0
    assert ask("cost", candidates, 4000, shared_tokens=4000, new_crowds=[0], heard=False).index == 1


def test_a_prompt_that_does_not_fit_waits_however_short_it_is() -> None:
    for tokens in (100.0, 2000.0):
        for usage, wait in ((1.0, 0.0), (1.1, 1638.4), (1.5, 8192.0)):
            full = [candidate(2, kv_usage=usage), *IDLE[1:]]
            short = 4 * (usage - 0.9) * (tokens + 512)
            found = [ask("cost", full, tokens, heard=heard).costs[0] for heard in (True, False)]
            assert found == pytest.approx(
                [2 * 64 + 2.5 * tokens + short + wait, 2 * 64 + 2.5 * tokens + short]
            )


def test_a_new_crowd_goes_to_who_is_below_the_cap_and_has_its_prefix() -> None:
    candidates = [candidate(8, cached=4000.0), candidate(2, cached=3900.0), candidate(1), candidate(1)]
    assert ask("cost", candidates, 4000, shared_tokens=4000, new_crowds=[0]).index == 1


def test_what_nearly_all_prompts_begin_with_keeps_nobody() -> None:
    warm = [candidate(4, cached=1500.0), *IDLE[1:]]
    assert ask("cost", warm, 1600).index == 0
    assert ask("cost", warm, 1600, common_tokens=1500).index == 1
    assert ask("cost", [candidate(4, cached=1600.0), *IDLE[1:]], 2500, common_tokens=1500).costs[0] == (
        pytest.approx(4 * 64 + 3 * 900)
    )
    assert ask("cost", IDLE, 1000, common_tokens=1500).costs == (0,) * 4  # it ends within what is common


def test_a_long_new_prompt_keeps_away_from_where_it_delays_many() -> None:
    candidates = [candidate(4), candidate(0, pending=3000), *(candidate(5) for _ in range(2))]
    assert ask("cost", candidates, 1000).index == 0  # 4 * (64 + 250)
    assert ask("cost", candidates, 3000).index == 1  # 4 * (64 + 750)


def test_cost_does_not_turn_readers_away_because_a_document_is_being_computed() -> None:
    candidates = [candidate(2, 13_200, cached=13_000.0), *IDLE[1:]]
    assert ask("cost", candidates, prompt_tokens=13_200).index == 0
    assert ask("ring", candidates, prompt_tokens=13_200).index == 1


def test_cost_is_the_documented_sum() -> None:
    held = candidate(inflight=3, pending=700, cached=400.0, kv_usage=1.0, kv_tokens=8000)
    expected = 700 + 2 * 600 + 3 * (64 + 600 / 4) + 8000 / 16 + 4 * (1.0 - 0.9) * (1000 + 700 + 512)
    assert ask("cost", [held]).costs == (pytest.approx(expected),)


@pytest.mark.parametrize("usage", [0.0, 0.89, 0.9])
def test_cost_ignores_kv_usage_while_there_is_space(usage: float) -> None:
    assert ask("cost", [candidate(kv_usage=usage)]).costs == (2000,)


def test_endpoint_short_of_kv_space_is_avoided() -> None:
    assert ask("cost", [candidate(kv_usage=0.99), *IDLE[1:]]).index == 1


def test_of_equal_costs_the_one_with_room_in_its_cache_is_taken_else_who_drops_the_oldest() -> None:
    order = [2, 0, 3, 1]
    full = [50.0, 70.0, 90.0, 20.0]
    assert ask("cost", IDLE, order=order, displaced_s=full).index == 3
    assert ask("cost", IDLE, order=order, displaced_s=[50.0, -math.inf, 90.0, -math.inf]).index == 3
    assert ask("cost", IDLE, order=order, displaced_s=[50.0] * 4).index == 2
    # what is dropped is worth no more than a block: a request more decides against it
    busy = [*IDLE[:3], candidate(1, kv_tokens=500)]
    assert ask("cost", busy, order=order, displaced_s=full).index == 0


def test_costs_within_a_block_are_equal() -> None:
    assert ask("cost", [candidate(pending=64), *IDLE[1:]], order=[0, 1, 2, 3]).index == 0
    assert ask("cost", [candidate(pending=65), *IDLE[1:]], order=[0, 1, 2, 3]).index == 1


def test_who_is_over_the_cap_is_none_of_the_equals() -> None:
    over = [candidate(8, cached=900.0), *(candidate(1) for _ in range(3))]
    pick = ask("cost", over, order=[0, 1, 2, 3], displaced_s=[1.0, 99.0, 50.0, 99.0])
    assert pick.costs[0] < min(pick.costs[1:])
    assert (pick.index, pick.reason) == (2, policy.Reason.OVERFLOW)


def test_equal_costs_go_in_ring_order() -> None:
    candidates = [candidate(5), *IDLE[1:]]
    pick = ask("cost", candidates, order=[0, 2, 3, 1])
    assert (pick.index, pick.reason, pick.ring_steps) == (2, policy.Reason.WARM, 1)


def test_empty_cache_is_no_reason_to_be_chosen() -> None:
    candidates = [candidate(6, 4000), *(candidate(1, cached=500.0) for i in (1, 2, 3))]
    for name in ("cost", "least_load"):
        assert ask(name, candidates).index != 0


def test_one_long_prompt_weighs_more_than_many_requests() -> None:
    candidates = [candidate(1, 200_000), *(candidate(12) for i in (1, 2, 3))]
    for name in ("cost", "ring", "least_load"):
        assert ask(name, candidates, prompt_tokens=100).index != 0


def test_least_load_takes_the_least_and_rotates_among_equals() -> None:
    candidates = [candidate(1), candidate(), candidate(2), candidate()]
    picked = [ask("least_load", candidates, turn=turn).index for turn in range(4)]
    assert picked == [1, 3, 1, 3]


def test_round_robin_takes_turns_whatever_the_load() -> None:
    candidates = loaded(9000, 0, 0)
    assert [ask("round_robin", candidates, turn=turn).index for turn in range(6)] == [0, 1, 2, 0, 1, 2]


def test_random_covers_everyone_evenly() -> None:
    counts = Counter(ask("random", IDLE, chance=step / 1000).index for step in range(1000))
    assert counts == dict.fromkeys(range(4), 250)
    assert ask("random", IDLE, chance=1 - 2**-53).index == 3


@pytest.mark.parametrize("name", policy.POLICIES)
def test_single_candidate_is_always_chosen(name: str) -> None:
    for load in (0, 10**9):
        assert ask(name, loaded(load), chance=0.999, turn=7).index == 0


def test_ring_steps_of_a_warm_endpoint_are_counted_only_near_the_home() -> None:
    candidates = [candidate() for _ in range(20)]
    candidates[12] = candidate(cached=900.0)
    pick = ask("cost", candidates)
    assert (pick.index, pick.reason, pick.ring_steps) == (12, policy.Reason.WARM, cost.STEPS_COUNTED)


def test_ring_passes_over_a_home_where_the_prompt_does_not_fit() -> None:
    assert ask("ring", [candidate(1, kv_usage=1.01), candidate(kv_usage=0.5)]).index == 1
    assert ask("ring", [candidate(1, kv_usage=1.0), candidate(kv_usage=0.5)]).index == 0


def test_cost_weighs_a_prompt_that_does_not_fit_against_computing_it_again() -> None:
    half_cached = candidate(inflight=1, cached=500.0, kv_usage=1.3)
    assert ask("cost", [half_cached, candidate(kv_usage=0.5)]).index == 1
    all_cached = candidate(inflight=1, cached=1000.0, kv_usage=1.05)
    assert ask("cost", [all_cached, candidate(kv_usage=0.5)]).index == 0


@pytest.mark.parametrize("name", ["cost", "ring"])
def test_prompt_that_fits_nowhere_is_placed_all_the_same(name: str) -> None:
    assert ask(name, [candidate(9, 9000, kv_usage=1.5), candidate(kv_usage=1.2)]).index in (0, 1)
