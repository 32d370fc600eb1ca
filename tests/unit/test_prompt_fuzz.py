"""Bytes that no SDK sends: mutated recordings, malicious JSON. No exception, and the budget kept. P22."""

import gzip
import json
import random
import time
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from extproc import pool, prompt, reading, router
from tests import prompts, sdk_bodies

PATHS = [f"/v1{path}" for path in prompt.PATHS] + ["/v1/chat/completions/render", "/x", ""]
CODERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": lambda data: gzip.compress(data, 1),
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
    "br": lambda data: brotli.compress(data, quality=1),
}
KEYS = (b"model", b"messages", b"input", b"prompt", b"tools", b"role", b"content", b"type")
TOKENS = [
    *(b'"%b":' % key for key in KEYS),
    b'"', b"\\", b"\\u", b"\\ud800", b"\\udc00", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"-",
    b"1e999", b"NaN", b"Infinity", b"9" * 30, b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"/*",
    b'"text"', b'"image_url"', b"x-anthropic-billing-header:",
]  # fmt: skip


def mutated(rng: random.Random, bodies: list[bytes]) -> bytes:
    """One of the bodies after a few flips, cuts, copies, splices and insertions."""
    data = bytearray(rng.choice(bodies))
    for _ in range(rng.randrange(1, 6)):
        at, size = rng.randrange(len(data) + 1), rng.randrange(1, 60)
        match rng.randrange(6):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = data[at : at + size] * rng.randrange(1, 4)
            case 3:
                other = rng.choice(bodies)
                from_ = rng.randrange(len(other) + 1)
                data[at:at] = other[from_ : from_ + size]
            case 4:
                data[at:at] = rng.choice(TOKENS)
            case _:
                del data[at:]
    return bytes(data)


def fuzz(seconds_max: float, rounds_max: int, seed: int) -> int:
    """Read mutated bodies by every path and coding; how many had a prompt."""
    rng = random.Random(seed)
    bodies = [one.body for one in sdk_bodies.RECORDED]
    of = router.Router(
        pool.make("p", [pool.Endpoint(pool.EndpointId("e"), "10.0.0.1:80")]), router.Settings()
    )
    end = time.monotonic() + seconds_max
    found = 0
    for _ in range(rounds_max):
        body, path, coding = mutated(rng, bodies), rng.choice(PATHS), rng.choice(list(CODERS))
        data = CODERS[coding](body)
        if rng.random() < 0.2:
            data = mutated(rng, [data])
        settings = prompt.Settings(bytes_max=rng.choice([64, 500, 1 << 20]))
        headers = {":path": path} | ({"content-encoding": coding} if coding else {})
        read = reading.read(headers, data, settings, whole=rng.random() < 0.7).prompt
        if isinstance(read, prompt.Prompt):
            found += 1
            # Token ids of two bytes take four; a float that is written short may take 24.
            assert len(read.text) <= 12 * (settings.bytes_max + prompt.TAIL_BYTES_MAX)
            assert sum(size for _, size in read.segments) == len(read.text)
        else:
            assert isinstance(read, prompt.Unkeyed)
        decided = of.choose(read, 0.0, 0.5)
        assert hasattr(decided, "lease")
        decided.lease.release()
        if time.monotonic() > end:
            break
    return found


def test_mutated_recordings_never_raise() -> None:
    assert fuzz(seconds_max=4.0, rounds_max=20_000, seed=20) > 100


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(4))
def test_many_mutated_recordings_never_raise(seed: int) -> None:
    assert fuzz(seconds_max=60.0, rounds_max=10_000_000, seed=seed) > 1000


# ---- malicious JSON ----

BUDGET = 128 * 1024


