"""Laws of what replicas tell each other: whatever is lost or forged, views meet again, and nothing breaks."""

import itertools
import math
import random
import tracemalloc

import msgspec
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from extproc import answers, chain, choice, outbox, pool, router, served
from extproc.news import message, view

NAMES = ("a", "b", "c")
POOL = pool.make("p", [pool.Endpoint(pool.EndpointId(name), f"10.0.0.{i}:1") for i, name in enumerate(NAMES)])
ADDRESSES = {endpoint.id: endpoint.address for endpoint in POOL.endpoints}
KV = router.Settings(kv_tokens=64_000)
u64 = st.integers(0, 2**64 - 1)


class Replica:
    """A router with its view, and what it has open."""

    def __init__(self, number, tuning=KV):
        self.entries = outbox.Outbox()
        self.router = router.Router(POOL, tuning, self.entries)
        self.view = view.View(number, {"p": self.router}, self.entries)
        self.leases = []
        self.decisions = []

    def ask(self, hashes, now):
        request = router.Request(chain=chain.Chain(hashes, 1), tokens=64.0 * len(hashes) + 10)
        self.decisions.append(self.router.place(request, now, 0.5))
        self.leases.append(self.decisions[-1].lease)

    def serve(self, at, name, now):
        """The request of this decision was served by `name`, by a stranger if that is no endpoint."""
        decision = self.decisions.pop(at)
        address = ADDRESSES.get(name, "10.9.9.9:1")
        served.correct(self.router, decision, address, now)
        return decision


def conversation(rng, turns=4):
    """Chains of a conversation that grows; all share a first block."""
    hashes = (7, *(rng.getrandbits(64) for _ in range(6)))
    for _ in range(turns):
        hashes += tuple(rng.getrandbits(64) for _ in range(5))
        yield hashes


def pass_on(replicas, now, lost=lambda: False, cut=None):
    """One round: all tell, the others hear; what one that is `cut` off tells or is told is lost."""
    for one in replicas:
        data = one.view.flush(now)
        if data is not None:
            for other in replicas:
                if other is not one and not lost() and cut not in (one, other):
                    other.view.hear(data, now)


def settle(replicas, now):
    for _ in range(60):
        now += 0.1
        pass_on(replicas, now)
    return now


def held(one, hashes, now):
    return dict(one.router.residency.held(chain.Chain(hashes, 0), now).gpu)


def totals(one):
    """What counts as sent to each endpoint, less what others served."""
    sums = [one.router.sent.to(name).net() for name in NAMES]
    return [
        (each.requests, each.keyed, each.prompt_tokens, each.gpu_tokens, each.uncached_tokens)
        for each in sums
    ]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 10, 25]))
def test_wherever_requests_went_in_the_end_all_believe_the_same(seed, lost):
    """Few prompts: replicas send the same ones to the same endpoints before they hear of each other. With one
    cut off, each is asked once: what was sent twice in that time is counted once by who only hears of it.
    """
    rng = random.Random(seed)
    replicas = [Replica(number) for number in (1, 2, 3)]
    now, prompts = settle(replicas, 0.0), []
    for _ in range(4):
        prompts += conversation(rng)
    others = [(*prompts[3], 5, 6), (*prompts[0], 8), (9, 10, 11)]
    alone = [(7, 2**20 + number, 2**21 + number) for number in range(60)]
    for turn in range(60):
        now += 0.02
        one = rng.choice(replicas)
        cut = replicas[0] if 20 <= turn < 20 + lost else None
        if rng.random() < 0.7:
            one.ask(alone[turn] if lost else rng.choice([*prompts[:3], *others]), now)
        if one.decisions and rng.random() < 0.6:
            decision = one.serve(rng.randrange(len(one.decisions)), rng.choice([*NAMES, "stranger"]), now)
            if rng.random() < 0.5:
                decision.lease.release()
        if rng.random() < 0.5:
            pass_on(replicas, now, cut=cut)
    for one in replicas:
        while one.decisions and rng.random() < 0.8:
            one.serve(0, rng.choice(NAMES), now)
        pass_on(replicas, now)
    now = settle(replicas, now)
    for hashes in (*prompts, *others, *alone):
        views = [held(one, hashes, now) for one in replicas]
        assert views[0] == views[1] == views[2], hashes
    loads = [[one.router.ledger.load(name, now).inflight for name in NAMES] for one in replicas]
    assert loads[0] == loads[1] == loads[2]
    # what is not understood is asked for as what endpoints hold, not as what was sent
    if not lost and not any(one.view.counts.unresolved for one in replicas):
        sums = [[each[:2] for each in totals(one)] for one in replicas]
        assert sums[0] == sums[1] == sums[2]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
