"""What a router does where other replicas of kvring place requests too and it does not hear of them."""

import dataclasses

from extproc import chain, choice, pool, router

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
    (home, alone), (same_home, one_of_three) = placed
    assert alone.endpoint.id != home == same_home == one_of_three.endpoint.id
    assert alone.cached_tokens == 0
    assert 0.5 * 40 * 64 < one_of_three.cached_tokens < 40 * 64


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
