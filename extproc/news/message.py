"""Message: the bytes one replica of kvring tells the others, and back.

    b"kvr" version(1) checksum(8) sender(8) msgpack

A message is a batch: what one sender has to tell at one moment, with its number. Names of endpoints stand
once in a batch, entries refer to them by position. A chain is told as its last known block and the hashes
behind it, so a turn of a conversation costs its new blocks only. Hashes are 64-bit and chained: no text comes
back from them.

Decoding is total: whatever the bytes are, it gives a batch within the limits below, or why not. The checksum
tells damage, not malice: who may publish on the channel is the store's business (ACL).

Replicas of two releases talk to each other during an upgrade. What is added under a new key, or behind the
last field of an entry, is passed over by those that don't know it, and has a default for those that do: that
needs no other version. Whatever else changes does, and then each release hears only its own.

Never: prompt text; an exception for bytes from outside. Called by: news.view.
"""

from __future__ import annotations

import enum
import struct
from typing import Annotated

import msgspec
import xxhash

from extproc import chain

__all__ = [
    "BYTES_MAX",
    "ENTRIES_MAX",
    "HASHES_MAX",
    "LEASES_MAX",
    "Answered",
    "Ask",
    "Batch",
    "Began",
    "Held",
    "Open",
    "Restarted",
    "Retracted",
    "Stored",
    "Strange",
    "decode",
    "encode",
    "is_from",
    "pack",
    "unpack",
]

VERSION = 1
BYTES_MAX = 4 * 1024 * 1024
"""No message is larger, or read if it is."""

ENTRIES_MAX = 4096
"""Entries of one kind in a batch."""

HASHES_MAX = 65_536
"""Hashes in one entry: the most blocks that a chain can be configured to have."""

PLACES_MAX = 65_536
"""Endpoints named in a batch."""

LEASES_MAX = 131_072
"""Open leases that one batch lists."""

_MAGIC = b"kvr"
_HEAD = 20
_TOKENS_MAX = 1 << 40

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Hash = Annotated[int, msgspec.Meta(ge=0)]  # 64 bits by the encoding
_Index = Annotated[int, msgspec.Meta(ge=0, lt=PLACES_MAX)]
_Depth = Annotated[int, msgspec.Meta(ge=0, le=HASHES_MAX)]
_Hashes = Annotated[bytes, msgspec.Meta(max_length=8 * HASHES_MAX)]
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=_TOKENS_MAX)]
_Age = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_MANY = msgspec.Meta(max_length=ENTRIES_MAX)


class Strange(enum.StrEnum):
    """Why bytes are no message of ours. A closed set: it labels metrics."""

    FOREIGN = "foreign"  # they do not begin as ours
    VERSION = "version"  # ours, of another version
    CORRUPT = "corrupt"  # the checksum is not theirs
    MALFORMED = "malformed"  # not what a batch looks like
    TOO_LARGE = "too_large"


