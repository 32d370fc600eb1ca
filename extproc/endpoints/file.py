"""File: members listed in a file of its own, read again whenever it changes.

    endpoints:
      - {name: replica-0, address: "10.0.0.1:8000", weight: 1, ready: true, models: [llama]}

YAML or JSON; name and address are needed. The file is looked at, not waited on: a look through every
symbolic link sees an edit in place, a rename over it and the `..data` swap of a Kubernetes mount alike, on
any file system, at the price of `poll_interval_s`. A file is read only once two looks `settle_s` apart found
it the same: half of a list that is being written is a good, shorter list.

Never: half a file; a FIFO or device opened for reading; a bad file read twice; its text in a log.
Called by: the fleet.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from extproc import pool
from extproc.endpoints import source
from extproc.endpoints.source import Problem

__all__ = ["File", "Settings", "parse"]

_UNSETTLED_MAX = 20  # looks in a row; then something writes without end


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the file is and how it is read.

    path: the file, or a symbolic link to it. poll_interval_s: from look to look [0.05..60 s]; a change is
    seen that late. settle_s: how long a changed file must stay as it is [0.01..5 s]. file_bytes_max: a
    longer file is refused [1 KiB..16 MiB]; 4,096 members take about 250 KB, and half a second to read.
    """

    path: Path
    poll_interval_s: float = 1.0
    settle_s: float = 0.1
    file_bytes_max: int = 1024 * 1024


class _Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[
        str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?\Z", max_length=253)
    ]
    address: Annotated[str, msgspec.Meta(max_length=80)]
    weight: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    ready: bool = True
    models: Annotated[list[str], msgspec.Meta(max_length=1024)] | None = None


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    endpoints: Annotated[list[_Member], msgspec.Meta(max_length=source.MEMBERS_MAX)]


_Signature = tuple[int, int, int, int, int]
"""Device, inode, size, times of content and of inode: another file or another content has another one."""


class File:
    """A source that reads a file."""

    def __init__(self, settings: Settings, clock: source.Clock) -> None:
        """`clock` is monotonic [s]."""
        self._settings = settings
        self._contact = source.Contact("file", str(settings.path), clock)
        self._judged: _Signature | None = None  # the file's, when it was last read, well or not
        self._good = False  # what came of that
        self._published: tuple[pool.Endpoint, ...] | None = None

    async def run(self, publish: source.Publish) -> None:
        """Publish the file's members now and on every change, until cancelled."""
        unsettled = 0
        while True:
            try:
                settled = await self._look(publish)
            except source.FaultError as fault:
                settled = True
                self._contact.failed(fault.problem, str(fault))
            unsettled = 0 if settled else unsettled + 1
            if unsettled >= _UNSETTLED_MAX:
                self._contact.failed(Problem.UNREACHABLE, "the file keeps changing while it is read")
            if settled:
                await asyncio.sleep(self._settings.poll_interval_s)

    async def _look(self, publish: source.Publish) -> bool:
        """Whether the file stood still for long enough to be judged. Raises: source.FaultError."""
        seen = await asyncio.to_thread(_signature, self._settings.path)
        if seen == self._judged:
            if self._good:
                self._contact.heard()
            return True
        if seen[2] > self._settings.file_bytes_max:
            raise source.FaultError(
                Problem.TOO_LARGE, f"{seen[2]} bytes, {self._settings.file_bytes_max} allowed"
            )
        await asyncio.sleep(self._settings.settle_s)
        data = await asyncio.to_thread(_read, self._settings, seen)
        if data is None:
            return False
        self._judged, self._good = seen, False
        try:
            members = await asyncio.to_thread(parse, data)
        except ValueError as error:
            raise source.FaultError(Problem.MALFORMED, str(error)) from error
        self._good = True
        self._contact.resynced()
        self._contact.heard()
        if members != self._published:
            self._published = members
            publish(members)
        return True

    def contact_age_s(self, now: float) -> float | None:
        """How long ago the file was last found good [s]; None if it never was."""
        return self._contact.age_s(now)

    @property
    def state(self) -> source.State:
        """How the source fares."""
        return self._contact.state


def parse(data: bytes) -> tuple[pool.Endpoint, ...]:
    """The members in the text of a file, by name.

    Raises: ValueError, naming key or line and what is wrong, without quoting more than one value.
    """
    document = _document(data)
    members = []
    for position, member in enumerate(document.endpoints):
        try:
            address = source.parse_address(member.address)
        except ValueError as error:
            raise ValueError(f"endpoints[{position}].address: {error}") from error
        models = None if member.models is None else frozenset(member.models)
        members.append(
            pool.Endpoint(pool.EndpointId(member.name), address, member.weight, member.ready, models)
        )
    for key, values in (("name", [m.id for m in members]), ("address", [m.address for m in members])):
        repeated = [value for value, count in Counter(values).items() if count > 1]
        if repeated:
            raise ValueError(f"endpoints: the {key} {repeated[0]!r} is given more than once")
    return tuple(sorted(members, key=lambda member: member.id))


def _document(data: bytes) -> _Document:
    if data.lstrip()[:1] == b"{":
        try:
            return msgspec.json.decode(data, type=_Document)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # YAML may begin so too
    try:
        raw = yaml.load(data, _Loader)  # noqa: S506  (a safe loader)
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError, TypeError) as error:
        # The last four are what PyYAML lets through from its constructors: 2001-99-99, 0x_, !!bool x.
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"not YAML{where}: {getattr(error, 'problem', None) or error}") from error
    try:
        return msgspec.convert(raw, _Document)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # chosen at run time
    """Safe YAML without merges, which can blow a small file up, and without a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        keys = [key.value for key, _ in node.value]
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise ValueError(f"line {node.start_mark.line + 1}: a merge (<<) is not allowed")
        if any(not isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
            raise ValueError(f"line {node.start_mark.line + 1}: a key is given twice, or is no word")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _signature(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError as error:
        raise _fault(error) from error
    if not stat.S_ISREG(found.st_mode):
        raise source.FaultError(Problem.MALFORMED, "not a regular file")
    return _of(found)


def _of(found: os.stat_result) -> _Signature:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(settings: Settings, seen: _Signature) -> bytes | None:
    """The file's bytes, if it is still the one `seen`, before and after the reading; else None.

    Raises: source.FaultError.
    """
    try:
        # Without O_NONBLOCK, a FIFO put in the file's place would hold this thread for ever.
        handle = os.open(settings.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if _of(os.fstat(file.fileno())) != seen:
                return None
            data = file.read(settings.file_bytes_max + 1)
            if _of(os.fstat(file.fileno())) != seen or _of(settings.path.stat()) != seen:
                return None
    except OSError as error:
        raise _fault(error) from error
    if len(data) > settings.file_bytes_max:
        raise source.FaultError(Problem.TOO_LARGE, f"longer than {settings.file_bytes_max} bytes")
    return data


def _fault(error: OSError) -> source.FaultError:
    if isinstance(error, PermissionError):
        return source.FaultError(Problem.FORBIDDEN, error.strerror or "")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return source.FaultError(Problem.NOT_FOUND, error.strerror or "")
    return source.FaultError(Problem.UNREACHABLE, error.strerror or "")
