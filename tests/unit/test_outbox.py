"""What waits to be told weighs what it would do to the others' next choice."""

import math

import pytest

from extproc import outbox, pool
from extproc.outbox import OPEN_TOKENS

A, B = pool.EndpointId("a"), pool.EndpointId("b")


def began(number: int, uncached_tokens: int = 0) -> outbox.Began:
    return outbox.Began(number, "p", A, uncached_tokens=uncached_tokens)


def test_a_dispatch_weighs_what_it_has_to_prefill_and_an_open_request() -> None:
    waiting = outbox.Outbox()
    assert waiting.weight == 0
    waiting.began(began(1, 300))
    waiting.began(began(2))
    assert waiting.weight == 300 + 2 * OPEN_TOKENS


def test_first_tokens_ends_and_answers_weigh_nothing() -> None:
    waiting = outbox.Outbox()
    waiting.began(began(1, 300))
    waiting.take(10)
    waiting.prefilled(1)
    waiting.ended(1)
    waiting.answered("p", A, 5)
    assert len(waiting) == 3
    assert waiting.weight == 0


def test_what_did_not_go_where_it_was_told_to_go_weighs_nothing_and_needs_a_lease_that_was_told() -> None:
    waiting = outbox.Outbox()
    waiting.retracted(outbox.Retracted(0, "p", A, 5, 1, 0, 64.0, 0.0, 0.0))
    assert len(waiting) == 0
    waiting.retracted(outbox.Retracted(1, "p", A, 5, 1, 0, 64.0, 0.0, 0.0))
    assert (len(waiting), waiting.weight) == (1, 0)


def test_a_request_that_went_elsewhere_weighs_again() -> None:
    waiting = outbox.Outbox()
    waiting.began(began(1, 300))
    waiting.take(10)
    waiting.moved(1, B, 200)
    assert waiting.weight == 200 + OPEN_TOKENS


def test_a_restart_outweighs_any_dispatch() -> None:
    waiting = outbox.Outbox()
    waiting.restarted("p", A)
    waiting.began(began(1))
    assert waiting.weight == math.inf
    waiting.take(10)
    assert waiting.weight == 0


@pytest.mark.parametrize(("taken", "weighs"), [(1, True), (2, False)])
def test_weight_is_gone_once_all_is_taken(taken: int, weighs: bool) -> None:  # noqa: FBT001
    waiting = outbox.Outbox()
    waiting.began(began(1))
    waiting.began(began(2))
    waiting.take(taken)
    assert bool(waiting.weight) is weighs
