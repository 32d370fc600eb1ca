"""Compressed bodies: the chain of the plain one, a start if they are cut, a stop at the budget. P20, S03."""

import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from extproc import prompt, reading
from extproc.prompt import coding
from tests import prompts

BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": " ".join(f"word{n % 97}" for n in range(2000))}]}
).encode()


def raw_deflate(data: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflater.compress(data) + deflater.flush()


def zstd_stream(data: bytes) -> bytes:
    """Without the content's size in the header, as streaming clients write it."""
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush()


CODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", zstandard.compress),
    "zstd, streamed": ("zstd", zstd_stream),
    "br": ("br", brotli.compress),
}
coders = pytest.mark.parametrize("name", CODERS)


def read(coding_name: str, data: bytes, *, whole: bool = True, bytes_max: int = 1 << 20) -> object:
    headers = {":path": prompts.CHAT, "content-encoding": coding_name}
    return reading.read(headers, data, prompt.Settings(bytes_max=bytes_max), whole=whole).prompt


@coders
@pytest.mark.parametrize("spelling", [str.lower, str.upper, " {} ".format])
def test_compressed_body_reads_like_the_plain_one(name: str, spelling: Callable[[str], str]) -> None:  # P20
    header, encode = CODERS[name]
    assert read(spelling(header), encode(BODY)) == prompts.keyed(BODY)


@coders
def test_compressed_body_cut_anywhere_is_unkeyed_or_a_start(name: str) -> None:
    header, encode = CODERS[name]
    data, whole = encode(BODY), prompts.keyed(BODY)
    starts = 0
    for length in [*range(80), *range(80, len(data), 13)]:
        for claimed in (False, True):  # also where the header or the sender lies about it
            found = read(header, data[:length], whole=claimed)
            assert isinstance(found, prompt.Prompt | prompt.Unkeyed)
            assert prompts.is_start(found, whole), length
            starts += isinstance(found, prompt.Prompt) and len(found.text) > 100
    assert starts > 2 or name in {"zstd", "zstd, streamed"}  # a short zstd body is one block


