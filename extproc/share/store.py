"""Store: a link through publish and subscribe of a Valkey or Redis.

    send -> queue -> publish        subscribe -> heard

One connection publishes, one is subscribed, both to one channel. A server sends our own messages back; as we
send one at least twice a second, hearing none for `_DEAF_S` means that the way is blocked, whatever TCP says,
and both connections are made anew, after a time that doubles and jitters. Of a Cluster any node will do,
since plain channels are carried to all nodes. Sentinels are asked for the primary at every connect, and now
and then whether it still is: the old one may live on, cut off from them, and some would stay with it.

Never: a key stored; a caller that waits; more than `_QUEUE_BYTES_MAX` waiting, the oldest leave then,
counted. Called by: app (makes), share.sharing. Source: https://valkey.io/topics/pubsub
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import valkey.asyncio
import valkey.asyncio.sentinel
from valkey.exceptions import ValkeyError

from extproc import config
from extproc.share import link

__all__ = ["StoreLink"]

_log = logging.getLogger("kvring")

_QUEUE_BYTES_MAX = 8 * 1024 * 1024
_BACKOFF_S = (0.1, 2.0)
_DEAF_S = 2.0
_SENTINEL_S = 2.0  # between two questions to Sentinels
_CLOSE_S = 0.5
_PORTS = {"sentinel": 26379, "server": 6379}


class StoreLink:
    """The link of one process."""

    def __init__(self, settings: config.Store, chance: Callable[[], float]) -> None:
        """`chance`: uniform in [0, 1)."""
        self.state = link.State("store")
        self._settings = settings
        self._chance = chance
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._wanted = asyncio.Event()
        self._sent = asyncio.Event()  # nothing waits
        self._turn = int(64 * chance())  # which host of several is tried: not the same by all replicas

    async def run(self, heard: link.Heard, joined: Callable[[], None]) -> None:
        """As in `link.Link`."""
        wait_s = _BACKOFF_S[0]
        while True:
            try:
                await self._session(heard, joined)
            except* (ValkeyError, OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as group:
                # ValueError: a password file that is no text
                problem = _problem(group)
            was_connected, self.state.connected = self.state.connected, False
            self._clear()
            if was_connected:
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
        if not self.state.connected:
            self.state.dropped += 1
            return
        self._queue.append(data)
        self._queued_bytes += len(data)
        while self._queued_bytes > _QUEUE_BYTES_MAX:
            self._queued_bytes -= len(self._queue.popleft())
            self.state.dropped += 1
        self.state.waiting = len(self._queue)
        self._sent.clear()
        self._wanted.set()

    async def close(self) -> None:
        """As in `link.Link`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._sent.wait()

    def _clear(self) -> None:
        self.state.dropped += len(self._queue)
        self._queue.clear()
        self._queued_bytes = self.state.waiting = 0
        self._sent.set()

    async def _session(self, heard: link.Heard, joined: Callable[[], None]) -> None:
        """Carry over one pair of connections until one of them fails."""
        channel = self._settings.channel
        async with contextlib.AsyncExitStack() as stack:
            client = self._client(stack)
            stack.push_async_callback(_close, client)
            listener = client.pubsub(ignore_subscribe_messages=True)
            stack.push_async_callback(_close, listener)
            async with asyncio.timeout(2 * self._settings.timeout_s):
                await listener.subscribe(channel)
                await client.ping()
            self.state.connected = True
            self.state.connects += 1
            if self.state.problem or self.state.connects == 1:
                _log.info("sharing through the store", extra={"channel": channel})
            self.state.problem = ""
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(listener, heard))
                group.create_task(self._publish(client, channel))
                if self._settings.sentinel is not None:
                    group.create_task(_stays(client.connection_pool))
                joined()

    async def _listen(self, listener: Any, heard: link.Heard) -> None:
        while True:
            # block=True would wait for `socket_timeout`, which is for answers: we may be silent for longer
            message = await listener.parse_response(block=False, timeout=_DEAF_S)
            match message:
                case [b"message", _, bytes(data)]:
                    heard(data)
                case None:
                    raise TimeoutError("not even our own messages come")

    async def _publish(self, client: Any, channel: str) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._queue:
                data = self._queue.popleft()
                self._queued_bytes -= len(data)
                self.state.waiting = len(self._queue)
                await client.publish(channel, data)
                self.state.sent += 1
            self._sent.set()

    def _client(self, stack: contextlib.AsyncExitStack) -> Any:
        """A client; `stack` ends what it needs beside itself."""
        settings = self._settings
        kwargs: dict[str, Any] = {
            "username": settings.user,
            "password": _secret(settings.password_file),
            "socket_timeout": settings.timeout_s,
            "socket_connect_timeout": settings.timeout_s,
            "lib_name": None,  # asking to be called by it needs a right that nothing else does
            "lib_version": None,
        }
        if settings.url.startswith("unix://"):
            return valkey.asyncio.Valkey(unix_socket_path=settings.url.removeprefix("unix://"), **kwargs)
        scheme, _, rest = settings.url.partition("://")
        if scheme.endswith("s"):
            kwargs |= {
                "ssl": True,
                "ssl_ca_certs": settings.ca_file,
                "ssl_certfile": settings.cert_file,
                "ssl_keyfile": settings.key_file,
                "ssl_check_hostname": True,
            }
        kind = "sentinel" if settings.sentinel is not None else "server"
        hosts = [_host(each, _PORTS[kind]) for each in rest.rstrip("/").split(",")]
        if settings.sentinel is not None:
            asked = kwargs | {
                "username": settings.sentinel_user,
                "password": _secret(settings.sentinel_password_file),
            }
            watch: Any = valkey.asyncio.sentinel.Sentinel(  # type: ignore[no-untyped-call]
                hosts, sentinel_kwargs=asked, **kwargs
            )
            for one in watch.sentinels:
                stack.push_async_callback(_close, one)
            return watch.master_for(settings.sentinel)
        host, port = hosts[self._turn % len(hosts)]
        return valkey.asyncio.Valkey(host=host, port=port, **kwargs)


def _host(text: str, port: int) -> tuple[str, int]:
    host, colon, given = text.rpartition(":")
    if not colon or "]" in given:
        return text.strip("[]"), port
    return host.strip("[]"), int(given)


def _secret(path: str | None) -> str | None:
    return None if path is None else Path(path).read_text(encoding="utf-8").strip()


def _problem(group: BaseExceptionGroup[Exception]) -> str:
    """What went wrong, by kind: a message might quote what should not be shown.

    What the library wraps counts: `SSLCertVerificationError` says more than `ConnectionError`.
    """
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    while isinstance(inner := found.__cause__ or found.__context__, Exception):
        found = inner
    return type(found).__name__


async def _stays(pool: Any) -> None:
    """Fail once Sentinels name another primary than the one that `pool` leads to."""
    at = pool.master_address
    while True:
        await asyncio.sleep(_SENTINEL_S)
        try:
            named = await pool.sentinel_manager.discover_master(pool.service_name)
        except (ValkeyError, OSError, TimeoutError):
            continue  # who is connected needs no Sentinel
        if named != at:
            raise ConnectionResetError("the primary is another one now")


async def _close(client: Any) -> None:
    with contextlib.suppress(ValkeyError, OSError, TimeoutError):
        await client.aclose()
