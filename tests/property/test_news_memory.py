"""Memory: whatever peers say, a replica keeps a bounded part of it; measured in entries and in bytes."""

import os
import random
from pathlib import Path

import pytest

from extproc import outbox, pool, router
from extproc.news import message, paths, view

NAMES = tuple(f"replica-{number}" for number in range(8))
BLOCKS = 10_000  # of each endpoint: 640,000 tokens
PEERS = 3
OPEN = 100  # at a time, of each peer
PER_BATCH = 64


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Peer:
    """A replica that serves prompts nobody has seen before, and tells of them."""

    def __init__(self, sender: int) -> None:
        self.sender, self.number, self.lease = sender, 0, 0
        self.rng = random.Random(sender)

    def message(self) -> bytes:
        self.number += 1
        began = []
        for _ in range(PER_BATCH):
            self.lease += 1
            bits = self.rng.getrandbits(64)
            blocks = 1 + bits % 16
            hashes = self.rng.randbytes(8 * blocks)
            tokens = 64 * blocks + 10
            began.append(message.Began(self.lease, bits % 8, 0, 0, hashes, tokens, tokens, 0, 0))
        ended = tuple(
            range(max(self.lease - PER_BATCH - OPEN + 1, 1), max(self.lease - OPEN + 1, 1)),
        )
        batch = message.Batch(
            sender=self.sender,
            number=self.number,
            open_leases=min(self.lease, OPEN),
            places=tuple(("p", 256, name) for name in NAMES),
            began=tuple(began),
            ended=ended,
        )
        return message.encode(batch)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc for its memory")
@pytest.mark.parametrize(
    "prompts",
    [
        pytest.param(40_000, id="40k"),
        pytest.param(1_000_000, id="1M", marks=[pytest.mark.heavy, pytest.mark.timeout(1800)]),
    ],
)
def test_distinct_prompts_of_peers_fill_a_bounded_memory(prompts: int) -> None:
    members = [pool.Endpoint(pool.EndpointId(name), f"10.0.0.{at}:1") for at, name in enumerate(NAMES)]
    entries = outbox.Outbox()
    chooser = router.Router(pool.make("p", members), router.Settings(kv_tokens=64 * BLOCKS), entries)
    one = view.View(99, {"p": chooser}, entries)
    peers = [Peer(number + 1) for number in range(PEERS)]
    began_bytes, full_bytes, told = resident_bytes(), 0, 0
    while told < prompts:
        for peer in peers:
            one.hear(peer.message(), told * 1e-3)
            told += PER_BATCH
        one.flush(told * 1e-3)
        if not full_bytes and told >= 32_000:  # of 8.5 blocks: by then all that is kept is full
            full_bytes = resident_bytes()
    assert one.counts.dispatches == told
    assert one.counts.unresolved == one.counts.unplaced == 0
    assert [chooser.residency.blocks(pool.EndpointId(name)) for name in NAMES] == [BLOCKS] * 8
    assert chooser.ledger.open_leases == one.peer_leases == PEERS * OPEN
    assert one.kept_blocks <= paths.BLOCKS_MAX
    assert len(chooser.anchors) <= 4096
    assert full_bytes - began_bytes < 100e6
    assert resident_bytes() - full_bytes < 25e6


def test_leases_that_no_peer_ends_are_bounded_over_all_of_them() -> None:
    entries = outbox.Outbox()
    members = [pool.Endpoint(pool.EndpointId("a"), "10.0.0.1:1")]
    chooser = router.Router(pool.make("p", members), router.Settings(kv_tokens=64), entries)
    one = view.View(99, {"p": chooser}, entries)
    began = [message.Began(number, 0, 0, 0, b"", 10, 10, 0, 0) for number in range(1, 4097)]
    for sender in range(1, 65):
        for number in range(3):
            told = message.Batch(
                sender=sender,
                number=number + 1,
                places=(("p", 256, "a"),),
                began=tuple(began[number * 1300 : (number + 1) * 1300]),
            )
            one.hear(message.encode(told), 1.0)
    assert one.peer_leases == chooser.ledger.open_leases
    assert one.peer_leases <= view.LEASES_MAX
