"""Coding: compressed bodies, inflated up to a budget, for reading only; what is forwarded stays compressed.

gzip and deflate always; zstd and br where their library is installed (extras `zstd` and `br`). A bomb stops
at the budget: no more than `bytes_max` bytes are ever inflated, and one coding is undone, not a stack.
Of a compressed body that is cut off, what can be inflated is a start of the whole.

Never: an exception. Called by: exchange. Source: RFC 9110 section 8.4.1; RFC 8878 (zstd); RFC 7932 (br).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

try:
    import zstandard
except ImportError:
    _zstandard = None
else:
    _zstandard = zstandard
try:
    import brotli
except ImportError:
    _brotli = None
else:
    _brotli = brotli

__all__ = ["CODINGS", "Inflated", "inflate"]

_Decode = Callable[[bytes, int], tuple[bytes, bool]]
"""data, most bytes to return -> plain bytes, whether the coding's end was reached."""

_WINDOW_BYTES_MAX = 8 * 1024 * 1024  # what RFC 8878 asks every decoder to support


@dataclass(frozen=True, slots=True)
class Inflated:
    """`data`: the plain bytes, at most the budget. `whole`: whether they are all of the body."""

    data: bytes
    whole: bool


def inflate(coding: str, data: bytes, bytes_max: int, *, whole: bool) -> Inflated | None:
    """`data` without its content coding; None if the coding is unknown or the bytes are not of it.

    Args:
        coding: value of the content-encoding header, "" if there is none.
        data: what arrived of the body.
        bytes_max: at most so many bytes are inflated [bytes, > 0].
        whole: False if more of `data` was to come.
    """
    name = coding.strip().lower()
    if name in {"", "identity"}:
        return Inflated(data, whole)
    decode = CODINGS.get(name)
    if decode is None:
        return None
    try:
        plain, ended = decode(data, bytes_max + 1)
    except _BROKEN:
        return None
    return Inflated(plain[:bytes_max], whole and ended and len(plain) <= bytes_max)


def _zlib(window_bits: int) -> _Decode:
    def decode(data: bytes, bytes_max: int) -> tuple[bytes, bool]:
        inflater = zlib.decompressobj(window_bits)
        plain = inflater.decompress(data, bytes_max)
        return plain, inflater.eof and not inflater.unused_data  # gzip: more members may follow, unread

    return decode


def _deflate(data: bytes, bytes_max: int) -> tuple[bytes, bool]:
    try:
        return _zlib(zlib.MAX_WBITS)(data, bytes_max)
    except zlib.error:
        return _zlib(-zlib.MAX_WBITS)(data, bytes_max)  # some clients leave the zlib header out


def _zstd(data: bytes, bytes_max: int) -> tuple[bytes, bool]:
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX).stream_reader(
        data, read_across_frames=True
    )
    plain = reader.read(bytes_max)
    return plain, len(plain) < bytes_max


def _br(data: bytes, bytes_max: int) -> tuple[bytes, bool]:
    inflater = brotli.Decompressor()
    pieces = [inflater.process(data, output_buffer_limit=bytes_max)]
    size = len(pieces[0])
    # Of input that ends early it gives 32 KiB a call, though it says that it waits for more input.
    while pieces[-1] and size < bytes_max and not inflater.is_finished():
        pieces.append(inflater.process(b"", output_buffer_limit=bytes_max - size))
        size += len(pieces[-1])
    return b"".join(pieces)[:bytes_max], inflater.is_finished()


_GZIP_BITS = 16 + zlib.MAX_WBITS

CODINGS: dict[str, _Decode] = {"gzip": _zlib(_GZIP_BITS), "x-gzip": _zlib(_GZIP_BITS), "deflate": _deflate}
_BROKEN: tuple[type[Exception], ...] = (zlib.error,)
if _zstandard is not None:
    CODINGS["zstd"] = _zstd
    _BROKEN += (zstandard.ZstdError,)
if _brotli is not None:
    CODINGS["br"] = _br
    _BROKEN += (brotli.error,)
