"""Hostile messages: well summed, and nothing else about them is well. None raises, and nothing grows."""

import random
import struct
import time
import tracemalloc

import msgspec
import pytest
import xxhash

from extproc import chain, outbox, pool, router
from extproc.news import message, paths, view

NAMES = ("a", "b", "c")
POOL = pool.make("p", [pool.Endpoint(pool.EndpointId(name), f"10.0.0.{i}:1") for i, name in enumerate(NAMES)])
PLACES = tuple(("p", 256, name) for name in NAMES)
OWN = 9

# what msgpack has to say of lengths and kinds: maps and arrays of four thousand million, strings without
# an end, extension types, timestamps, numbers beyond 64 bits
NASTY = [
    b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01", b"\xd6\xff\x00\x00\x00\x00", b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\x00" * 7, b"\xcb\x7f\xf0" + b"\x00" * 6, b"\xcb\x7f\xf8" + b"\x00" * 6,
    b"\xc0", b"\xc1", b"\xc3", b"\x80", b"\x90",
    b"\x91" * 400, b"\x81\xa1s" * 400, b"\xa2\xff\xfe",
]  # fmt: skip


def summed(payload: bytes, sender: int) -> bytes:
    """A message with this inside, as a peer would send it that wants to be read."""
    told = sender.to_bytes(8, "little") + payload
    return b"kvr" + bytes((message.VERSION,)) + xxhash.xxh3_64_digest(told) + told


