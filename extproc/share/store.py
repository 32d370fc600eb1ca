"""Store: a link through publish and subscribe of a Valkey or Redis.

    send -> publish        subscribe -> heard

One connection does both, on one channel. A server sends our own messages back; as we send one at least twice
a second, hearing none for `_DEAF_S` means that the way is blocked, whatever TCP says, and the connection is
made anew, after a time that doubles and jitters. Of a Cluster any node will do, since plain channels are
carried to all nodes. Sentinels are asked for the primary at every connect, and now and then whether it still
is: the old one may live on, cut off from them, and some would stay with it.

Never: a key stored; a caller that waits; more than `_BUFFER_BYTES_MAX` waiting, what comes then is dropped,
counted. Called by: needs (makes), share.sharing. Source: https://valkey.io/topics/pubsub
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from extproc import config
from extproc.share import link, resp

__all__ = ["StoreLink"]

_log = logging.getLogger("kvring")

_BUFFER_BYTES_MAX = 8 * 1024 * 1024
_BACKOFF_S = (0.1, 2.0)
_DEAF_S = 2.0
_SENTINEL_S = 2.0  # between two questions to Sentinels
_CLOSE_S = 0.5
_PORT_MAX = 65535
_PASSWORDS = ("password_file", "sentinel_password_file")
_PEM = ("ca_file", "cert_file", "key_file")
_PORTS = {"sentinel": 26379, "server": 6379}


class StoreLink:
    """The link of one process."""

    def __init__(self, settings: config.Store, chance: Callable[[], float]) -> None:
        """`chance`: uniform in [0, 1)."""
        self.state = link.State("store")
        self._settings = settings
        self._chance = chance
        self._connection: resp.Connection | None = None
        self._turn = int(64 * chance())  # which host of several is tried: not the same by all replicas

    def check_files(self) -> None:
        """Raises: config.ConfigError, with the key, if what is in the files can't be used; each connect reads
        them anew.
        """
        given = self._settings
        for key in _PASSWORDS:
            try:
                _secret(getattr(given, key))
            except ValueError as error:
                raise config.ConfigError(f"store.{key}: {getattr(given, key)} is not text") from error
        try:
            _context(given)
        except (OSError, ValueError) as error:  # OSError: what ssl raises, too
            named = ", ".join(f"{key} {path}" for key in _PEM if (path := getattr(given, key)) is not None)
            raise config.ConfigError(
                f"store: {named}: not certificates, or not their key: {error}"
            ) from error

    async def run(self, heard: link.Heard, joined: Callable[[], None]) -> None:
        """As in `link.Link`."""
        clock = asyncio.get_running_loop().time
        wait_s = _BACKOFF_S[0]
        while True:
            began_s = clock()
            try:
                await self._session(heard, joined)
            except* (OSError, ValueError) as group:  # ValueError: a password file that is no text
                problem = _problem(group)
            was_connected, self.state.connected = self.state.connected, False
            self.state.carries = False
            # One that lets us in and turns us out again, as where we may not publish, is no better than none.
            if was_connected and clock() - began_s > _BACKOFF_S[1]:
                wait_s = _BACKOFF_S[0]
            if problem != self.state.problem or was_connected:
                _log.warning(
                    "the store is not reached: choosing by what is known here", extra={"problem": problem}
                )
            self.state.problem = problem
            await asyncio.sleep(wait_s * (0.5 + self._chance()))
            wait_s = min(2 * wait_s, _BACKOFF_S[1])
            self._turn += 1

    def send(self, data: bytes) -> None:
        """As in `link.Link`."""
        connection = self._connection
        if connection is None or connection.unsent_bytes > _BUFFER_BYTES_MAX:
            self.state.dropped += 1
            return
        with contextlib.suppress(ConnectionError):  # it was lost in this turn of the loop
            connection.publish(self._settings.channel, data)

    async def close(self) -> None:
        """As in `link.Link`."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._connection.ask("PING")  # answered after all that was published

    async def _session(self, heard: link.Heard, joined: Callable[[], None]) -> None:
        """Carry over one connection until it fails. Raises: OSError, ValueError; never returns."""
        channel = self._settings.channel
        async with contextlib.AsyncExitStack() as stack:
            at = await self._find()
            made = await self._dial(at, self._settings.user, self._settings.password_file, heard)
            stack.callback(made.close)
            async with asyncio.timeout(self._settings.timeout_s):
                await made.subscribe(channel)
                await made.ask("PING")
            self._connection = made
            stack.callback(self._forget)
            self.state.connected = self.state.carries = True
            self.state.connects += 1
            if self.state.problem or self.state.connects == 1:
                _log.info("sharing through the store", extra={"channel": channel})
            self.state.problem = ""
            joined()
            async with asyncio.TaskGroup() as group:
                group.create_task(_listens(made))
                if self._settings.sentinel is not None:
                    group.create_task(self._stays(at))

    def _forget(self) -> None:
        self._connection = None

    @property
    def _hosts(self) -> list[str]:
        """Of the URL, the one whose turn it is first."""
        listed = self._settings.url.partition("://")[2].rstrip("/").split(",")
        turn = self._turn % len(listed)
        return listed[turn:] + listed[:turn]

    async def _find(self) -> resp.Address:
        """Where the server is. Raises: OSError, ValueError."""
        if self._settings.url.startswith("unix://"):
            return self._settings.url.removeprefix("unix://")
        if self._settings.sentinel is None:
            return _host(self._hosts[0], _PORTS["server"])
        problem: OSError | ValueError = resp.RefusedError("NOPRIMARY")
        for host in self._hosts:
            try:
                found = await self._primary(_host(host, _PORTS["sentinel"]))
            except (OSError, ValueError) as error:  # ValueError: no host, or what it names is no address
                problem = error
            else:
                if found is not None:
                    return found
        raise problem

    async def _primary(self, sentinel: tuple[str, int]) -> resp.Address | None:
        """Where the primary is, as one Sentinel has it; None if it knows none that is well."""
        settings = self._settings
        asked = await self._dial(sentinel, settings.sentinel_user, settings.sentinel_password_file, _ignore)
        try:
            async with asyncio.timeout(settings.timeout_s):
                watched = await asked.ask("SENTINEL", "MASTERS")
        finally:
            asked.close()
        for one in watched if isinstance(watched, list) else ():
            match one:
                case {b"name": bytes(name), b"ip": bytes(ip), b"port": bytes(port), b"flags": bytes(flags)}:
                    if name.decode(errors="replace") == settings.sentinel and b"_down" not in flags:
                        return _address(ip, port)
        return None

    async def _stays(self, at: resp.Address) -> None:
        """Fail once Sentinels name another primary than the one at `at`."""
        while True:
            await asyncio.sleep(_SENTINEL_S)
            try:
                named = await self._find()
            except (OSError, ValueError):
                continue  # who is connected needs no Sentinel
            if named != at:
                raise ConnectionResetError("the primary is another one now")

    async def _dial(
        self, at: resp.Address, user: str | None, password_file: str | None, heard: link.Heard
    ) -> resp.Connection:
        """A connection to a server or Sentinel. Raises: OSError, ValueError."""
        password = _secret(password_file)
        spoken = _context(self._settings)
        async with asyncio.timeout(self._settings.timeout_s):
            return await resp.dial(at, user, password, spoken, heard)


