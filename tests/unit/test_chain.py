"""The golden file is a promise: another hash for an old body moves every conversation at an upgrade.

To change it deliberately: bump the release's compatibility note, then
`python -m tests.unit.test_chain > tests/data/golden_chains.json`.
"""

import json
import pathlib
import sys
from typing import Any

import pytest

from extproc import anchor, chain, pool, prompt, ring, router

GOLDEN = pathlib.Path(__file__).parent.parent / "data" / "golden_chains.json"
ENDPOINTS = [f"vllm-{i}" for i in range(8)]


def golden_of(case: dict[str, Any]) -> dict[str, Any]:
    """What is promised of one body: its chain by default settings, its key when seen first, its home."""
    settings = router.Settings()
    found = prompt.read(case["path"], case["body"].encode(), prompt.Settings(bytes_max=1 << 20), whole=True)
    assert isinstance(found, prompt.Prompt)
    seed = chain.seed_of(found.seeds)
    built = chain.build(seed, found.text, settings.block_bytes, settings.blocks_max)
    key = anchor.Anchors().observe(built, len(ENDPOINTS), 0.0).key
    wheel = ring.Ring([(pool.EndpointId(name), 1) for name in ENDPOINTS])
    return {
        "seed": f"{seed:016x}",
        "blocks": len(built),
        "first": f"{built.hashes[0]:016x}" if built.hashes else None,
        "last": f"{built.hashes[-1]:016x}" if built.hashes else None,
        "tail": f"{built.tail:016x}",
        "key": f"{key:016x}",
        "order": list(wheel.order(key)),
    }


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text())["cases"], ids=lambda case: case["name"])
def test_golden_body_has_the_chain_key_and_ring_order_it_always_had(case: dict[str, Any]) -> None:
    assert golden_of(case) == case["golden"]


def test_changed_byte_changes_its_block_and_all_behind_it_but_none_before() -> None:
    text = bytes(range(100))
    for at in range(100):
        changed = text[:at] + b"\xff" + text[at + 1 :]
        one, other = chain.build(1, text, 10, 99), chain.build(1, changed, 10, 99)
        assert [a == b for a, b in zip(one.hashes, other.hashes, strict=True)] == [
            block < at // 10 for block in range(10)
        ]
        assert one.tail != other.tail


def test_last_partial_block_is_in_the_tail_only() -> None:
    full, more = chain.build(1, b"a" * 20, 10, 99), chain.build(1, b"a" * 29, 10, 99)
    assert full.hashes == more.hashes
    assert len(more) == 2
    assert full.tail != more.tail


def test_text_shorter_than_a_block_is_told_apart_by_its_tail() -> None:
    tails = {chain.build(1, text, 10, 99).tail for text in (b"", b"a", b"b", b"ab")}
    assert len(tails) == 4


def test_another_seed_gives_another_chain_from_the_first_block_on() -> None:
    one, other = chain.build(1, b"a" * 30, 10, 99), chain.build(2, b"a" * 30, 10, 99)
    assert not {*one.hashes, one.tail} & {*other.hashes, other.tail}


def test_equal_blocks_at_different_places_have_different_hashes() -> None:
    assert len(set(chain.build(1, b"a" * 100, 10, 99).hashes)) == 10


def test_no_more_than_the_allowed_blocks_are_hashed() -> None:
    text = b"a" * 100
    limited = chain.build(1, text, 10, 3)
    assert limited.hashes == chain.build(1, text, 10, 99).hashes[:3]
    assert limited.tail == chain.build(1, text[:40], 10, 3).tail  # one more block at most


def test_seed_keeps_its_parts_apart() -> None:
    seeds = {
        chain.seed_of(parts)
        for parts in ((b"a", b"bc"), (b"ab", b"c"), (b"abc",), (b"abc", b""), (b"", b"abc"), ())
    }
    assert len(seeds) == 6


if __name__ == "__main__":
    written = json.loads(GOLDEN.read_text())
    for golden in written["cases"]:
        golden["golden"] = golden_of(golden)
    json.dump(written, sys.stdout, indent=1, ensure_ascii=True)
    sys.stdout.write("\n")