@example(54182)  # the first message of one is lost to both others, of whom one has met the other meanwhile
def test_replicas_know_the_same_after_losses_and_nothing_is_left_open(seed):
    rng = random.Random(seed)
    replicas = [Replica(number) for number in (1, 2, 3)]
    now, chains = 0.0, []
    talks = [conversation(rng) for _ in range(6)]
    for _ in range(40):
        now += 0.05
        one = rng.choice(replicas)
        hashes = next(rng.choice(talks), None)
        if hashes is not None:
            chains.append(hashes)
            one.ask(hashes, now)
        if one.leases and rng.random() < 0.4:
            lease = one.leases.pop(rng.randrange(len(one.leases)))
            rng.choice((lease.release, lease.prefilled))()
            lease.release()
        pass_on(replicas, now, lambda: rng.random() < 0.2)
    now = settle(replicas, now)
    loads = [[one.router.ledger.load(name, now).inflight for name in NAMES] for one in replicas]
    assert loads[0] == loads[1] == loads[2]
    assert sum(loads[0]) == sum(len(one.leases) for one in replicas)
    for hashes in chains:
        assert (
            held(replicas[0], hashes, now) == held(replicas[1], hashes, now) == held(replicas[2], hashes, now)
        )
    for one in replicas:
        for lease in one.leases:
            lease.release()
    now = settle(replicas, now)
    assert [one.router.ledger.open_leases for one in replicas] == [0, 0, 0]
    assert not any(len(one.entries.open) or one.view.peer_leases for one in replicas)


def test_equal_traffic_gives_equal_anchors_whoever_it_goes_to():
    rng = random.Random(5)
    replicas, single = [Replica(number) for number in (1, 2, 3)], Replica(9)
    now, chains = 0.0, []
    for turn in range(120):
        now += 0.05
        hashes = list(conversation(random.Random(turn % 20)))[turn % 4]
        chains.append(hashes)
        rng.choice(replicas).ask(hashes, now)
        single.ask(hashes, now)
        pass_on(replicas, now)
    for hashes in chains:
        found = {one.router.anchors.locate(chain.Chain(hashes, 1), 3) for one in (*replicas, single)}
        assert len(found) == 1


def test_what_happened_while_nothing_passed_is_told_afterwards_so_that_anchors_agree():
    rng = random.Random(6)
    replicas, single = [Replica(number) for number in (1, 2, 3)], Replica(9)
    now, chains = settle(replicas, 0.0), []
    for turn in range(240):
        now += 0.02
        if turn < 60:
            who, hashes = rng.choice(replicas), list(conversation(random.Random(turn % 20)))[turn % 4]
        else:  # a prompt becomes hot, and one of them gets all of it
            who, hashes = replicas[0], (7, 100, 101, *(rng.getrandbits(64) for _ in range(3)))
        chains.append(hashes)
        who.ask(hashes, now)
        single.ask(hashes, now)
        if turn < 60:
            pass_on(replicas, now)
        else:  # an outage of 3.6 s: they hold each other for gone
            for one in replicas:
                one.view.hold(now)
                for lease in one.leases:
                    lease.release()
    assert [one.view.peers for one in replicas] == [0, 0, 0]
    now = settle(replicas, now)
    for hashes in chains:
        found = {one.router.anchors.locate(chain.Chain(hashes, 1), 3) for one in (*replicas, single)}
        assert len(found) == 1
    assert [one.router.ledger.open_leases for one in replicas] == [0, 0, 0]
    assert not any(one.view.counts.unresolved or one.entries.dropped for one in replicas)


def test_a_restart_seen_while_nothing_passed_is_not_told_afterwards():
    one, other = Replica(1), Replica(2)
    now = settle([one, other], 0.0)
    one.router.restart(pool.EndpointId("a"), now)
    for _ in range(10):
        now += 0.5
        one.view.hold(now)
        other.view.hold(now)
    other.router.residency.add(pool.EndpointId("a"), chain.Chain((1, 2, 3), 0), now)
    settle([one, other], now)
    assert "a" in held(other, (1, 2, 3), now)