class Began(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A dispatch. `place`: position in `Batch.places`; `back`: hash of the last block known, 0 for none, at
    `depth` blocks; `hashes`: those behind it. `prefills`: whether the engine computes the prompt; `again`:
    whether the request was told before, and then went elsewhere.
    """

    number: _Number
    place: _Index
    back: _Hash
    depth: _Depth
    hashes: _Hashes
    prompt_tokens: _Tokens
    uncached_tokens: _Tokens
    gpu_tokens: _Tokens
    cached_tokens: _Tokens
    prefills: bool = True
    again: bool = False


class Open(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A lease of the sender's that has not ended; `end`: last hash of its chain, 0 for none."""

    number: _Number
    place: _Index
    prompt_tokens: _Tokens
    uncached_tokens: _Tokens
    end: _Hash
    prefills: bool = True


class Held(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Blocks that an endpoint is thought to hold, last used `age_s` ago; `prompts` end with the last one."""

    place: _Index
    back: _Hash
    depth: _Depth
    hashes: _Hashes
    age_s: _Age
    prompts: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] = 1


class Restarted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An endpoint's process is a new one."""

    place: _Index


class Retracted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The request of lease `number` did not go to `place`, where it was told to have gone; as in `outbox`.

    `again`: this was told before, and is told to who missed that.
    """

    number: _Number
    place: _Index
    end: _Hash
    depth: _Depth
    left: _Depth
    prompt_tokens: _Tokens
    gpu_tokens: _Tokens
    cached_tokens: _Tokens
    again: bool = False


class Answered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An endpoint gave a stored answer; `key`: a hash of its id."""

    place: _Index
    key: _Hash


class Stored(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """As `Answered`; last used `age_s` ago."""

    place: _Index
    key: _Hash
    age_s: _Age


class Ask(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={"to": "t", "leases": "l", "since_s": "s"},
):
    """A question to the replica `to`.

    `leases`: its open ones. `since_s`: what endpoints hold, and gave as stored answers, that was used so
    lately [s], -1: nothing.
    """

    to: _Number
    leases: bool = False
    since_s: Annotated[float, msgspec.Meta(ge=-1, le=1e9)] = -1.0


class Batch(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={
        "sender": "s", "number": "n", "open_leases": "o", "places": "p", "restarted": "r", "began": "b",
        "prefilled": "f", "ended": "e", "answered": "a", "asks": "q", "leases": "l", "held": "h", "to": "t",
        "last": "z", "bye": "x", "retracted": "g", "stored": "k",
    },
):  # fmt: skip
    """What `sender` tells in its message `number` [1, 2, ...]; it then has `open_leases` own leases open.

    `places`: (pool, block bytes, endpoint) that entries refer to. To be applied in the order restarted,
    began, retracted, prefilled, ended. `leases`: all open ones, None if that is not told. `held`, `stored`:
    an answer for the replica `to`; `last`: nothing more of it follows. `bye`: the sender ends.
    """

    sender: _Number
    number: _Number
    open_leases: _Number = 0
    places: Annotated[
        tuple[tuple[_Name, Annotated[int, msgspec.Meta(ge=1, le=1 << 20)], _Name], ...],
        msgspec.Meta(max_length=PLACES_MAX),
    ] = ()
    restarted: Annotated[tuple[Restarted, ...], _MANY] = ()
    began: Annotated[tuple[Began, ...], _MANY] = ()
    prefilled: Annotated[tuple[_Number, ...], _MANY] = ()
    ended: Annotated[tuple[_Number, ...], _MANY] = ()
    answered: Annotated[tuple[Answered, ...], _MANY] = ()
    asks: Annotated[tuple[Ask, ...], _MANY] = ()
    leases: Annotated[tuple[Open, ...], msgspec.Meta(max_length=LEASES_MAX)] | None = None
    held: Annotated[tuple[Held, ...], _MANY] = ()
    to: _Number = 0
    last: bool = False
    bye: bool = False
    retracted: Annotated[tuple[Retracted, ...], _MANY] = ()
    stored: Annotated[tuple[Stored, ...], _MANY] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch)


def encode(batch: Batch) -> bytes:
    """The message of `batch`."""
    summed = batch.sender.to_bytes(8, "little") + _encoder.encode(batch)
    return _MAGIC + bytes((VERSION,)) + xxhash.xxh3_64_digest(summed) + summed


def is_from(data: bytes, sender: int) -> bool:
    """Whether `data` claims to come from `sender`: a look that costs less than decoding one's own echo."""
    return data[12:_HEAD] == sender.to_bytes(8, "little")


def decode(data: bytes) -> Batch | Strange:
    """The batch in `data`, or why there is none."""
    if len(data) > BYTES_MAX:
        return Strange.TOO_LARGE
    if data[:3] != _MAGIC or len(data) < _HEAD:
        return Strange.FOREIGN
    if data[3] != VERSION:
        return Strange.VERSION
    if xxhash.xxh3_64_digest(memoryview(data)[12:]) != data[4:12]:
        return Strange.CORRUPT
    try:
        batch = _decoder.decode(memoryview(data)[_HEAD:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Strange.MALFORMED
    is_one = is_from(data, batch.sender)  # inside and outside
    return batch if is_one and _refers_well(batch) else Strange.MALFORMED


def pack(hashes: tuple[chain.BlockHash, ...]) -> bytes:
    """Hashes as bytes, eight each, low byte first."""
    return struct.pack(f"<{len(hashes)}Q", *hashes)


def unpack(data: bytes) -> tuple[chain.BlockHash, ...]:
    """The hashes of `pack`; what is left over behind the last whole one is dropped."""
    count = len(data) // 8
    return struct.unpack_from(f"<{count}Q", data)


def _refers_well(batch: Batch) -> bool:
    """Whether entries refer only to places there are."""
    places = len(batch.places)
    answer = batch.held, batch.stored, batch.leases or ()
    for kind in (batch.restarted, batch.began, batch.retracted, batch.answered, *answer):
        for one in kind:
            if one.place >= places:
                return False
    return True
