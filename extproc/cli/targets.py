"""Targets: where the doctor's samples come from: engines, a Prometheus server, saved files.

A word on the command line is a file, a folder of files, or an address. What answers at a bare address is
found out by asking: `/metrics` with an engine in it is a replica, with kvring in it says that the fleet is
routed by prefix, and what has neither may be a Prometheus server.

Never: an exception for a target that does not answer, or not what it should; that is a problem by its name.
A name or password from a URL in what is told. Called by: cli.doctor, cli.simulate (`answered`, `unpacked`).
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import time
import urllib.parse
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import aiohttp

from extproc.doctor import sample, saved, series
from extproc.signals import Engine

__all__ = ["Heard", "Targets", "answered", "unpacked", "without_user"]

_TIMEOUT_S = 10.0
_BODY_BYTES_MAX = 64 * 2**20
_AT_ONCE = 16
_USER = re.compile(r"(\w+://)[^/\s]+@")


@dataclass(slots=True)
class Heard:
    """What was heard: samples in the order of time; problems by target; whether kvring routes; expositions by
    replica as they came, if from engines.
    """

    samples: list[sample.Sample] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    routed: bool = False
    raw: dict[str, bytes] = field(default_factory=dict)


class Targets:
    """All that was named. `async with`: it keeps connections open between askings."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        prometheus: str | None,
        selector: str,
        window_s: float,
        headers: Mapping[str, str],
    ) -> None:
        """Args: words: files, folders and addresses; prometheus: base URL; selector: label matchers."""
        self._files = [Path(word) for word in words if Path(word).exists()]
        self._urls = [_url(word) for word in words if not Path(word).exists()]
        self._prometheus = [_url(prometheus)] if prometheus else []
        self._selector = series.matchers(selector)
        self._window_s = window_s
        self._headers = dict(headers)
        self._session: aiohttp.ClientSession | None = None

    @property
    def live(self) -> bool:
        """Whether asking again says something new."""
        return bool(self._urls)

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=_AT_ONCE)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=self._headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, *, again: bool = False) -> Heard:
        """What all of them say now. `again`: only who can say something new."""
        heard = Heard()
        if not again:
            _read_files(self._files, heard)
        await asyncio.gather(*(self._ask_url(url, heard) for url in list(self._urls)))
        await asyncio.gather(*(self._ask_prometheus(url, heard) for url in self._prometheus))
        heard.samples.sort(key=lambda one: one.at_s or 0.0)
        return heard

    async def _ask_url(self, url: str, heard: Heard) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError:
            heard.problems[without_user(url)] = "neither a file nor an address"
            return
        bare = parts.path in ("", "/")
        whole = urllib.parse.urlunsplit(parts._replace(path="/metrics")) if bare else url
        name = parts.netloc.rpartition("@")[2]
        try:
            body = await self._get(whole)
        except _SilentError as error:
            heard.problems[name] = str(error)
            return
        except _ProblemError as error:
            # Whoever answers may yet be a Prometheus server behind a path of its own.
            if not (bare and await self._found_prometheus(url)):
                heard.problems[name] = str(error)
            return
        found = sample.read(name, time.time(), body)
        if sample.steers(body):
            heard.routed = True
        elif found.engine is not Engine.UNKNOWN:
            heard.samples.append(found)
            heard.raw[name] = body
        elif not (bare and await self._found_prometheus(url)):
            heard.problems[name] = "no metrics of an engine at " + without_user(whole)

    async def _found_prometheus(self, url: str) -> bool:
        """Whether a Prometheus server answers there; from then on it is asked as one."""
        try:
            answer = json.loads(await self._get(url.rstrip("/") + "/api/v1/query?query=1"))
        except (_ProblemError, ValueError, RecursionError):
            return False
        if not isinstance(answer, dict) or answer.get("status") != "success":
            return False
        self._urls.remove(url)
        self._prometheus.append(url)
        return True

    async def _ask_prometheus(self, url: str, heard: Heard) -> None:
        now = time.time()
        step_s = max(self._window_s / (series.POINTS - 1), 1.0)
        answers = []
        try:
            for query in series.queries(self._selector):
                start_s = now - self._window_s
                asked: dict[str, str | float] = {"query": query, "start": start_s, "end": now, "step": step_s}
                answers.append(json.loads(await self._get(f"{url.rstrip('/')}/api/v1/query_range", asked)))
            found = series.samples(answers)
        except RecursionError:
            heard.problems[without_user(url)] = "not an answer of Prometheus"
            return
        except (_ProblemError, ValueError) as error:
            heard.problems[without_user(url)] = str(error)
            return
        if not found:
            heard.problems[without_user(url)] = f"no engine's metrics for {{{self._selector}}}"
        heard.samples += found

    async def _get(self, url: str, form: Mapping[str, str | float] | None = None) -> bytes:
        """The body of the answer; with `form` by POST. Raises: _ProblemError."""
        if self._session is None:
            raise RuntimeError("not entered")
        return await _body(self._session, url, form)