def test_ends_wait_for_the_next_dispatch_but_not_for_long():
    one, other = Replica(1), Replica(2)
    now = settle([one, other], 0.0)
    one.ask((1, 2, 3), now)
    assert one.view.due_s <= now  # at once, after a silence
    other.view.hear(one.view.flush(now), now)
    one.leases.pop().release()
    assert one.view.due_s == math.inf
    assert one.view.flush(now + 0.3) is None
    assert other.router.ledger.open_leases == 1
    one.ask((1, 2, 3, 4), now + 0.3)
    other.view.hear(one.view.flush(now + 0.3), now + 0.3)
    assert other.router.ledger.open_leases == 1  # of the second; it told the first one's end too
    one.leases.pop().release()
    other.view.hear(one.view.flush(now + 0.81), now + 0.81)
    assert other.router.ledger.open_leases == 0


def test_a_request_that_went_elsewhere_in_the_end_counts_there_for_everybody():
    one, other = Replica(1), Replica(2)
    now = settle([one, other], 0.0)
    hashes = (1, 2, 3)
    one.ask((7, 8, 9), now)
    one.leases.pop().release()
    one.ask(hashes, now)
    now = settle([one, other], now)
    endpoint = next(iter(held(other, hashes, now)))
    elsewhere = next(name for name in NAMES if name != endpoint)
    assert one.decisions[-1].choice.endpoint.id == endpoint
    one.serve(-1, elsewhere, now)
    now = settle([one, other], now)
    for replica in (one, other):
        assert [replica.router.ledger.load(name, now).inflight for name in NAMES] == [
            int(name == elsewhere) for name in NAMES
        ]
    for replica in (one, other):
        assert held(replica, hashes, now) == {elsewhere: 3}
        assert sum(replica.router.sent.to(name).net().requests for name in NAMES) == 2
        assert replica.router.sent.to(endpoint).net().prompt_tokens in (0, 64 * 3 + 10)
    assert totals(one) == totals(other)
    foreseen = other.router.anchors.foresee(chain.Chain(hashes, 1), 3)
    assert foreseen.hot[0].share == pytest.approx(2 / 3)  # it would be the second of three
    one.leases.pop().release()
    settle([one, other], now)
    assert other.router.ledger.open_leases == 0


def test_a_replica_that_heard_nothing_for_long_believes_afterwards_what_the_others_do():
    one, other, deaf = replicas = [Replica(number) for number in (1, 2, 3)]
    now = settle(replicas, 0.0)
    one.ask((1, 2, 3), now)
    one.ask((4, 5), now)
    now = settle(replicas, now)
    first = one.decisions[0].choice.endpoint.id
    assert held(deaf, (1, 2, 3), now) == {first: 3}
    one.serve(0, next(name for name in NAMES if name != first), now)
    one.serve(0, "stranger", now)
    for _ in range(50):
        now += 0.1
        pass_on(replicas, now, cut=deaf)
    assert (deaf.view.peers, held(deaf, (1, 2, 3), now)) == (0, {first: 3})
    now = settle(replicas, now)
    for hashes in ((1, 2, 3), (4, 5)):
        assert held(one, hashes, now) == held(other, hashes, now) == held(deaf, hashes, now)
    assert not held(one, (4, 5), now)


def test_a_release_that_knows_no_retractions_reads_the_rest_and_the_other_way_round():
    told = message.Batch(
        sender=1, number=1, places=(("p", 256, "a"),), began=(message.Began(1, 0, 0, 0, b"", 1, 1, 0, 0),),
        held=(message.Held(0, 0, 0, b"", 1.0, 3),),
        retracted=(message.Retracted(1, 0, 5, 1, 0, 64, 0, 0),),
    )  # fmt: skip
    raw = msgspec.msgpack.decode(message.encode(told)[20:])
    assert raw.pop("g") == [[1, 0, 5, 1, 0, 64, 0, 0, False]]
    assert raw["h"][0].pop() == 3
    before = msgspec.convert(raw, message.Batch)
    assert (before.began, before.retracted, before.held[0].prompts) == (told.began, (), 1)
    raw["later"] = [1]
    raw["b"][0].append("more")
    assert msgspec.convert(raw, message.Batch) == before


def test_who_continues_an_answer_finds_its_endpoint_wherever_it_was_given():
    one, other = Replica(1), Replica(2)
    now = settle([one, other], 0.0)
    one.router.answered("resp_1", pool.EndpointId("b"), now)
    settle([one, other], now)
    request = router.Request(chain=None, tokens=0.0, previous="resp_1")
    made = other.router.place(request, now + 9, 0.5).choice
    assert (made.endpoint.id, made.keyed_by) == ("b", choice.KeyedBy.PREVIOUS)