def _context(settings: config.Store) -> ssl.SSLContext | None:
    """What TLS to the store needs, from its files; None without TLS. Raises: OSError, ValueError."""
    if not settings.url.startswith(("valkeys://", "rediss://")):
        return None
    made = ssl.create_default_context(cafile=settings.ca_file)
    if settings.cert_file is not None:
        # an empty password: a key that has one is refused, where OpenSSL would ask at the terminal and wait
        made.load_cert_chain(settings.cert_file, settings.key_file, password="")
    return made


def _secret(path: str | None) -> str | None:
    """The password in the file. Raises: OSError, ValueError if it is not text."""
    return None if path is None else Path(path).read_text(encoding="utf-8").strip()


async def _listens(made: resp.Connection) -> None:
    """Fail once the connection is lost, or nothing comes through it."""
    while True:
        made.spoke = False
        await asyncio.wait({made.gone}, timeout=_DEAF_S)
        if made.gone.done():
            made.gone.result()
        if not made.spoke:
            raise TimeoutError("not even our own messages come")


def _problem(group: BaseExceptionGroup[Exception]) -> str:
    """What went wrong, by the server's word for it or by kind: a message might quote what is secret."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    match found:
        case resp.RefusedError():
            return found.code
        case resp.TooOldError():
            return str(found)
        case _:
            return type(found).__name__


def _ignore(_data: bytes) -> None:
    """Nothing is subscribed to."""


def _host(text: str, port: int) -> tuple[str, int]:
    host, colon, given = text.rpartition(":")
    if not colon or "]" in given:
        return text.strip("[]"), port
    return host.strip("[]"), int(given)


def _address(ip: bytes, port: bytes) -> tuple[str, int]:
    """As a Sentinel tells it. Raises: ValueError."""
    if not 0 < int(port) <= _PORT_MAX:
        raise ValueError("no port")
    return ip.decode(), int(port)
