"""Target: the picker that is asked, and how to reach it.

Each check gets a connection of its own, so that what one breaks is whole for the next. TLS goes through a
tunnel in this process: gRPC for Python can't leave a certificate unverified, as gateways do, and says little
about why a handshake failed.

Called by: run, checks. Never: a wait longer than `timeout_s` for one thing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from extproc.bootstrap.address import Address
from extproc.conformance import stream

__all__ = ["Settings", "Target", "UnreachableError", "reached"]

_PIECE_BYTES = 64 * 1024
_MESSAGE_BYTES_MAX = 64 * 1024 * 1024


class UnreachableError(Exception):
    """No picker can be asked at the address; the text says why."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user said.

    `tls`: None for plaintext. `health`: where the health service is, None for where it is by convention.
    `pool`: all addresses of the pool, empty if not told. `model`: named in requests. `timeout_s`: how long
    one answer may take [s]. `hooks`: whether the picker is said to obey the hooks of the gateways' tests.
    """

    address: Address
    tls: ssl.SSLContext | None = None
    health: Address | None = None
    pool: tuple[str, ...] = ()
    model: str = "conformance-fake-model"
    timeout_s: float = 5.0
    hooks: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """`dial`: what gRPC is told to connect to. `pool`: endpoints that are known, told or learnt; `pool_told`:
    whether they were told, and are all.
    """

    settings: Settings
    dial: str
    pool: tuple[str, ...] = ()
    pool_told: bool = False

    @property
    def timeout_s(self) -> float:
        """How long one answer may take [s]."""
        return self.settings.timeout_s

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[stream.Connection]:
        """A connection of its own. Streams still open at the end are cancelled."""
        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.default_authority", str(self.settings.address).removeprefix("unix:")),
            ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
        ]
        if self.settings.address.path:
            options[2] = ("grpc.default_authority", "localhost")
        async with grpc.aio.insecure_channel(self.dial, options=options) as channel:
            opened = stream.Connection(channel, self.timeout_s)
            try:
                yield opened
            finally:
                opened.close()


@contextlib.asynccontextmanager
async def reached(settings: Settings) -> AsyncIterator[Target]:
    """The target, once a connection to it stands. Raises: UnreachableError."""
    where = settings.address
    await _knock(settings)
    async with contextlib.AsyncExitStack() as stack:
        dial = str(where)
        if settings.tls is not None:
            dial = await stack.enter_async_context(_tunnel(settings))
        found = Target(settings, dial, settings.pool, bool(settings.pool))
        async with found.connect() as connection:
            try:
                async with asyncio.timeout(settings.timeout_s):
                    await connection.ready()
            except TimeoutError:
                hint = "" if settings.tls else "; if it speaks TLS: --tls or --insecure-tls"
                raise UnreachableError(
                    f"{where} takes connections but does not speak gRPC (HTTP/2){hint}"
                ) from None
        yield found


async def _knock(settings: Settings) -> None:
    try:
        async with asyncio.timeout(settings.timeout_s):
            _, writer = await _dialled(settings)
    except ssl.SSLCertVerificationError as error:
        said = f"certificate not verified: {error.verify_message or error}"
        raise UnreachableError(
            f"{settings.address}: {said}; trust it with --ca FILE, or --insecure-tls"
        ) from error
    except ssl.SSLError as error:
        raise UnreachableError(f"{settings.address}: no TLS there: {error.reason or error}") from error
    except TimeoutError:
        raise UnreachableError(
            f"{settings.address} does not answer within {settings.timeout_s:g} s"
        ) from None
    except OSError as error:
        # asyncio's text is about its own call; a name that is not known has no number of the system's
        number = error.errno or 0
        said = os.strerror(number) if number > 0 else str(error.strerror or error)
        raise UnreachableError(f"{settings.address}: {said}") from error
    writer.transport.abort()


async def _dialled(settings: Settings) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    where, context = settings.address, settings.tls
    if where.path:
        return await asyncio.open_unix_connection(
            where.path, ssl=context, server_hostname="localhost" if context else None
        )
    return await asyncio.open_connection(
        where.host, where.port, ssl=context, server_hostname=where.host if context else None
    )


@contextlib.asynccontextmanager
async def _tunnel(settings: Settings) -> AsyncIterator[str]:
    """A socket of this machine whose bytes go to the target under TLS."""
    open_now: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            open_now.add(task)
            task.add_done_callback(open_now.discard)
        ends = [writer]
        try:
            far_reader, far_writer = await _dialled(settings)
            ends.append(far_writer)
            await asyncio.gather(_pour(reader, far_writer), _pour(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # either side went away, or the run is over
        finally:
            for end in ends:
                end.transport.abort()  # a farewell under TLS may take long, and nobody reads it

    with tempfile.TemporaryDirectory(prefix="kvring-") as directory:
        path = Path(directory) / "tunnel"
        served = await asyncio.start_unix_server(carry, path)
        try:
            yield f"unix:{path}"
        finally:
            served.close()
            for task in list(open_now):
                task.cancel()
            await asyncio.gather(*open_now, return_exceptions=True)


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes until either side ends; then the other one ends too."""
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()