@pytest.mark.parametrize("lost", [0, 4], ids=["a newcomer", "one that missed some"])
def test_stored_answers_are_told_to_who_was_not_there_when_they_were_given(lost):
    one, other = Replica(1), Replica(2)
    now = settle([one, other] if lost else [one], 0.0)
    given = 3000
    for number in range(given):
        one.router.answered(f"resp_{number}", pool.EndpointId(NAMES[number % 3]), now + number * 1e-6)
    for _ in range(lost):
        one.view.flush(now)
        now += 0.3
    one.router.answers.find("resp_0", now)  # in use
    now = settle([one, other], now)
    assert len(other.router.answers) == given
    for number in (0, 1, 2, given - 1):
        assert other.router.answers.find(f"resp_{number}", now) == NAMES[number % 3]
    told, kept = ({each[:2] for each in each.router.answers.recent(0.0)} for each in (one, other))
    assert told == kept


def test_what_is_known_of_a_stored_answer_is_not_changed_by_what_others_knew():
    kept = answers.Answers(3)
    key = kept.remember("resp_1", pool.EndpointId("a"), 5.0)
    kept.recall(key, pool.EndpointId("b"), 1.0)
    assert kept.find("resp_1", 5.0) == "a"
    for number, used_s in ((11, 4.0), (12, 3.0), (13, 2.0)):  # the last one finds no room
        kept.recall(number, pool.EndpointId("c"), used_s)
    assert [each[0] for each in kept.recent(0.0)] == [key, 11, 12]
    kept.learn(14, pool.EndpointId("c"), 6.0)
    assert [each[0] for each in kept.recent(3.5)] == [14, key, 11]


def test_a_dispatch_just_after_a_message_waits_for_the_next_look_or_for_enough_to_tell():
    one, other = Replica(1), Replica(2)
    now = settle([one, other], 0.0)
    asked = one.view.settings
    one.ask((1, 2, 3), now)
    assert one.view.due_s <= now  # at once, after a silence
    other.view.hear(one.view.flush(now), now)
    one.ask((4, 5, 6), now + 0.001)
    assert one.view.due_s == pytest.approx(now + asked.look_s)
    one.ask(tuple(range(100, 120)), now + 0.002)
    assert one.entries.weight >= asked.heavy_tokens
    assert one.view.due_s == pytest.approx(now + asked.gather_s)
    other.view.hear(one.view.flush(now + asked.gather_s), now + asked.gather_s)
    assert other.router.ledger.open_leases == 3
    assert one.view.due_s == math.inf


def test_a_burst_on_a_hot_prefix_is_told_at_the_shortest_distance():
    one, other = Replica(1), Replica(2)
    hot = tuple(range(1, 40))
    one.ask(hot, 0.0)
    now = settle([one, other], 0.0)
    one.ask(hot, now)
    other.view.hear(one.view.flush(now), now)
    for number in range(1, 9):  # nothing of them is new but that they are open
        one.ask(hot, now + 0.001 * number)
    assert one.view.due_s == pytest.approx(now + one.view.settings.gather_s)


@pytest.mark.parametrize("what", ["restart", "question", "greeting"])
def test_what_others_cannot_do_without_is_told_at_the_shortest_distance(what):
    one, other = Replica(1), Replica(2)
    now = settle([one, other], 0.0)
    one.ask((1, 2, 3), now)
    one.view.flush(now)  # lost: the next one shows the hole
    if what == "restart":
        one.router.restart(pool.EndpointId("a"), now)
        assert one.view.due_s == pytest.approx(now + one.view.settings.gather_s)
    elif what == "greeting":
        one.view.greet()
        assert one.view.due_s == pytest.approx(now + one.view.settings.gather_s)
    else:
        other.view.flush(now + 0.5)
        one.ask((4, 5, 6), now + 0.5)
        other.view.hear(one.view.flush(now + 0.5), now + 0.5)
        assert other.view.due_s == pytest.approx(now + 0.5 + other.view.settings.part_s)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 0.3), st.integers(0, 1500)), max_size=40))
