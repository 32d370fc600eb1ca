import heapq
import random

import pytest

from extproc import footprint, ledger, outbox, pool

A, B = pool.EndpointId("a"), pool.EndpointId("b")


def test_lease_counts_at_once_and_not_after_its_release() -> None:
    book = ledger.Ledger(1000)
    lease = book.take(A, 300, 0.0)
    assert book.load(A, 0.0) == ledger.Load(1, 300)
    assert book.load(A, 0.0).work == 300 + 512
    lease.release()
    assert book.load(A, 0.0) == ledger.Load(0, 0)
    assert book.open_leases == 0


def test_second_release_has_no_effect() -> None:
    book = ledger.Ledger(1000)
    first, second = book.take(A, 300, 0.0), book.take(A, 200, 0.0)
    first.release()
    first.release()
    assert book.load(A, 0.0) == ledger.Load(1, 200)
    assert book.open_leases == 1
    second.release()
    assert book.load(A, 0.0) == ledger.Load(0, 0)


def test_seen_prefill_ends_pending_and_not_the_request() -> None:
    book = ledger.Ledger(1000)
    lease = book.take(A, 300, 0.0)
    lease.prefilled()
    lease.prefilled()
    assert book.load(A, 0.0) == ledger.Load(1, 0)
    lease.release()
    lease.prefilled()
    assert book.load(A, 0.0) == ledger.Load(0, 0)


def test_pending_falls_when_prefill_is_expected_to_be_over_one_after_the_other() -> None:
    book = ledger.Ledger(1000)
    book.take(A, 1000, 0.0)
    book.take(A, 2000, 0.5)
    assert book.load(A, 0.9).pending == 3000
    assert book.load(A, 1.0).pending == 2000
    assert book.load(A, 2.9).pending == 2000
    assert book.load(A, 3.0) == ledger.Load(2, 0)


def test_idle_endpoint_begins_prefill_at_once() -> None:
    book = ledger.Ledger(1000)
    book.take(A, 1000, 0.0)
    book.take(A, 1000, 50.0)
    assert book.load(A, 50.9).pending == 1000
    assert book.load(A, 51.0).pending == 0


def test_prefill_that_ended_early_hides_none_behind_it() -> None:
    book = ledger.Ledger(1000)
    book.take(A, 100_000, 0.0).prefilled()
    book.take(A, 1000, 1.0)
    assert book.load(A, 5.0) == ledger.Load(2, 0)


def test_estimate_is_patient_while_answers_are_seen_to_begin() -> None:
    # A prompt of 121,000 tokens takes 22 s where 12,500 tokens/s would make it 9.7: it is not over because
    # an estimate says so, when its answer would be seen.
    book = ledger.Ledger(1000)
    book.take(A, 10, 0.0).prefilled()
    book.take(A, 1000, 1.0)
    assert book.load(A, 4.9).pending == 1000
    assert book.load(A, 5.0).pending == 0  # the gateway may have stopped to show answers


def test_estimate_counts_again_after_a_request_whose_answer_was_not_seen() -> None:
    book = ledger.Ledger(1000)
    seen = book.take(A, 10, 0.0)
    seen.prefilled()
    seen.release()
    unseen = book.take(A, 10, 0.0)
    assert book.load(A, 0.1).pending == 0
    unseen.release()
    book.take(A, 1000, 1.0)
    assert book.load(A, 1.9).pending == 1000
    assert book.load(A, 2.0).pending == 0


def test_estimate_is_not_patient_with_what_another_kvring_sent() -> None:
    book = ledger.Ledger(1000, outbox.Outbox())
    seen = book.take(A, 10, 0.0)
    seen.number = 1
    seen.prefilled()
    book.take(A, 1000, 1.0)
    assert book.load(A, 1.9).pending == 1000
    assert book.load(A, 2.0).pending == 0


def test_a_client_that_gives_up_is_no_sign_that_answers_are_not_seen() -> None:
    book = ledger.Ledger(1000)
    book.take(A, 10, 0.0).prefilled()
    book.take(A, 1000, 1.0).release()
    book.take(A, 1000, 1.0)
    assert book.load(A, 4.9).pending == 1000


