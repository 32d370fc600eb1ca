"""A Kubernetes API server to be unkind with: real versions, compaction, pages, selectors; faults on demand.

It keeps objects of any collection and every change of them since the last compaction. What it does as the
real one does: one version counter for all; a list is a snapshot, in pages, whose token can expire; a watch
gives what happened after its version, or 410 if that was compacted away; an object that stops matching a
selector is DELETED for who watches with it; a watch ends at its timeoutSeconds; bookmarks carry a version.

What the real one does on bad days is scripted: `on_list` and `on_watch` take faults for the next requests,
`watches` are the open watches, to be closed, reset, starved or fed with bytes.
"""

from __future__ import annotations

import asyncio
import copy
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests import ports
from tests.functional.conftest import eventually

Json = dict[str, Any]


@dataclass
class Fault:
    """What befalls a request: a status instead of an answer, a connection cut, a delay before all is well."""

    status: int = 0
    reset: bool = False
    delay_s: float = 0.0
    body: bytes = b'{"kind":"Status","apiVersion":"v1","status":"Failure"}'


@dataclass
class Seen:
    """A request as it came."""

    path: str
    query: dict[str, str]
    token: str


@dataclass
class _Change:
    version: int
    path: str
    old: Json | None
    new: Json | None


class Watch:
    """An open watch."""

    def __init__(self, request: web.Request, answer: web.StreamResponse, chunk_bytes: int) -> None:
        self.request = request
        self.answer = answer
        self.chunk_bytes = chunk_bytes
        self.starved = False  # half open: nothing more is sent, not even the end
        self.ended = asyncio.Event()

    async def send(self, event: Json) -> None:
        """One event and its newline."""
        await self.raw(json.dumps(event, ensure_ascii=False).encode() + b"\n")

    async def raw(self, data: bytes) -> None:
        """Bytes, in chunks of `chunk_bytes`."""
        if self.starved:
            return
        step = self.chunk_bytes or len(data) or 1
        for start in range(0, len(data), step):
            await self.answer.write(data[start : start + step])
            if self.chunk_bytes:
                await asyncio.sleep(0)

    def close(self) -> None:
        """End it as the server does when its time is over."""
        self.ended.set()

    def reset(self) -> None:
        """RST."""
        transport = self.request.transport
        if transport is not None and not transport.is_closing():
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        self.ended.set()