def test_long_zstd_and_br_bodies_that_are_cut_give_their_start() -> None:
    rng = random.Random(5)
    content = " ".join(f"{rng.getrandbits(64):x}" for _ in range(40_000))
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    for header, encode in (
        ("zstd", zstandard.compress),
        ("br", lambda data: brotli.compress(data, quality=1)),
    ):
        data = encode(body)
        found = read(header, data[: len(data) * 3 // 4], whole=False)
        assert isinstance(found, prompt.Prompt)
        assert len(found.text) > len(body) // 3
        assert prompts.is_start(found, prompts.keyed(body))


@coders
def test_broken_bytes_are_unkeyed_and_never_raise(name: str) -> None:  # P20
    header, encode = CODERS[name]
    data, rng = encode(BODY), random.Random(name)
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        found = read(header, bytes(broken), whole=rng.random() < 0.5)
        assert isinstance(found, prompt.Prompt | prompt.Unkeyed)
    for junk in (b"", b"\0", b"\x1f\x8b", rng.randbytes(1000), BODY, encode(b""), encode(encode(BODY))):
        assert isinstance(read(header, junk), prompt.Prompt | prompt.Unkeyed)
    assert read(header, BODY) is prompt.Unkeyed.ENCODING or name == "br"


@pytest.mark.parametrize(
    "header", ["gzip, zstd", "gzip,gzip", "compress", "*", "gzip;q=1", "identity, gzip", "\0"]
)
def test_unknown_and_stacked_codings_are_unkeyed(header: str) -> None:  # P20
    assert read(header, gzip.compress(BODY)) is prompt.Unkeyed.ENCODING


@pytest.mark.parametrize("header", ["", "identity", " Identity "])
def test_identity_is_no_coding(header: str) -> None:
    assert read(header, BODY) == prompts.keyed(BODY)


@coders
@pytest.mark.parametrize("more", [-1, 0, 1, 4000])
def test_body_that_inflates_past_the_budget_is_read_up_to_it(name: str, more: int) -> None:
    header, encode = CODERS[name]
    budget = prompt.Settings(bytes_max=len(BODY) - more)
    inflated = coding.inflate(header, encode(BODY), budget.bytes_max, whole=True)
    assert inflated is not None
    assert inflated.data == BODY[: budget.bytes_max]
    assert inflated.whole == (more <= 0)


def bombs(bytes_inflated: int) -> dict[str, tuple[str, bytes]]:
    """Bodies that inflate to that many spaces inside a message."""
    head = b'{"model":"m","messages":[{"role":"user","content":"'
    piece = b" " * (1 << 20)

    def streamed(compress: Callable[[bytes], bytes], flush: Callable[[], bytes]) -> bytes:
        parts = [compress(head), *(compress(piece) for _ in range(bytes_inflated >> 20)), flush()]
        return b"".join(parts)

    deflater = zlib.compressobj(9, wbits=31)
    zstd = zstandard.ZstdCompressor(level=3).compressobj()
    br = brotli.Compressor(quality=5)
    return {
        "gzip": ("gzip", streamed(deflater.compress, deflater.flush)),
        "zstd": ("zstd", streamed(zstd.compress, zstd.flush)),
        "br": ("br", streamed(br.process, br.finish)),
    }


def test_bomb_stops_at_the_budget() -> None:  # S03
    """64 MiB out of a few KB; brotli and zstd reach 10 GB from 10 KB in the same way, by more of the same."""
    budget = 512 * 1024
    for name, (header, data) in bombs(64 << 20).items():
        assert len(data) < 100_000
        tracemalloc.start()
        found = read(header, data, bytes_max=budget)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert isinstance(found, prompt.Prompt), name
        assert budget - 100 < len(found.text) < budget + prompt.TAIL_BYTES_MAX
        assert peak < 16 << 20, name


@pytest.mark.heavy
def test_10_kb_that_inflate_to_10_gb_stop_at_the_budget() -> None:  # S03
    """The real size; memory of the decoders, which tracemalloc does not see, is in the process's peak."""
    import resource  # noqa: PLC0415

    compressor = zstandard.ZstdCompressor(level=19).compressobj()
    piece = b" " * (16 << 20)
    data = b'{"model":"m","messages":[{"role":"user","content":"'
    data = compressor.compress(data) + b"".join(compressor.compress(piece) for _ in range(10 * 1024 // 16))
    data += compressor.flush()
    assert len(data) < 1_200_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = read("zstd", data, bytes_max=512 * 1024)
    assert isinstance(found, prompt.Prompt)
    assert len(found.text) < 700_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # [KiB]


def test_window_larger_than_8_mib_is_unkeyed() -> None:
    """Who asks for 128 MiB of window asks for 128 MiB of our memory."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert read("zstd", compressor.compress(BODY) + compressor.flush()) is prompt.Unkeyed.ENCODING


def test_members_and_frames_in_a_row_are_a_body_or_a_start_of_one() -> None:
    """RFC 1952 and RFC 8878 allow them. gzip's second member is not read; zstd's frames are."""
    half = len(BODY) // 2
    whole = prompts.keyed(BODY)
    for header, encode in (("gzip", gzip.compress), ("zstd", zstandard.compress)):
        found = read(header, encode(BODY[:half]) + encode(BODY[half:]))
        assert isinstance(found, prompt.Prompt)
        assert prompts.is_start(found, whole)
        assert found.cut == (header == "gzip")
    assert read("gzip", gzip.compress(BODY) + gzip.compress(b"x")) != read("gzip", gzip.compress(BODY))


@pytest.mark.parametrize("name", ["gzip", "zstd", "br"])
def test_compressed_body_in_sdk_order_longer_than_the_budget_has_no_key(name: str) -> None:
    """The model stands behind the messages, and what is behind the budget is not inflated: a known limit."""
    header, encode = CODERS[name]
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 100_000}], "model": "m"}).encode()
    assert read(header, encode(body), bytes_max=10_000) is prompt.Unkeyed.CUT
    assert isinstance(read(header, encode(body), bytes_max=90_000), prompt.Prompt)
