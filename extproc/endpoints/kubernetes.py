"""Kubernetes: a copy of one collection of objects, kept in step by a list and watches.

    list (pages)  ->  replaces the copy: what was deleted while nobody looked must go
    watch         ->  from the last version seen; events change the copy, bookmarks only the version
    clean close   ->  watch again from there
    410, as status or as event; any other fault  ->  the copy stands (stale beats empty), wait, list again

A connection can die without a word: each watch has an end of its own (`timeoutSeconds`, varied by chance so
that replicas do not come at once), a silence past it is a fault, and TCP keepalive finds most of them sooner.

Never: half a list in the copy; an event's line split or cut; a wait that all replicas share.
Called by: slices, inference_pool. Source: Kubernetes API concepts, "Efficient detection of changes".
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import aiohttp
import msgspec

from extproc.endpoints import api_server, reply, source
from extproc.endpoints.source import FaultError, Problem

__all__ = ["Metadata", "Mirror", "Query", "Resource", "paced"]

_GONE = 410


@dataclass(frozen=True, slots=True)
class Query:
    """Which objects: the collection's path, and selectors as the API writes them ("" for all)."""

    path: str
    label_selector: str = ""
    field_selector: str = ""

    @property
    def parameters(self) -> dict[str, str]:
        """The query string of every request."""
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {key: value for key, value in selectors.items() if value}


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """What is needed of any object's metadata."""

    name: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class Resource(msgspec.Struct, frozen=True):
    """Any object; kinds add the fields they need, and others are not kept."""

    metadata: Metadata


class _PageMetadata(msgspec.Struct, frozen=True):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    further: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, frozen=True):
    metadata: _PageMetadata
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    reason: str = ""


_R = TypeVar("_R", bound=Resource)


class Mirror(Generic[_R]):
    """The copy of one collection: `objects` by name, `synced` once a list has filled it."""

    def __init__(
        self,
        access: api_server.Access,
        query: Query,
        kind: type[_R],
        changed: Callable[[], None],
        contact: source.Contact,
        clock: source.Clock,
        chance: Callable[[], float],
    ) -> None:
        """`changed` is called after every change of `objects`; `contact` learns how it goes."""
        self._access = access
        self._query = query
        self._decoder = msgspec.json.Decoder(kind)
        self._changed = changed
        self._contact = contact
        self._clock = clock
        self._chance = chance
        self._backoff = source.Backoff(access.retry_min_s, access.retry_max_s, chance)
        self._token = api_server.Token(access, clock)
        self.objects: dict[str, _R] = {}
        self.synced = False

    async def run(self) -> None:
        """Keep in step until cancelled."""
        while True:
            started_s = self._clock()
            try:
                await self._follow()
            except FaultError as fault:
                self._contact.failed(fault.problem, str(fault))
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._contact.failed(Problem.UNREACHABLE, type(error).__name__)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._contact.failed(Problem.MALFORMED, str(error))
            if self._clock() - started_s > self._access.retry_max_s:
                self._backoff.reset()  # that had gone well for long
            await asyncio.sleep(self._backoff.next_s())

    async def _follow(self) -> None:
        """List, then watch until something is wrong. Raises: FaultError, and what aiohttp and msgspec do."""
        # A session of its own for each try: names, certificates and connections are all had anew.
        async with api_server.session(self._access) as session:
            version = await self._list(session)
            while True:
                started_s, before = self._clock(), version
                version = await self._watch(session, version)
                if version == before and self._clock() - started_s < self._access.watch_timeout_s / 2:
                    await asyncio.sleep(self._backoff.next_s())  # closed early with nothing said
                else:
                    self._backoff.reset()

    async def _list(self, session: aiohttp.ClientSession) -> str:
        """The version of the list that the copy now is."""
        found: dict[str, _R] = {}
        parameters = {**self._query.parameters, "limit": str(self._access.page_objects)}
        while True:
            async with (
                asyncio.timeout(self._access.request_timeout_s),
                session.get(
                    self._query.path, params=parameters, headers=self._token.header(), allow_redirects=False
                ) as answer,
            ):
                self._refuse(answer.status)
                data = await reply.read(answer, self._access.page_bytes_max)
            page = msgspec.json.decode(data, type=_Page)
            for raw in page.items or ():
                self._put(found, self._decoder.decode(raw))
            if not page.metadata.further:
                break
            parameters["continue"] = page.metadata.further
        if not page.metadata.resource_version:
            raise FaultError(Problem.MALFORMED, "a list without a version")
        changed = found != self.objects or not self.synced
        self.objects, self.synced = found, True
        self._contact.resynced()
        self._contact.heard()
        if changed:
            self._changed()
        return page.metadata.resource_version

    def _put(self, objects: dict[str, _R], found: _R) -> None:
        if len(objects) >= self._access.objects_max and found.metadata.name not in objects:
            raise FaultError(Problem.TOO_MANY, f"more than {self._access.objects_max} objects")
        objects[found.metadata.name] = found

    async def _watch(self, session: aiohttp.ClientSession, version: str) -> str:
        """The version to go on from, after the server closed the watch as it should."""
        timeout_s = math.ceil(self._access.watch_timeout_s * (1 + self._chance()))
        parameters = {
            **self._query.parameters,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(timeout_s),
        }
        async with asyncio.timeout(timeout_s + self._access.slack_s):
            async with asyncio.timeout(self._access.request_timeout_s):
                answer = await session.get(
                    self._query.path,
                    params=parameters,
                    headers=self._token.header(),
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None),
                )
            async with answer:
                self._refuse(answer.status)
                reply.keep_alive(answer)
                self._contact.heard()
                async for lines in reply.lines(answer, self._access.line_bytes_max):
                    version = self._apply(lines, version)
                    self._contact.heard()
        self._contact.heard()
        return version

    def _apply(self, lines: Iterator[bytes], version: str) -> str:
        """The version after the events in `lines`."""
        changed = False
        try:
            for line in lines:
                event = msgspec.json.decode(line, type=_Event)
                if event.type == "ERROR":
                    raise _error(msgspec.json.decode(event.object, type=_Status))
                found = self._decoder.decode(event.object)
                match event.type:
                    case "ADDED" | "MODIFIED":
                        self._put(self.objects, found)
                        changed = True
                    case "DELETED":
                        changed |= self.objects.pop(found.metadata.name, None) is not None
                    case "BOOKMARK":
                        pass
                    case _:
                        raise FaultError(Problem.MALFORMED, "an event of an unknown type")
                version = found.metadata.resource_version or version
        finally:
            if changed:
                self._changed()
        return version

    def _refuse(self, status: int) -> None:
        """Raises: FaultError unless `status` is 200."""
        if status == 401:
            self._token.forget()
        if status != 200:
            raise reply.fault(status)


async def paced(dirty: asyncio.Event, publish: Callable[[], None], interval_s: float) -> None:
    """`publish` at once when `dirty` is set, and again at most every `interval_s`; for ever."""
    while True:
        await dirty.wait()
        dirty.clear()
        publish()
        await asyncio.sleep(interval_s)


def _error(status: _Status) -> FaultError:
    if status.code == _GONE or status.reason in {"Expired", "Gone"}:
        return FaultError(Problem.EXPIRED, "the watch's version is too old")
    return FaultError(Problem.SERVER_ERROR, f"an ERROR event with code {status.code}")