class Hostile:
    """Messages of one seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._number = 0

    def next(self) -> bytes:
        rng = self._rng
        sender = rng.choice([1, 2, 3, OWN if rng.random() < 0.3 else 4, 5 + rng.getrandbits(9)])
        payload = bytearray(msgspec.msgpack.encode(self._batch(sender)))
        for _ in range(rng.choice([0, 0, 1, 2, 5])):
            at = rng.randrange(len(payload) + 1)
            match rng.randrange(5):
                case 0:
                    payload[at : at + 1] = bytes((rng.randrange(256),))
                case 1:
                    payload[at : at + rng.randrange(6)] = rng.choice(NASTY)
                case 2:
                    del payload[at : at + rng.randrange(1, 20)]
                case 3:
                    other = rng.randrange(len(payload) + 1)
                    payload[at:at] = payload[other : other + rng.randrange(40)]
                case 4:
                    payload[at : at + 9] = b"\xcf" + struct.pack(">Q", rng.getrandbits(64))
        return summed(bytes(payload), sender)

    def _batch(self, sender: int) -> message.Batch:
        self._number += 1
        rng, bits = self._rng, self._rng.getrandbits
        number = bits(62) if not bits(8) else self._number + rng.choice([0, 0, 3])
        foreign = rng.choice([("p", 64, "a"), ("q", 256, "z"), ("p", 256, "z")])
        leases = tuple(message.Open(bits(4), rng.randrange(4), 10, bits(40), bits(64)) for _ in self._some())
        return message.Batch(
            sender=sender,
            number=number,
            open_leases=rng.choice([0, 3, bits(62)]),
            places=(*PLACES, foreign),
            restarted=tuple(message.Restarted(rng.randrange(4)) for _ in self._some()),
            began=tuple(self._began() for _ in self._some()),
            retracted=tuple(self._retracted() for _ in self._some()),
            prefilled=tuple(bits(4) for _ in self._some()),
            ended=tuple(bits(4) for _ in self._some()),
            asks=tuple(
                message.Ask(rng.choice([OWN, 1]), rng.random() < 0.5, rng.choice([-1.0, 0.0, 1e9]))
                for _ in self._some()
            ),
            leases=rng.choice([None, None, leases]),
            held=tuple(
                message.Held(rng.randrange(4), bits(64), rng.randrange(5), self._hashes(), 1.0, 1 + bits(30))
                for _ in self._some()
            ),
            stored=tuple(message.Stored(rng.randrange(4), bits(64), 1.0) for _ in self._some()),
            to=rng.choice([0, OWN]),
            last=rng.random() < 0.5,
            bye=not bits(5),
        )

    def _began(self) -> message.Began:
        bits, rng = self._rng.getrandbits, self._rng
        chained = bits(64), rng.randrange(5), self._hashes()
        return message.Began(bits(4), rng.randrange(4), *chained, bits(40), bits(40), bits(40), bits(40))

    def _retracted(self) -> message.Retracted:
        bits, rng = self._rng.getrandbits, self._rng
        end = rng.choice([bits(64), bits(4)])
        told = bits(4), rng.randrange(4), end, rng.randrange(5), rng.randrange(5)
        return message.Retracted(*told, bits(40), bits(40), bits(40), rng.random() < 0.3)

    def _hashes(self) -> bytes:
        bits = self._rng.choice([64, 4])  # few: prompts that meet, blocks behind others than before
        return message.pack(tuple(self._rng.getrandbits(bits) for _ in self._some()))

    def _some(self) -> range:
        return range(self._rng.choice([0, 0, 1, 2, 5, 12]))


class Victim:
    def __init__(self) -> None:
        self.entries = outbox.Outbox()
        self.router = router.Router(POOL, router.Settings(kv_tokens=6_400), self.entries)
        self.view = view.View(OWN, {"p": self.router}, self.entries)
        self.view._hearing._paths = paths.Paths(2000)  # so that it is full soon
        self.now = 0.0

    def hear(self, data: bytes) -> None:
        self.now += 0.001
        self.view.hear(data, self.now)
        if not round(self.now * 1000) % 5:
            answer = self.view.flush(self.now)
            assert answer is None or len(answer) <= message.BYTES_MAX

    def ask(self, hashes: tuple[int, ...]) -> None:
        placed = self.router.place(router.Request(chain=chain.Chain(hashes, 1), tokens=700.0), self.now, 0.5)
        placed.lease.release()


def fuzz(seed: int, rounds: int, seconds_max: float) -> int:
    """Messages heard; after the first third of them memory does not grow any more, but for a little."""
    hostile, victim, rng = Hostile(seed), Victim(), random.Random(seed)
    end_s = time.monotonic() + seconds_max
    heard = grown = before = 0
    tracemalloc.start()
    try:
        while heard < rounds and time.monotonic() < end_s:
            victim.hear(hostile.next())
            if not heard % 50:
                victim.ask(tuple(rng.getrandbits(64) for _ in range(10)))
            heard += 1
            if heard == rounds // 3:
                before = tracemalloc.get_traced_memory()[0]
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert before
    assert grown < 2_000_000, grown
    counts = victim.view.counts
    assert victim.view.strange[message.Strange.MALFORMED] > heard / 10  # some were read, some were not
    assert counts.heard > heard / 10
    assert victim.view.peers <= 64
    victim.now += 60
    victim.view.flush(victim.now)
    assert (victim.view.peers, victim.router.ledger.open_leases) == (0, 0)
    for name in NAMES:
        load = victim.router.ledger.load(pool.EndpointId(name), victim.now)
        assert (load.inflight, load.pending, load.kv_tokens) == (0, 0, 0)
        assert victim.router.residency.blocks(pool.EndpointId(name)) <= 100
    return heard


def test_hostile_messages_raise_nothing_and_fill_nothing():
    assert fuzz(seed=1, rounds=1500, seconds_max=60) == 1500


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(4))
def test_hostile_messages_for_longer(seed):
    assert fuzz(seed=100 + seed, rounds=40_000, seconds_max=100) > 10_000


@pytest.mark.parametrize("nasty", NASTY)
def test_a_claim_of_great_length_reserves_nothing(nasty):
    whole = msgspec.msgpack.encode(message.Batch(sender=5, number=1, places=PLACES))
    for payload in (nasty, whole[:-1] + nasty, whole[:6] + nasty + whole[6:], nasty * 100):
        tracemalloc.start()
        assert isinstance(message.decode(summed(payload, 5)), message.Strange)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1_000_000