@dataclass
class ApiServer:
    """The double. `tokens`: those it accepts; None: anybody."""

    tokens: set[str] | None = None
    gone_as_event: bool = False
    chunk_bytes: int = 0
    on_list: deque[Fault] = field(default_factory=deque)
    on_watch: deque[Fault] = field(default_factory=deque)
    lists: list[Seen] = field(default_factory=list)
    watched: list[Seen] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._objects: dict[str, dict[str, Json]] = {}
        self._changes: list[_Change] = []
        self._version = 100
        self._compacted = 100
        self._pages: dict[str, tuple[int, list[Json]]] = {}
        self._news = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.port = ports.own()

    # ---- its life ----

    async def start(self, tls: ssl.SSLContext | None = None) -> str:
        """Listen; the URL."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._get)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=tls).start()
        return f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Cut all connections and stop listening."""
        for watch in list(self.watches):
            watch.reset()
        if self._runner is not None:
            await ports.leave(self._runner)
            self._runner = None

    async def until_watched(self, count: int = 1) -> None:
        """Wait until `count` watches are open."""
        await eventually(lambda: len(self.watches) == count)

    # ---- its content ----

    def put(self, path: str, item: Json) -> None:
        """Create or change an object."""
        item = copy.deepcopy(item)
        name = item["metadata"]["name"]
        collection = self._objects.setdefault(path, {})
        old = collection.get(name)
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        collection[name] = item
        self._record(_Change(self._version, path, old, item))

    def delete(self, path: str, name: str) -> None:
        """Delete an object; a DELETED event carries its last state and the version of the deletion."""
        old = self._objects[path].pop(name)
        self._version += 1
        self._record(_Change(self._version, path, old, None))

    def elsewhere(self) -> None:
        """A change of something that nobody here watches: the version moves on."""
        self._version += 1

    def compact(self) -> None:
        """Forget all changes so far: older versions are 410, and so are tokens of pages."""
        self._compacted = self._version
        self._changes.clear()
        self._pages.clear()

    def names(self, path: str) -> set[str]:
        return set(self._objects.get(path, {}))

    async def bookmark(self) -> None:
        """Tell all open watches the version."""
        for watch in self.watches:
            await watch.send(
                {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self._version)}}}
            )

    def _record(self, change: _Change) -> None:
        self._changes.append(change)
        self._news.set()
        self._news = asyncio.Event()

    # ---- its answers ----

    async def _get(self, request: web.Request) -> web.StreamResponse:
        watching = request.query.get("watch") in {"true", "1"}
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        seen = Seen(request.path, dict(request.query), token)
        (self.watched if watching else self.lists).append(seen)
        faults = self.on_watch if watching else self.on_list
        if faults:
            fault = faults.popleft()
            await asyncio.sleep(fault.delay_s)
            if fault.reset:
                assert request.transport is not None
                request.transport.abort()
            if fault.status:
                return web.Response(status=fault.status, body=fault.body, content_type="application/json")
        if self.tokens is not None and token not in self.tokens:
            return _failure(401)
        return await self._watch(request) if watching else self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        limit = int(request.query.get("limit", "0")) or 10**9
        token = request.query.get("continue", "")
        if token:
            if token not in self._pages:
                return _failure(410)
            version, items = self._pages.pop(token)
        else:
            version = self._version
            matches = _matcher(request)
            items = [item for item in self._objects.get(request.path, {}).values() if matches(item)]
        metadata: Json = {"resourceVersion": str(version)}
        if len(items) > limit:
            metadata["continue"] = f"{version}.{len(items) - limit}"
            self._pages[metadata["continue"]] = (version, items[limit:])
        return web.json_response({"kind": "List", "metadata": metadata, "items": items[:limit] or None})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        gone = since < self._compacted
        if gone and not self.gone_as_event:
            return _failure(410)
        answer = web.StreamResponse(headers={"content-type": "application/json"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        watch = Watch(request, answer, self.chunk_bytes)
        if gone:
            await watch.send(
                {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
            )
            return answer
        self.watches.append(watch)
        feeding = asyncio.create_task(self._feed(watch, since))
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "60"))):
                await watch.ended.wait()
        except TimeoutError:
            if watch.starved:
                await watch.ended.wait()
        finally:
            feeding.cancel()
            self.watches.remove(watch)
        return answer

    async def _feed(self, watch: Watch, since: int) -> None:
        matches = _matcher(watch.request)
        while True:
            news = self._news
            for change in [change for change in self._changes if change.version > since]:
                since = change.version
                event = _event(change, matches) if change.path == watch.request.path else None
                if event is not None:
                    await watch.send(event)
            if news is self._news:
                await news.wait()


def _event(change: _Change, matches: Callable[[Json], bool]) -> Json | None:
    was = change.old is not None and matches(change.old)
    if change.new is not None and matches(change.new):
        return {"type": "MODIFIED" if was else "ADDED", "object": change.new}
    if not was or change.old is None:
        return None
    last = copy.deepcopy(change.old)
    last["metadata"]["resourceVersion"] = str(change.version)
    return {"type": "DELETED", "object": last}


def _matcher(request: web.Request) -> Callable[[Json], bool]:
    wanted = [pair.split("=") for pair in request.query.get("labelSelector", "").split(",") if pair]
    named = request.query.get("fieldSelector", "").removeprefix("metadata.name=")

    def matches(item: Json) -> bool:
        labels = item["metadata"].get("labels", {})
        return all(labels.get(key) == value for key, value in wanted) and (
            not named or item["metadata"]["name"] == named
        )

    return matches


def _failure(status: int) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "code": status}, status=status)
