"""What a router does where other replicas of kvring place requests too and it does not hear of them."""

import dataclasses
from collections import Counter

from extproc import chain, choice, policy, pool, router, signals

MEMBERS = pool.make("p", [pool.Endpoint(pool.EndpointId(f"e{n}"), f"10.0.0.{n}:80") for n in range(8)])


def start(replicas: int, **settings: object) -> router.Router:
    tuned = dataclasses.replace(router.Settings(replicas=replicas), **settings)  # type: ignore[arg-type]
    return router.Router(MEMBERS, tuned)


def talk(number: int, blocks: int = 40) -> router.Request:
    hashes = tuple(number * 1000 + depth for depth in range(blocks))
    return router.Request(chain=chain.Chain(hashes, number), tokens=blocks * 64.0)


def send(of: router.Router, asked: router.Request) -> choice.Choice:
    decided = of.place(asked, 0.0, 0.5)
    assert isinstance(decided, choice.Decision)
    return decided.choice


def visit(of: router.Router, asked: router.Request) -> choice.Choice:
    decided = of.place(asked, 0.0, 0.5)
    assert isinstance(decided, choice.Decision)
    decided.lease.release()
    return decided.choice


def test_home_is_presumed_warm_since_others_have_most_likely_sent_the_prompt_there() -> None:
    placed = []
    for replicas in (1, 3):
        idle, busy = start(replicas), start(replicas)
        for number in range(16):  # so that none of them is everybody's
            visit(idle, talk(number))
            visit(busy, talk(number))
        home = visit(idle, talk(99)).endpoint.id  # on an idle pool all else is equal
        busy.ledger.take(home, 1000, 0.0)
        placed.append((home, visit(busy, talk(99))))
    (home, alone), (seat, one_of_three) = placed
    assert alone.endpoint.id != home
    assert one_of_three.endpoint.id == seat
    assert alone.cached_tokens == 0
    assert 0.5 * 40 * 64 < one_of_three.cached_tokens < 40 * 64


def homes_after(replicas: int, order: list[int]) -> dict[int, str]:
    """The home of each conversation, for a router that has seen all of them, in this order."""
    of = start(replicas)
    for number in order:
        visit(of, talk(number))
    found = {number: of.preview(talk(number), 0.0, 0.5) for number in sorted(order)}
    return {number: one.order[0] for number, one in found.items() if isinstance(one, router.Preview)}


def test_few_conversations_have_even_homes_that_all_replicas_find() -> None:
    numbers = list(range(20))
    found = homes_after(3, numbers)
    assert homes_after(3, numbers[::-1]) == found
    assert max(Counter(found.values()).values()) == 3
    assert max(Counter(homes_after(1, numbers).values()).values()) > 3


def test_homes_are_those_of_the_ring_again_once_the_others_are_heard() -> None:
    of, alone = start(3), start(1)
    for number in range(20):
        visit(of, talk(number))
        visit(alone, talk(number))
    of.unheard = 0
    for number in range(20):
        one, other = of.preview(talk(number), 0.0, 0.5), alone.preview(talk(number), 0.0, 0.5)
        assert isinstance(one, router.Preview)
        assert isinstance(other, router.Preview)
        assert one.order == other.order


def tell(of: router.Router, endpoint: str, foreign_kv_tokens: float) -> None:
    told = signals.Signal(0.0, 0.5, 400_000, 0, 0.0, foreign_kv_tokens)
    of.signals.put(pool.EndpointId(endpoint), told)


def kv_usage_at(of: router.Router, endpoint: str, asked: router.Request) -> float:
    found = of.preview(asked, 0.0, 0.5)
    assert isinstance(found, router.Preview)
    return found.asked.kv_usage[found.names.index(pool.EndpointId(endpoint))]


def test_kv_that_requests_of_others_hold_is_taken_beside_our_own() -> None:
    for replicas, expected in ((3, 300_000), (1, 200_000)):  # one alone goes by what the engine tells
        of = start(replicas)
        for number in range(16):
            visit(of, talk(number))
        tell(of, "e3", 300_000.0)
        usage = kv_usage_at(of, "e3", talk(99))
        assert abs(usage * 400_000 - expected) < 20_000  # and what was sent


def test_a_prefix_that_many_have_is_held_by_others_too_and_counts_once() -> None:
    of = start(3)
    shared = tuple(range(1, 1001))
    for number in range(8):
        hashes = (*shared, number * 10_000)
        visit(of, router.Request(chain=chain.Chain(hashes, number), tokens=1001 * 64.0))
    tell(of, "e3", 300_000.0)
    one = router.Request(chain=chain.Chain((*shared, 99 * 10_000), 99), tokens=1001 * 64.0)
    assert abs(kv_usage_at(of, "e3", one) * 400_000 - 300_000) < 1000


def test_the_floor_of_the_cap_is_whole_where_engines_tell_of_the_requests_of_others() -> None:
    of = start(3, limits=policy.Limits(2.0, 8192.0, 6.0))
    for expected in (2.0, 6.0):
        found = of.preview(talk(1), 0.0, 0.5)
        assert isinstance(found, router.Preview)
        assert found.asked.limits == policy.Limits(2.0, 8192 / 3, expected)
        tell(of, "e0", 0.0)


def test_who_hears_the_others_presumes_nothing() -> None:
    of = start(3)
    of.unheard = 0
    assert send(of, talk(7)).cached_tokens == 0


def test_floor_of_the_bound_is_divided_among_replicas_that_do_not_hear_each_other() -> None:
    for replicas, unheard, most in ((1, 0, 16), (4, 3, 4), (4, 0, 16)):
        of = start(replicas, policy="ring")
        of.unheard = unheard
        first = send(of, talk(7, blocks=0)).endpoint.id
        used = [first]
        while len(used) < 40 and used[-1] == first:
            used.append(send(of, talk(7, blocks=0)).endpoint.id)
        assert len(used) - 1 == most  # 512 tokens each, floor 8192
