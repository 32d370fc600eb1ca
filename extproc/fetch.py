"""Fetch: GETs from model servers, cheap enough for hundreds a second.

A scrape of 256 endpoints each second must not cost more than a tenth of a core. A general HTTP client spends
0.4 ms of CPU on a GET of 60 KB, this one 0.1 ms: a fixed request, one connection kept open, one receive
buffer for all connections, and of HTTP/1.1 only what answers to such a request can hold (content-length,
chunks, or all up to the end; interim answers are skipped).

Never: more than `body_bytes_max` bytes kept; a wait without end; two requests on a connection at a time; TLS,
redirects, content codings, names that would have to be resolved.
Called by: scrape, endpoints.health.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from dataclasses import dataclass

from extproc import __version__

__all__ = ["Answer", "Connection", "FetchError", "fetch"]

_HEAD_BYTES_MAX = 64 * 1024
_BODY_BYTES_MAX = 8 * 1024 * 1024
_SCRATCH = memoryview(bytearray(256 * 1024))  # see _Protocol.get_buffer
_OURS = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes


class FetchError(Exception):
    """No answer came. `problem`: "refused" (nobody listens, or reset), "timeout", "malformed", "unreachable"
    or "no descriptors" (our own limit: says nothing about the other side). `nobody`: nobody listens there.
    """

    def __init__(self, problem: str, *, nobody: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.nobody = nobody


class Connection:
    """A connection to one address, opened when needed and kept open."""

    __slots__ = ("_address", "_body_bytes_max", "_keep", "_protocol", "_requests")

    def __init__(self, address: str, *, keep: bool = True, body_bytes_max: int = _BODY_BYTES_MAX) -> None:
        """Args: address: "ip:port", IPv6 in brackets; keep: False opens a new one for every request."""
        self._address = address
        self._keep = keep
        self._body_bytes_max = body_bytes_max
        self._protocol: _Protocol | None = None
        self._requests: dict[str, bytes] = {}  # by path, of which there are a few

    async def get(self, path: str, timeout_s: float) -> Answer:
        """The answer to GET `path`; connecting and answering take `timeout_s` each at most.

        Raises: FetchError.
        """
        try:
            return await self._get(path, timeout_s)
        except TimeoutError:
            raise FetchError("timeout") from None
        except _MalformedError:
            raise FetchError("malformed") from None
        except (ConnectionError, EOFError) as error:
            raise FetchError("refused", nobody=isinstance(error, ConnectionRefusedError)) from None
        except OSError as error:
            raise FetchError("no descriptors" if error.errno in _OURS else "unreachable") from None
        finally:
            protocol = self._protocol
            if protocol is not None and not (self._keep and protocol.reusable):
                self.close()

    def close(self) -> None:
        """Drop the connection; the next request opens another."""
        protocol, self._protocol = self._protocol, None
        if protocol is not None and protocol.transport is not None:
            protocol.transport.abort()

    async def _get(self, path: str, timeout_s: float) -> Answer:
        request = self._requests.get(path)
        if request is None:
            lines = [f"GET {path} HTTP/1.1", f"host: {self._address}", f"user-agent: kvring/{__version__}"]
            lines += ["accept: */*", *([] if self._keep else ["connection: close"]), "", ""]
            request = self._requests[path] = "\r\n".join(lines).encode()
        if self._protocol is not None:  # it may have been closed while it was idle: then try again
            with contextlib.suppress(ConnectionError, EOFError):
                return await self._protocol.ask(request, timeout_s)
            self.close()
        host, _, port = self._address.rpartition(":")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, self._protocol = await loop.create_connection(
                lambda: _Protocol(loop, self._body_bytes_max), host.strip("[]"), int(port)
            )
        return await self._protocol.ask(request, timeout_s)


async def fetch(address: str, path: str, timeout_s: float) -> Answer:
    """The answer to GET `path` at "ip:port" over a connection of its own. Raises: FetchError."""
    return await Connection(address, keep=False).get(path, timeout_s)


class _MalformedError(ValueError):
    """Not HTTP/1.1, or too much of it."""


class _Protocol(asyncio.BufferedProtocol):
    """One connection: a request out, an answer in.

    One timer serves many requests: when it goes off early for the current one, it is set again. A timer for
    each would cost more than reading its answer.
    """

    __slots__ = (
        "_alarm", "_answer", "_body_bytes_max", "_due_s", "_ended", "_loop", "_received", "_scanned",
        "reusable", "transport",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, body_bytes_max: int) -> None:
        self._loop = loop
        self._body_bytes_max = body_bytes_max
        self._received = bytearray()
        self._answer: asyncio.Future[Answer] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._ended = False
        self._scanned = 0  # of a chunked body, how far it was looked through
        self.reusable = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (asyncio's)
        # One for all connections: the loop reads into it and calls buffer_updated in one step.
        return _SCRATCH

    def buffer_updated(self, nbytes: int) -> None:
        self._received += _SCRATCH[:nbytes]
        self._look()

    def eof_received(self) -> bool:
        self._ended = True
        self._look()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self.reusable = False
        self._look()
        self._fail(exc or EOFError())
        if self._alarm is not None:
            self._alarm.cancel()

    async def ask(self, request: bytes, timeout_s: float) -> Answer:
        """The answer to `request`. Raises: OSError (TimeoutError among them), EOFError, _MalformedError."""
        if self._ended or self.transport is None or self._received:
            raise EOFError
        self.reusable = False
        self._scanned = 0
        self._answer = self._loop.create_future()
        self._due_s = self._loop.time() + timeout_s
        if self._alarm is None:
            self._alarm = self._loop.call_at(self._due_s, self._ring)
        self.transport.write(request)
        return await self._answer

    def _ring(self) -> None:
        """The timer went off."""
        self._alarm = None
        if self._answer is None or self._answer.done():
            return
        if self._loop.time() >= self._due_s:
            self._fail(TimeoutError())
        else:
            self._alarm = self._loop.call_at(self._due_s, self._ring)

    def _look(self) -> None:
        """See whether the answer is whole."""
        if self._answer is None or self._answer.done():
            return
        try:
            answer = self._whole()
        except _MalformedError as error:
            self._fail(error)
            return
        if answer is not None:
            self._received.clear()
            self._answer.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _whole(self) -> Answer | None:
        received = self._received
        end = received.find(b"\r\n\r\n", 0, _HEAD_BYTES_MAX)
        if end < 0:
            if len(received) >= _HEAD_BYTES_MAX:
                raise _MalformedError
            return None
        status, headers = _head(bytes(received[:end]))
        start = end + 4
        if 100 <= status < 200:
            del received[:start]
            return self._whole()
        if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
            body = self._chunks(start)
        elif status in (204, 304):
            body = b""
        elif b"content-length" in headers:
            size = _number(headers[b"content-length"], 10)
            self._check(size)
            body = bytes(received[start : start + size]) if len(received) >= start + size else None
        else:
            self._check(len(received) - start)
            body = bytes(received[start:]) if self._ended else None
        if body is None:
            return None
        self.reusable = not self._ended and headers.get(b"connection", b"").lower() != b"close"
        return Answer(status, body)

    def _chunks(self, start: int) -> bytes | None:
        """The body in chunks that begins at `start`; None while it is not whole."""
        received = self._received
        at = max(start, self._scanned)
        while True:
            line_end = received.find(b"\r\n", at, at + 1024)
            if line_end < 0:
                if len(received) - at >= 1024:
                    raise _MalformedError
                return None
            size = _number(bytes(received[at:line_end]).partition(b";")[0].strip(), 16)
            self._check(line_end - start + size)
            after = line_end + 2 + size
            if size == 0:
                return self._joined(start) if received.find(b"\r\n", line_end + 2) >= 0 else None
            if len(received) < after + 2:
                return None
            self._scanned = at = after + 2

    def _joined(self, at: int) -> bytes:
        received = self._received
        parts: list[bytes] = []
        while True:
            line_end = received.find(b"\r\n", at)
            size = _number(bytes(received[at:line_end]).partition(b";")[0].strip(), 16)
            if size == 0:
                return b"".join(parts)
            parts.append(bytes(received[line_end + 2 : line_end + 2 + size]))
            at = line_end + 4 + size

    def _check(self, body_bytes: int) -> None:
        if body_bytes > self._body_bytes_max:
            raise _MalformedError


def _head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise _MalformedError
    pairs = (line.partition(b":") for line in lines)
    return _number(words[1], 10), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _number(digits: bytes, base: int) -> int:
    if not digits or len(digits) > 12 or not digits.isalnum():
        raise _MalformedError
    try:
        return int(digits, base)
    except ValueError:
        raise _MalformedError from None