def test_nothing_that_weighs_waits_longer_than_a_look_or_a_lot_of_it_longer_than_it_is_gathered(dispatches):
    one = Replica(1)
    asked = one.view.settings
    one.view.flush(0.0)
    now, since, said = 0.0, math.inf, [0.0]
    for number, (wait_s, tokens) in enumerate(dispatches, 1):
        now += wait_s
        if one.view.due_s <= now:
            assert one.view.due_s - said[-1] <= asked.look_s + 1e-9
            said.append(max(one.view.due_s, since))
            assert one.view.flush(said[-1]) is not None
            since = math.inf
        since = min(since, now)
        one.entries.began(outbox.Began(number, "p", pool.EndpointId("a"), uncached_tokens=tokens))
        heavy = one.entries.weight >= asked.heavy_tokens
        assert one.view.due_s == pytest.approx(said[-1] + (asked.gather_s if heavy else asked.look_s))
    assert all(late - early >= asked.gather_s - 1e-9 for early, late in itertools.pairwise(said))


def test_an_outbox_nobody_reads_is_bounded_in_entries_and_in_blocks():
    waiting = outbox.Outbox(entries_max=100)
    for number in range(1, 1000):
        waiting.began(outbox.Began(number, "p", pool.EndpointId("a"), hashes=tuple(range(2000))))
    kept = waiting.take(1000)
    assert sum(len(one.hashes) for one in kept) <= outbox.BLOCKS_MAX + 2000
    assert waiting.dropped == 999 - len(kept)
    for number in range(1, 1000):
        waiting.ended(number)
    assert len(waiting) == 100
    assert not waiting.open


def test_a_silent_peer_s_leases_expire_and_come_back_with_it():
    one, other = Replica(1), Replica(2)
    settle([one, other], 0.0)
    for number in range(100):
        one.ask((number + 1, number + 1000), 6.1)
    now = settle([one, other], 6.1)
    assert other.router.ledger.open_leases == 100
    for _ in range(40):  # the other one hears nothing for four seconds
        now += 0.1
        other.view.flush(now)
        one.view.flush(now)
    assert other.router.ledger.open_leases == 0
    assert other.view.peers == 0
    one.leases.pop().release()
    settle([one, other], now)
    assert other.router.ledger.open_leases == 99


def test_bye_ends_the_leases_at_once():
    one, other = Replica(1), Replica(2)
    now = settle([one, other], 0.0)
    one.ask((1, 2, 3), now)
    now = settle([one, other], now)
    assert other.router.ledger.open_leases == 1
    other.view.hear(one.view.bye(now), now)
    assert other.router.ledger.open_leases == 0


def test_a_new_replica_is_warm_after_a_few_messages():
    first, second, rng = Replica(1), Replica(2), random.Random(3)
    now, chains = settle([first, second], 0.0), []
    for _ in range(30):
        now += 0.01
        *_, hashes = conversation(rng)
        chains.append(hashes)
        first.ask(hashes, now)
        pass_on([first, second], now)
    new = Replica(3)
    for _ in range(8):  # 5 ms each
        now += 0.005
        pass_on([new, first, second], now)
    assert new.view.warm
    assert all(held(new, hashes, now) == held(first, hashes, now) for hashes in chains)
    assert new.router.ledger.open_leases == 30


def test_a_restart_that_both_see_is_one_and_keeps_what_came_after_it():
    one, other = Replica(1), Replica(2)
    now = settle([one, other], 0.0)
    before, after = (1, 2, 3), (4, 5, 6)
    one.ask(before, now)
    endpoint = next(iter(held(one, before, now)))
    now = settle([one, other], now)
    other.router.restart(endpoint, now)
    other.router.residency.add(endpoint, chain.Chain(after, 0), now)
    pass_on([one, other], now)
    assert not held(one, before, now)
    one.router.residency.add(endpoint, chain.Chain(after, 0), now)
    one.router.restart(endpoint, now + 0.5)  # its own scraper is a little later
    settle([one, other], now + 0.5)
    assert held(one, after, now + 1) == held(other, after, now + 1) != {}
    later = held(one, after, now + 1)
    one.router.restart(endpoint, now + 1.5)  # seen here again: it is another one
    assert held(one, after, now + 2) == {} != later
    one.router.residency.add(endpoint, chain.Chain(after, 0), now + 2)
    one.router.restart(endpoint, now + 60)  # this one is another too
    settle([one, other], now + 60)
    assert held(one, after, now + 60) == held(other, after, now + 60) == {}