@pytest.mark.parametrize("block_tokens", [16, 64, 256, 1024])
def test_a_shared_prefix_counts_once_but_for_what_is_behind_its_last_mark(block_tokens: int) -> None:
    prefix, question, requests = 3 * 1024, 100, 10
    shared = tuple(block << 20 for block in range(1, prefix // block_tokens + 1))
    book = ledger.Ledger(1000)
    for number in range(requests):
        own = tuple((number + 1) << 40 | block << 20 for block in range(question // block_tokens))
        holds = footprint.of(shared + own, block_tokens, prefix + question)
        book.take(A, 0, 0.0, holds)
    true = prefix + requests * (question + footprint.OUTPUT_TOKENS)
    assert abs(book.load(A, 0.0).kv_tokens - true) <= requests * 32


def test_a_prefix_that_ends_between_marks_is_counted_anew_by_less_than_a_mark() -> None:
    prefix, requests = 2500, 10
    shared = tuple(range(1, prefix // 64 + 1))
    book = ledger.Ledger(1000)
    for _ in range(requests):
        book.take(A, 0, 0.0, footprint.of(shared, 64, prefix))
    true = prefix + requests * footprint.OUTPUT_TOKENS
    assert true <= book.load(A, 0.0).kv_tokens < true + requests * 256


def test_prefill_given_up_half_way_lets_the_next_begin_then() -> None:
    book = ledger.Ledger(1000)
    first, _ = book.take(A, 4000, 0.0), book.take(A, 1000, 0.0)
    assert book.load(A, 2.0).pending == 5000  # the last look before it ends
    first.release()
    assert book.load(A, 2.9).pending == 1000
    assert book.load(A, 3.1).pending == 0


def test_endpoint_that_rejoins_starts_clean_and_old_leases_end_harmlessly() -> None:
    book = ledger.Ledger(1000)
    old = [book.take(A, 100, 0.0) for _ in range(10)]
    book.retain([B])
    assert book.load(A, 0.0) == ledger.Load(0, 0)
    new = book.take(A, 70, 0.0)
    for lease in old:
        lease.release()
        assert book.load(A, 0.0) == ledger.Load(1, 70)
    new.release()
    assert book.load(A, 0.0) == ledger.Load(0, 0)
    assert book.open_leases == 0


def test_endpoint_that_stays_keeps_its_load() -> None:
    book = ledger.Ledger(1000)
    book.take(A, 100, 0.0)
    book.retain([A, B])
    assert book.load(A, 0.0).inflight == 1


def test_endpoints_are_counted_apart() -> None:
    book = ledger.Ledger(1000)
    book.take(A, 100, 0.0)
    assert book.load(B, 0.0) == ledger.Load(0, 0)


def test_leases_are_counted_apart_though_equal() -> None:
    book = ledger.Ledger(1000)
    leases = [book.take(A, 5, 0.0) for _ in range(3)]
    leases[1].release()
    assert book.load(A, 0.0) == ledger.Load(2, 10)


@pytest.mark.parametrize(
    ("total", "endpoints", "expected"), [(0, 4, 100.0), (1000, 4, 500.0), (200, 4, 100.0), (200, 1, 400.0)]
)
def test_bound_is_the_floor_or_the_factor_times_the_mean(
    total: float, endpoints: int, expected: float
) -> None:
    assert ledger.bound(total, endpoints, 2.0, 100.0) == expected


def test_room_ends_at_the_bound() -> None:
    assert ledger.has_room(99, 100)
    assert not ledger.has_room(100, 100)


def test_a_crowd_is_new_until_half_as_many_have_ended_as_are_open() -> None:
    book = ledger.Ledger(1000)
    assert not book.has_new_crowd(A)
    elsewhere = [book.take(B, 0, 0.0) for _ in range(4)]
    for _ in range(8):
        book.take(A, 0, 0.0)
        assert book.has_new_crowd(A)
    for ended, lease in enumerate(elsewhere, 1):
        lease.release()
        assert book.has_new_crowd(A) is (ended <= (12 - ended) / 2)
    assert not book.has_new_crowd(B), "nothing is open there"


def test_a_crowd_is_as_old_as_most_of_it() -> None:
    book = ledger.Ledger(1000)
    for _ in range(4):
        book.take(A, 0, 0.0)
    for _ in range(20):
        book.take(B, 0, 0.0).release()
    assert not book.has_new_crowd(A)
    for newer in range(1, 13):
        book.take(A, 0, 1.0)
        assert not book.has_new_crowd(A), newer
    book.take(A, 0, 1.0)
    assert book.has_new_crowd(A), "thirteen of seventeen"


@pytest.mark.parametrize("lives_s", [(4.0, 4.0), (1.0, 7.0), (0.5, 12.0)])
def test_a_steady_crowd_is_not_new_and_that_of_a_burst_is(lives_s: tuple[float, float]) -> None:
    rng = random.Random(7)
    book = ledger.Ledger(1000)
    ends: list[tuple[float, int, ledger.Lease]] = []
    new = []
    for number in range(2000):  # eight a second, each open for 4 s in the mean
        now = number / 8
        while ends and ends[0][0] <= now:
            heapq.heappop(ends)[2].release()
        lease = book.take(A if number % 2 else B, 0, now)
        heapq.heappush(ends, (now + rng.choice(lives_s), number, lease))
        if number >= 400:
            new.append(book.has_new_crowd(A))
    assert sum(new) < 0.1 * len(new)
    for _ in range(4 * book.load(A, 250.0).inflight):
        book.take(A, 0, 250.0)
    assert book.has_new_crowd(A)


def test_a_request_that_moved_is_as_old_as_it_was() -> None:
    book = ledger.Ledger(1000)
    lease = book.take(A, 0, 0.0)
    for _ in range(4):
        book.take(B, 0, 0.0).release()
    lease.move(B, 0, 1.0)
    assert not book.has_new_crowd(B)


def test_a_request_that_moved_stands_before_those_that_came_later() -> None:
    book = ledger.Ledger(1000)
    moved = [book.take(A, 0, float(number)) for number in range(6)]
    for _ in range(20):
        book.take(A, 0, 6.0).release()
    for _ in range(2):
        book.take(B, 0, 7.0)
    for lease in moved:
        lease.move(B, 0, 8.0)
    assert not book.has_new_crowd(B), "two of eight"
    assert book.oldest_s(B, 9.0) == 9.0
