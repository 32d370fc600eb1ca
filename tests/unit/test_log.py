"""Log: one JSON line an event, and never what an exception or a library quotes."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from extproc import log

MARK = "xyzzy-secret"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Everything on stderr of a process that called `setup("info")`."""
    stream, loggers = io.StringIO(), [logging.getLogger("kvring"), logging.getLogger()]
    before = [(one, one.handlers, one.level, one.propagate) for one in loggers]
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        log.setup("info")
    yield stream
    for one, handlers, level, propagate in before:
        one.handlers, one.level, one.propagate = handlers, level, propagate


def lines(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def fails(depth: int = 0) -> None:
    if depth:
        fails(depth - 1)
    raise ValueError(MARK)


def test_an_event_is_one_line_of_json_with_its_fields(written: io.StringIO) -> None:
    before = datetime.now(UTC)
    logging.getLogger("kvring").warning("two\nlines", extra={"endpoint": "a", "ready": 3, "path": Path("/x")})
    (line,) = lines(written)
    assert written.getvalue().count("\n") == 1
    assert abs((datetime.fromisoformat(line.pop("time")) - before).total_seconds()) < 5
    assert line == {"level": "warning", "event": "two\nlines", "endpoint": "a", "ready": 3, "path": "/x"}


def test_nothing_below_the_level_is_written(written: io.StringIO) -> None:
    logging.getLogger("kvring").debug("quiet")
    logging.getLogger("kvring").info("loud")
    assert [line["event"] for line in lines(written)] == ["loud"]


def test_setting_up_again_writes_once_and_takes_the_new_level(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", written)
    log.setup("error")
    log.setup("error")
    logging.getLogger("kvring").warning("quiet")
    logging.getLogger("kvring").error("loud")
    assert [line["event"] for line in lines(written)] == ["loud"]


def test_an_exception_is_told_by_its_kind_and_places_not_its_text(written: io.StringIO) -> None:
    try:
        try:
            fails()
        except ValueError as error:
            raise RuntimeError(MARK) from error
    except RuntimeError:
        logging.getLogger("kvring").exception("no opinion")
    (line,) = lines(written)
    assert line["exception"] == "RuntimeError"
    assert [place.rpartition(" ")[2] for place in line["at"]] == [
        "test_an_exception_is_told_by_its_kind_and_places_not_its_text"
    ]
    assert all(place.startswith("test_log.py:") for place in line["at"])
    assert MARK not in written.getvalue()


def test_the_places_of_a_deep_exception_are_bounded(written: io.StringIO) -> None:
    try:
        fails(200)
    except ValueError:
        logging.getLogger("kvring").exception("no opinion")
    (line,) = lines(written)
    assert len(line["at"]) == 32


def test_a_library_is_not_quoted(written: io.StringIO) -> None:
    try:
        fails()
    except ValueError:
        logging.getLogger("aiohttp.server").exception("Error handling %s", MARK)
    logging.getLogger("asyncio").error("never retrieved\nfuture: ValueError(%r)" % MARK)  # noqa: UP031, G002
    logging.getLogger("asyncio").info("chatter")
    first, second = lines(written)
    assert (first["logger"], first["event"]) == ("aiohttp.server", "Error handling %s")
    assert (first["exception"], second["event"]) == ("ValueError", "never retrieved")
    assert MARK not in written.getvalue()


def test_a_task_that_fails_unseen_is_told_without_its_text(written: io.StringIO) -> None:
    async def lose() -> None:
        async def fail() -> None:
            fails()

        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        del task
        await asyncio.sleep(0)

    asyncio.run(lose())
    (line,) = lines(written)
    assert (line["level"], line["logger"], line["exception"]) == ("error", "asyncio", "ValueError")
    assert MARK not in written.getvalue()