# ---- strangers ----


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_give_a_batch_or_a_reason(data, ours):
    if ours:
        data = message.encode(message.Batch(sender=1, number=1))[:20] + data
    assert isinstance(message.decode(data), message.Strange)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_flipped_bit_is_noticed(data):
    began = message.Began(1, 0, 0, 0, message.pack((1, 2, 3)), 10, 10, 0, 0)
    good = bytearray(
        message.encode(message.Batch(sender=5, number=1, places=(("p", 256, "a"),), began=(began,)))
    )
    bit = data.draw(st.integers(0, 8 * len(good) - 1))
    good[bit // 8] ^= 1 << bit % 8
    assert isinstance(message.decode(bytes(good)), message.Strange)


hashes_ = st.lists(st.one_of(st.integers(0, 5), u64), max_size=12).map(
    lambda found: message.pack(tuple(found))
)
places = st.lists(
    st.tuples(st.sampled_from(["p", "q"]), st.sampled_from([256, 64]), st.sampled_from([*NAMES, "z"])),
    min_size=1, max_size=4,
)  # fmt: skip
index, small, tokens = st.integers(0, 3), st.integers(0, 6), st.integers(0, 1 << 40)
batches = st.builds(
    message.Batch,
    sender=st.integers(1, 4),
    number=st.integers(0, 12),
    open_leases=small,
    places=places.map(tuple),
    restarted=st.lists(st.builds(message.Restarted, index), max_size=2).map(tuple),
    began=st.lists(
        st.builds(message.Began, small, index, st.one_of(small, u64), small, hashes_, tokens, tokens, tokens,
                  tokens, st.booleans(), st.booleans()), max_size=4).map(tuple),
    prefilled=st.lists(small, max_size=3).map(tuple),
    ended=st.lists(small, max_size=3).map(tuple),
    answered=st.lists(st.builds(message.Answered, index, u64), max_size=2).map(tuple),
    asks=st.lists(
        st.builds(message.Ask, st.sampled_from([1, 9]), st.booleans(), st.sampled_from([-1.0, 0.0, 1e9])),
        max_size=2).map(tuple),
    leases=st.one_of(st.none(), st.lists(
        st.builds(message.Open, small, index, tokens, tokens, st.one_of(small, u64)), max_size=4).map(tuple)),
    held=st.lists(
        st.builds(message.Held, index, st.one_of(small, u64), small, hashes_, st.floats(0, 1e9)), max_size=4
    ).map(tuple),
    to=st.sampled_from([0, 9]),
    last=st.booleans(),
    bye=st.booleans(),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.lists(batches, max_size=25))
def test_well_formed_nonsense_breaks_nothing(said):
    one = Replica(9, router.Settings(kv_tokens=640, residency_idle_s=50.0))
    now = 0.0
    for batch in said:
        now += 0.3
        one.view.hear(message.encode(batch), now)
        one.ask((1, 2, 3, int(now * 10)), now)
        one.leases.pop().release()
        answer = one.view.flush(now)
        assert answer is None or isinstance(message.decode(answer), message.Batch)
    one.view.flush(now + 10)
    assert one.router.ledger.open_leases == 0
    for name in NAMES:
        load = one.router.ledger.load(name, now + 10)
        assert (load.inflight, load.pending, load.kv_tokens) == (0, 0, 0)
        assert one.router.residency.blocks(name) <= 10


def test_a_crowd_of_senders_and_prompts_does_not_fill_memory():
    one, rng = Replica(9), random.Random(1)

    def tell(sender, number):
        hashes = tuple(rng.getrandbits(64) for _ in range(4))
        began = message.Began(number, number % 3, 0, 0, message.pack(hashes), 256, 256, 0, 0)
        batch = message.Batch(
            sender=sender, number=number, open_leases=1, places=tuple(("p", 256, name) for name in NAMES),
            began=(began,), ended=(number - 1,),
        )  # fmt: skip
        one.view.hear(message.encode(batch), number * 1e-4)

    for number in range(1, 3000):
        tell(1, number)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(3000, 9000):
        tell(1, number)
    for sender in range(10, 500):
        tell(sender, 1)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert one.view.peers == 64
    assert one.view.counts.crowd > 400
    assert grown < 4_000_000  # paths and residency are full or bounded
    assert all(one.router.residency.blocks(name) <= 1000 for name in NAMES)


def test_a_message_that_names_another_sender_inside_is_none_of_ours():
    told = bytearray(message.encode(message.Batch(sender=5, number=1)))
    told[12:20] = (6).to_bytes(8, "little")
    told[4:12] = xxhash.xxh3_64_digest(bytes(told[12:]))
    assert message.decode(bytes(told)) is message.Strange.MALFORMED
