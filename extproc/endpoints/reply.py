"""Reply: an HTTP answer read with bounds, and what its status means for a source.

Never: more bytes held than the caller allows; a line split where a read ended.
Called by: kubernetes, envoy_clusters.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator

import aiohttp

from extproc.endpoints.source import FaultError, Problem

__all__ = ["fault", "keep_alive", "lines", "read"]

_IDLE_S, _INTERVAL_S, _COUNT = 15, 5, 3  # a peer gone without a word is found after 30 s


def fault(status: int) -> FaultError:
    """What an answer with this status, which is not 200, means."""
    return FaultError(_problem(status), f"status {status}")


async def read(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """The whole body, inflated. Raises: FaultError if it is longer than `bytes_max`."""
    chunks: list[bytes] = []
    held = 0
    async for chunk in answer.content.iter_any():
        held += len(chunk)
        if held > bytes_max:
            raise FaultError(Problem.TOO_LARGE, f"an answer of more than {bytes_max} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


async def lines(answer: aiohttp.ClientResponse, bytes_max: int) -> AsyncIterator[Iterator[bytes]]:
    """The lines that each read completed. Raises: FaultError for one too long, or one never ended."""
    parts: list[bytes] = []
    held = 0
    async for chunk in answer.content.iter_any():  # not readline: that stops at 64 KiB
        first, *others = chunk.split(b"\n")
        parts.append(first)
        held += len(first)
        if others and held <= bytes_max:
            whole = [b"".join(parts), *others[:-1]]
            parts, held = [others[-1]], len(others[-1])
            yield (line for line in whole if line.strip())
        if held > bytes_max:
            raise FaultError(Problem.TOO_LARGE, f"an event of more than {bytes_max} bytes")
    if held:
        raise FaultError(Problem.MALFORMED, "a watch ended within an event")


def keep_alive(answer: aiohttp.ClientResponse) -> None:
    """Have the kernel ask a silent peer whether it still lives."""
    transport = answer.connection.transport if answer.connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _COUNT)


def _problem(status: int) -> Problem:
    match status:
        case 401 | 403:
            return Problem.FORBIDDEN
        case 404:
            return Problem.NOT_FOUND
        case 410:
            return Problem.EXPIRED
        case 408 | 429:
            return Problem.SERVER_ERROR
        case _:
            return Problem.SERVER_ERROR if status >= 500 else Problem.MALFORMED