async def answered(url: str) -> bytes:
    """What `url` answers to GET, at most 64 MiB within 10 s. Raises: ValueError, saying why not."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        try:
            return await _body(session, url, None)
        except _ProblemError as error:
            raise ValueError(str(error)) from None


def unpacked(path: Path) -> bytes:
    """What a file holds, `.gz` unpacked, at most 64 MiB. Raises: OSError."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            body = file.read(_BODY_BYTES_MAX + 1)
    except (EOFError, zlib.error) as error:
        raise OSError(f"damaged: {error}") from error
    if len(body) > _BODY_BYTES_MAX:
        raise OSError(f"{path}: more than {_BODY_BYTES_MAX >> 20} MiB")
    return body


def without_user(url: str) -> str:
    """`url` without name and password, to be shown."""
    return _USER.sub(r"\1", url)


class _ProblemError(Exception):
    """A target did not tell; the text says why."""


class _SilentError(_ProblemError):
    """It gave no answer at all."""


async def _body(session: aiohttp.ClientSession, url: str, form: Mapping[str, str | float] | None) -> bytes:
    method = "GET" if form is None else "POST"
    try:
        # A redirect is not followed: `--header` is for the address that was named, not for where it points.
        async with session.request(method, url, data=form, allow_redirects=False) as answer:
            if 300 <= answer.status < 400:
                where = without_user(answer.headers.get("location", "nowhere"))
                raise _ProblemError(f"redirects to {where}: name that address if you trust it")
            body = bytearray()
            async for chunk in answer.content.iter_chunked(2**16):
                body += chunk
                if len(body) > _BODY_BYTES_MAX:
                    raise _ProblemError(f"more than {_BODY_BYTES_MAX >> 20} MiB")
            if answer.status != 200 and form is None:
                raise _ProblemError(f"status {answer.status}")
            return bytes(body)
    except TimeoutError:
        raise _SilentError(f"no answer within {_TIMEOUT_S:.0f} s") from None
    except aiohttp.InvalidURL:
        raise _SilentError("neither a file nor an address") from None
    except aiohttp.ClientConnectorDNSError:
        raise _SilentError("neither a file nor a host that is known here") from None
    except aiohttp.ClientConnectorError as error:
        number = error.os_error.errno
        raise _SilentError(os.strerror(number) if number else "no connection") from None
    except aiohttp.ClientError as error:
        raise _SilentError(without_user(str(error)) or type(error).__name__) from None


def _url(word: str) -> str:
    return word if "://" in word else f"http://{word}"


def _read_files(paths: Iterable[Path], heard: Heard) -> None:
    for path in paths:
        inside = (
            [one for one in sorted(path.iterdir()) if one.name.endswith(saved.SUFFIXES)]
            if path.is_dir()
            else [path]
        )
        if not inside:
            heard.problems[str(path)] = "a folder without *.prom or *.txt"
        for one in inside:
            try:
                body = unpacked(one)
            except OSError as error:
                heard.problems[str(one)] = str(error)
                continue
            replica, at_s = saved.named(one.name)
            found = sample.read(replica, at_s, body)
            if sample.steers(body):
                heard.routed = True
            elif found.engine is Engine.UNKNOWN:
                heard.problems[str(one)] = "no metrics of an engine"
            else:
                heard.samples.append(found)
