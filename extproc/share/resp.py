"""Resp: one connection to a Valkey or Redis, in its protocol, RESP3.

    dial -> Connection        ask -> answer        publish -> nobody waits        what others publish -> heard

The same connection publishes and is subscribed, as RESP3 allows: our own message and the answer to it come in
one piece. A message costs one write, and less than one wake-up of the loop where several come at once: no
task, timer or lock, which is why no client library does this (docs/decisions/0043-cheap-store-link.md). The
bytes are parsed by libvalkey.

Never: an exception for what a server sends; more than `_UNREAD_BYTES_MAX` of an unfinished message.
Called by: share.store. Source: https://valkey.io/topics/protocol
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Any

import libvalkey

from extproc.share import link

__all__ = ["Address", "BrokenError", "Connection", "RefusedError", "TooOldError", "dial"]

Address = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""

_READ_BYTES = 64 * 1024
_UNREAD_BYTES_MAX = 64 * 1024 * 1024  # a server cuts off a subscriber at less
_CODE_CHARS_MAX = 32  # it is logged
_UNKNOWN_COMMAND = "err unknown command"
_MORE = object()  # the rest of a message has not come


class RefusedError(ConnectionError):
    """The server answered with an error; `code` is its first word: what follows might quote a secret."""

    def __init__(self, text: str) -> None:
        """`text`: as the server sent it; only its first word is kept."""
        first = text.split(" ", 1)[0]
        self.is_unknown_command = text.lower().startswith(_UNKNOWN_COMMAND)
        is_code = len(first) <= _CODE_CHARS_MAX and first.isascii() and first.isalpha()
        self.code = first if is_code else "ERR"
        super().__init__(self.code)


class TooOldError(ConnectionError):
    """The server does not speak RESP3; the text says what does."""

    def __init__(self) -> None:
        """The same text always."""
        super().__init__("needs RESP3: Valkey, or Redis 6.0 or later")


class BrokenError(ConnectionError):
    """What came is not RESP, or answers nothing that was asked."""


class Connection(asyncio.BufferedProtocol):
    """One connection. `gone` ends when it is lost, with the reason; `spoke`: whether a message came lately,
    reset by who looks.
    """

    def __init__(self, heard: link.Heard) -> None:
        """`heard`: takes what is published on the channel that was subscribed to."""
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.spoke = False
        self._heard = heard
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._reader = libvalkey.Reader(replyError=RefusedError, notEnoughData=_MORE)
        self._unread_bytes = 0  # of a message that has not ended, with what the reader made of it already
        self._transport: asyncio.Transport | None = None
        # what answers are for, in order; None: a message that was published
        self._asked: deque[asyncio.Future[Any] | None] = deque()
        self._subscribing: asyncio.Future[Any] | None = None

    @property
    def unsent_bytes(self) -> int:
        """Written, and not yet taken by the system."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    async def ask(self, *words: str) -> Any:
        """The answer to a command. Raises: RefusedError, ConnectionError."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send(words, answer)
        return await answer

    async def subscribe(self, channel: str) -> None:
        """Hear what is published on the channel from now on. Raises: RefusedError, ConnectionError."""
        self._subscribing = asyncio.get_running_loop().create_future()
        self._send(("SUBSCRIBE", channel), self._subscribing)
        await self._subscribing

    def publish(self, channel: str, data: bytes) -> None:
        """Publish; a refusal ends the connection."""
        self._send(("PUBLISH", channel, data), None)

    def close(self) -> None:
        """End it at once."""
        self._end(ConnectionResetError("closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As in asyncio."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (what a stream's protocol gets)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """As in asyncio."""
        self._end(exc or ConnectionResetError("closed by the server"))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (asyncio's signature)
        """As in asyncio: one buffer for good, where a stream would make one of 256 KB for each read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """As in asyncio."""
        reader = self._reader
        reader.feed(bytes(self._buffer[:nbytes]))
        self._unread_bytes += nbytes
        while True:
            try:
                answer = reader.gets()
            except (libvalkey.LibvalkeyError, ValueError, TypeError):  # the last: a list as the key of a map
                self._end(BrokenError("not RESP"))
                return
            if answer is _MORE:
                break
            self._unread_bytes = reader.len()
            self._take(answer)
        if self._unread_bytes > _UNREAD_BYTES_MAX:
            self._end(BrokenError("a message without an end"))

    def _take(self, answer: Any) -> None:
        if type(answer) is list and answer and type(answer[0]) is bytes:
            # A push: the reader does not tell it from a list, but nothing that is asked here is answered by a
            # list of words. Of pushes only the word that we are subscribed stands where an answer would.
            if answer[0] == b"message" and len(answer) == 3 and type(answer[2]) is bytes:
                self.spoke = True
                self._heard(answer[2])
            if answer[0] != b"subscribe" or not self._asked or self._asked[0] is not self._subscribing:
                return
        if not self._asked:
            self._end(BrokenError("an answer to nothing"))
            return
        asked = self._asked.popleft()
        if isinstance(answer, RefusedError):
            if asked is None or asked.done():
                self._end(answer)
            else:
                asked.set_exception(answer)
        elif asked is not None and not asked.done():
            asked.set_result(answer)

    def _send(self, words: tuple[str | bytes, ...], answer: asyncio.Future[Any] | None) -> None:
        if self._transport is None or self.gone.done():
            raise ConnectionResetError("not connected")
        self._asked.append(answer)
        self._transport.write(libvalkey.pack_command(words))

    def _end(self, reason: Exception) -> None:
        if self._transport is not None:
            self._transport.abort()
        if not self.gone.done():
            self.gone.set_exception(reason)
            self.gone.exception()  # seen, though nobody may wait
        while self._asked:
            asked = self._asked.popleft()
            if asked is not None and not asked.done():
                asked.set_exception(reason)


async def dial(
    address: Address,
    user: str | None,
    password: str | None,
    context: ssl.SSLContext | None,
    heard: link.Heard,
) -> Connection:
    """A connection that may be used. Raises: OSError (RefusedError and TooOldError among them)."""
    loop = asyncio.get_running_loop()
    if isinstance(address, str):
        _, made = await loop.create_unix_connection(lambda: Connection(heard), address)
    else:
        host, port = address
        _, made = await loop.create_connection(lambda: Connection(heard), host, port, ssl=context)
    try:
        words = ["HELLO", "3"]
        if user is not None or password is not None:
            words += ["AUTH", user or "default", password or ""]
        try:
            await made.ask(*words)
        except RefusedError as error:
            if error.is_unknown_command or error.code == "NOPROTO":  # HELLO, or the 3 behind it
                raise TooOldError from error
            raise
    except BaseException:
        made.close()
        raise
    return made