def filled(head: bytes, unit: bytes, size: int = BUDGET) -> bytes:
    return head + unit * ((size - len(head)) // len(unit))


CHAT = b'{"model":"m","messages":[{"role":"user","content":'
MALICIOUS: dict[str, bytes] = {
    "arrays in arrays": filled(b'{"model":"m","tools":', b"["),
    "objects in objects": filled(b'{"model":"m","tools":', b'{"a":'),
    "199 levels": b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":'
    + b"[" * 190
    + b"]" * 190
    + b"}",
    "empty arrays": filled(CHAT + b'"x"}],"tools":[', b"[],"),
    "empty objects": filled(b'{"model":"m","messages":[', b"{},"),
    "messages": filled(b'{"model":"m","messages":[', b'{"role":"u"},'),
    "messages with parts": filled(b'{"model":"m","messages":[', b'{"role":"u","content":[{"text":""}]},'),
    "parts": filled(CHAT + b"[", b'{"text":""},'),
    "empty strings": filled(CHAT + b"[", b'"",'),
    "tool results": filled(CHAT + b"[", b'{"type":"tool_result","content":[""]},'),
    "escapes": filled(CHAT + b'"', b"\\u0041"),
    "starts of spans": filled(CHAT + b'"', b"x-anthropic-billing-header:"),
    "ids": filled(b'{"model":"m","prompt":[', b"1,"),
    "floats": filled(b'{"model":"m","prompt":[', b"1e9,"),
    "one number": filled(b'{"model":"m","messages":[1', b"1"),
    "one fraction": filled(b'{"model":"m","messages":[1.', b"1"),
    "other keys": b'{"model":"m",' + b",".join(b'"k%d":1' % n for n in range(12_000)),
    "one key again and again": filled(b'{"model":"m"', b',"messages":[]'),
    "keys of tools": CHAT + b'"x"}],"tools":{' + b",".join(b'"k%d":1' % n for n in range(12_000)),
    "one long key": filled(b'{"model":"m","', b"k"),
    "lone surrogates": filled(CHAT + b'"', b"\\ud800x"),
    "bytes that are no UTF-8": filled(CHAT + b'"', b"\xff"),
    "surrogates in UTF-8": filled(CHAT + b'"', b"\xed\xa0\x80"),
    "NaN": filled(b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[', b"NaN,"),
    "white space": filled(b'{"model":"m"', b" "),
    "model": filled(b'{"messages":[],"model":"', b"m"),
    "nul": filled(b"", b"\0"),
    "quotes": filled(b"", b'"'),
    "nested late keys": filled(CHAT, b'[{"a":1,"model":"x","tools":[[],[],[]]},'),
    "many late keys": filled(CHAT + b'[{"a":1', b',"model":1'),
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_malicious_body_costs_no_more_than_the_budget(name: str) -> None:
    """In memory some 100 bytes for each of the body, as many empty objects take, and never an exception."""
    body = MALICIOUS[name]
    settings = prompt.Settings(bytes_max=BUDGET)

    def read(path: str, data: bytes, *, whole: bool) -> None:
        found = prompt.read(path, data, settings, whole=whole)
        assert isinstance(found, prompt.Prompt | prompt.Unkeyed)
        if isinstance(found, prompt.Prompt):
            assert len(found.text) <= 2 * (BUDGET + prompt.TAIL_BYTES_MAX)
            assert len(found.segments) <= 16_384

    for path in ("/v1/messages", prompts.CHAT):
        read(path, body, whole=True)
        read(path, body[:1000], whole=False)
    read(prompts.CHAT, body * 16, whole=True)
    tracemalloc.start()
    read("/v1/completions" if b'"prompt"' in body[:30] else prompts.CHAT, body, whole=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * BUDGET, f"{peak / BUDGET:.0f} bytes for each"


def test_1e6_keys_and_a_10_mb_number_are_read_up_to_the_budget() -> None:
    keys = (
        b'{"model":"m","messages":[{"role":"user","content":"x"}],'
        + b",".join(b'"k%d":1' % n for n in range(10**6))
        + b"}"
    )
    number = b'{"model":"m","n":' + b"1" * 10_000_000 + b',"messages":[{"role":"user","content":"x"}]}'
    settings = prompt.Settings()
    for body in (keys, number):
        tracemalloc.start()
        assert isinstance(
            prompt.read(prompts.CHAT, body, settings, whole=True), prompt.Prompt | prompt.Unkeyed
        )
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
        tracemalloc.stop()


def test_deep_and_wide_bodies_that_are_sound_still_have_a_prompt() -> None:
    deep = json.loads("[" * 150 + "]" * 150)
    body = {"model": "m", "tools": [{"parameters": deep}], "messages": [{"role": "user", "content": "x"}]}
    assert prompts.keyed(body).text
    many = [{"role": "user", "content": str(n)} for n in range(20_000)]
    one, other = (
        prompts.keyed({"model": "m", "messages": many}),
        prompts.keyed({"model": "m", "messages": many[:-1]}),
    )
    assert one.text == other.text  # what is behind the 16,384th piece is not told apart
    assert len(one.segments) == 16_384


def test_1_mb_and_8_mb_cost_the_same() -> None:
    """P22: past the budget time is flat. The least of interleaved runs."""
    words = " ".join(f"word{n}" for n in range(1000))
    bodies = [
        json.dumps(
            {"messages": [{"role": "user", "content": words * (size // len(words))}], "model": "m"}
        ).encode()
        for size in (1 << 20, 8 << 20)
    ]
    times: list[list[float]] = [[], []]
    for _ in range(15):
        for kept, body in zip(times, bodies, strict=True):
            start = time.thread_time()
            assert isinstance(prompt.read(prompts.CHAT, body, prompt.Settings(), whole=True), prompt.Prompt)
            kept.append(time.thread_time() - start)
    small, large = map(min, times)
    assert large <= 2 * small, f"{small * 1e6:.0f} and {large * 1e6:.0f} us"
