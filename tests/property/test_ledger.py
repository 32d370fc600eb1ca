"""Any history of the ledger against a list of the open leases."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import footprint, ledger, pool

NAMES = [pool.EndpointId(name) for name in ("a", "b", "c")]
NAME = st.sampled_from(NAMES)
RATE = 100.0

STEP = st.one_of(
    st.tuples(st.just("take"), NAME, st.integers(0, 500)),
    st.tuples(st.just("prefilled"), st.integers(0, 30)),
    st.tuples(st.just("release"), st.integers(0, 30)),
    st.tuples(st.just("move"), st.integers(0, 30), NAME, st.integers(0, 500)),
    st.tuples(st.just("wait"), st.floats(0, 6)),
    st.tuples(st.just("leave"), NAME),
)


@dataclass
class Open:
    """One lease as the model knows it: `life` tells an endpoint's lives apart."""

    lease: ledger.Lease
    life: tuple[pool.EndpointId, int]
    tokens: int
    open: bool = True
    waiting: bool = True


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_load_is_the_sum_over_open_leases_after_any_history(steps: list[tuple[object, ...]]) -> None:
    book, now = ledger.Ledger(RATE), 0.0
    lives = dict.fromkeys(NAMES, 0)
    taken: list[Open] = []

    def check() -> None:
        for name in NAMES:
            load = book.load(name, now)
            alive = [one for one in taken if one.open and one.life == (name, lives[name])]
            assert load.inflight == len(alive)
            # What is still expected is the ledger's estimate; that it belongs to open leases is the law.
            assert load.pending == sum(one.lease.tokens for one in alive)
            assert all(one.lease.tokens in (0, one.tokens if one.waiting else 0) for one in alive)
            assert load.work == load.pending + 512 * load.inflight
        assert book.open_leases == sum(one.open for one in taken)

    for step in steps:
        match step:
            case ("take", name, tokens):
                lease = book.take(name, tokens, now)
                taken.append(Open(lease, (name, lives[name]), tokens))
            case ("prefilled", index) if index < len(taken):
                taken[index].lease.prefilled()
                taken[index].waiting = False
            case ("release", index) if index < len(taken):
                taken[index].lease.release()
                taken[index].open = False
            case ("move", index, name, tokens) if index < len(taken):
                one = taken[index]
                one.lease.move(name, tokens, now)
                if one.open:
                    one.life, one.tokens = (name, lives[name]), tokens
            case ("wait", seconds):
                now += seconds
            case ("leave", gone):
                book.retain([name for name in NAMES if name != gone])
                lives[gone] += 1
        check()
    for one in taken:
        one.lease.release()
        one.open = False
    check()
    assert all(book.load(name, now) == ledger.Load(0, 0) for name in NAMES)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=10))
def test_pending_is_over_once_the_endpoint_could_have_prefilled_all(tokens: list[int]) -> None:
    book = ledger.Ledger(RATE)
    for count in tokens:
        book.take(NAMES[0], count, 0.0)
    assert book.load(NAMES[0], 0.0).pending == sum(tokens)
    assert book.load(NAMES[0], sum(tokens) / RATE + 1e-6).pending == 0


@given(st.lists(st.tuples(st.integers(1, 500), st.booleans()), min_size=1, max_size=10))
def test_what_is_over_early_takes_no_time_of_those_behind_it(prompts: list[tuple[int, bool]]) -> None:
    book = ledger.Ledger(RATE)
    taken = [(book.take(NAMES[0], tokens, 0.0), tokens, stays) for tokens, stays in prompts]
    for lease, _, stays in taken:
        if not stays:
            lease.release()
    due_s = 0.0
    left = [tokens for _, tokens, stays in taken if stays]
    for number, tokens in enumerate(left):
        assert book.load(NAMES[0], due_s + 0.99 * tokens / RATE).pending == sum(left[number:])
        due_s += tokens / RATE
        assert book.load(NAMES[0], due_s + 1e-6).pending == sum(left[number + 1 :])


PREFIXES = st.lists(st.sampled_from("xy"), max_size=6)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NAME, PREFIXES, st.integers(0, 900), st.booleans()), max_size=30))
def test_kv_held_is_every_mark_of_open_leases_once_and_all_rests(
    steps: list[tuple[pool.EndpointId, list[str], int, bool]],
) -> None:
    book = ledger.Ledger(RATE)
    taken: list[tuple[pool.EndpointId, footprint.Footprint, ledger.Lease]] = []

    def held(name: pool.EndpointId, *more: footprint.Footprint) -> int:
        open_there = [one for at, one, _ in taken if at == name] + list(more)
        marks = {mark for one in open_there for mark in one.marks}
        return footprint.MARK_TOKENS * len(marks) + sum(one.rest_tokens for one in open_there)

    for name, letters, rest, ends in steps:
        marks = tuple(hash("".join(letters[:end])) & (2**64 - 1) for end in range(1, len(letters) + 1))
        more = footprint.Footprint(marks, rest)
        assert book.kv_after(name, more) == held(name, more)
        taken.append((name, more, book.take(name, 0, 0.0, more)))
        if ends:
            taken.pop(len(taken) // 2)[2].release()
        for other in NAMES:
            assert book.load(other, 0.0).kv_tokens == held(other)
    for *_, lease in taken:
        lease.release()
        lease.release()
    assert all(book.load(name, 0.0).kv_tokens == 0 for name in NAMES)


def test_marks_stand_256_tokens_apart_and_the_rest_has_room_for_the_answer() -> None:
    found = footprint.of(tuple(range(10)), 64.0, 700.0)
    assert found.marks == (3, 7)
    assert found.rest_tokens == 700 - 512 + footprint.OUTPUT_TOKENS
