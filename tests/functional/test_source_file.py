"""A real file that is edited, replaced, swapped, broken, removed, made huge, and put back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from extproc.endpoints import file
from extproc.endpoints.source import Problem
from tests.functional.conftest import eventually
from tests.functional.membership import running

POLL_S = 0.01


def text_of(*names: str, ready: bool = True) -> str:
    members = [
        {"name": name, "address": f"10.0.0.{number}:8000", "ready": ready}
        for number, name in enumerate(names, 1)
    ]
    return json.dumps({"endpoints": members})


def reading(path: Path, settle_s: float = 0.01, bytes_max: int = 100_000) -> file.File:
    return file.File(file.Settings(path, POLL_S, settle_s, bytes_max), time.monotonic)


def replace(path: Path, text: str) -> None:
    """As editors and `kubectl cp` do."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.rename(path)


def names(*wanted: str):
    return lambda members: set(members.addresses) == set(wanted)


@contextlib.contextmanager
def whom_permissions_bind() -> Iterator[None]:
    """As another user, where this one is root."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(me)


async def looked(path: Path, source: file.File) -> None:
    """Wait until the source has looked at the file at least once more, and been content."""
    before_s = source.state.contact_s
    await eventually(lambda: source.state.contact_s != before_s)


async def test_an_edit_and_a_replacement_are_seen_and_published_once(tmp_path):
    path = tmp_path / "endpoints.yaml"
    path.write_text(text_of("a"))
    async with running(reading(path)) as members:
        await members.until(names("a"))
        path.write_text(text_of("a", "b"))
        await members.until(names("a", "b"))
        replace(path, text_of("c"))
        await members.until(names("c"))
        replace(path, text_of("c", ready=False))
        await members.until(lambda now: not now.ready)
        assert len(members.history) == 4


async def test_a_file_that_says_the_same_is_not_published_again(tmp_path):
    path = tmp_path / "endpoints.yaml"
    path.write_text(text_of("a", "b"))
    source = reading(path)
    async with running(source) as members:
        await members.until(names("a", "b"))
        document = json.loads(text_of("a", "b"))
        document["endpoints"].reverse()
        replace(path, json.dumps(document, indent=4))
        await eventually(lambda: source.state.resyncs == 2)
        assert len(members.history) == 1


async def test_the_swap_of_a_kubernetes_mount_is_seen(tmp_path):
    """kubelet: file -> ..data/file, ..data -> ..TIMESTAMP; a new ..data is renamed over the old."""

    def mount(stamp: str, text: str) -> None:
        (tmp_path / stamp).mkdir()
        (tmp_path / stamp / "endpoints.yaml").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(stamp)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    mount("..2026_01", text_of("a"))
    path = tmp_path / "endpoints.yaml"
    path.symlink_to(Path("..data") / "endpoints.yaml")
    async with running(reading(path)) as members:
        await members.until(names("a"))
        mount("..2026_02", text_of("b"))
        (tmp_path / "..2026_01" / "endpoints.yaml").unlink()
        await members.until(names("b"))
        mount("..2026_03", text_of("a", "b", "c"))
        await members.until(names("a", "b", "c"))


async def test_a_file_being_written_is_not_read_before_it_is_done(tmp_path):
    path = tmp_path / "endpoints.yaml"
    lines = [f'  - {{name: r{number:03}, address: "10.0.0.{number}:8000"}}\n' for number in range(100)]
    path.write_text("".join(["endpoints:\n", lines[0]]))
    async with running(reading(path, settle_s=1.0)) as members:
        await members.until(names("r000"))
        with path.open("w") as writing:
            writing.write("endpoints:\n")
            for line in lines:
                writing.write(line)
                writing.flush()  # each state on the way is a good, shorter list
                await asyncio.sleep(0.002)
        await members.until(lambda now: len(now.addresses) == 100)
        assert [len(step) for step in members.history] == [1, 100]


async def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / "endpoints.yaml"
    path.write_text(text_of("a"))
    opened = []

    def fstat(handle: int) -> os.stat_result:
        found = os.stat(handle)
        if not opened:  # the first look at the open file; the bytes are read after it
            path.write_text(text_of("b", "c"))
        opened.append(handle)
        return found

    monkeypatch.setattr(file, "os", SimpleNamespace(**{**vars(os), "fstat": fstat}))
    async with running(reading(path)) as members:
        await members.until(names("b", "c"))
        assert len(members.history) == 1
        assert len(opened) >= 3


async def test_a_file_that_never_stands_still_is_told(tmp_path):
    path = tmp_path / "endpoints.yaml"
    path.write_text(text_of("a"))
    source = reading(path)
    async with running(source) as members:
        await members.until(names("a"))
        end_s = time.monotonic() + 60
        while source.state.problem is not Problem.UNREACHABLE and time.monotonic() < end_s:
            path.write_text(text_of("b"))
            await asyncio.sleep(0.001)
        assert source.state.problem is Problem.UNREACHABLE
        await members.until(names("b"))
        await eventually(lambda: source.state.problem is None)


BAD = {
    "cut": (text_of("a", "b")[:-20], Problem.MALFORMED),
    "empty": ("", Problem.MALFORMED),
    "mistyped": (text_of("b").replace("address", "adress"), Problem.MALFORMED),
    "huge": ("#" * 200_000, Problem.TOO_LARGE),
    "binary": ("\0\1\2", Problem.MALFORMED),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_file_leaves_the_members_and_ages_until_it_is_mended(tmp_path, kind):
    """M05."""
    text, problem = BAD[kind]
    path = tmp_path / "endpoints.yaml"
    path.write_text(text_of("a", "b"))
    source = reading(path)
    async with running(source) as members:
        await members.until(names("a", "b"))
        replace(path, text)
        await eventually(lambda: source.state.problem is problem)
        assert len(members.history) == 1
        contact_s = source.state.contact_s
        await asyncio.sleep(5 * POLL_S)
        assert source.state.contact_s == contact_s
        if problem is Problem.MALFORMED:
            assert source.state.faults[problem] == 1  # read once, not at every look
        replace(path, text_of("a"))
        await members.until(names("a"))
        assert source.state.problem is None


async def test_a_file_that_is_not_there_yet_or_no_more_is_waited_for(tmp_path):
    path = tmp_path / "later" / "endpoints.yaml"
    source = reading(path)
    async with running(source) as members:
        await eventually(lambda: source.state.problem is Problem.NOT_FOUND)
        assert not members.history
        assert source.contact_age_s(time.monotonic()) is None
        path.parent.mkdir()
        path.write_text(text_of("a"))
        await members.until(names("a"))
        path.unlink()
        await eventually(lambda: source.state.problem is Problem.NOT_FOUND)
        path.write_text(text_of("a"))
        await eventually(lambda: source.state.problem is None)
        assert len(members.history) == 1


async def test_what_is_no_regular_file_is_not_opened(tmp_path):
    path = tmp_path / "endpoints.yaml"
    path.write_text(text_of("a"))
    source = reading(path)
    async with running(source) as members:
        await members.until(names("a"))
        path.unlink()
        os.mkfifo(path)
        await eventually(lambda: source.state.problem is Problem.MALFORMED)
        path.unlink()
        path.mkdir()
        await eventually(lambda: source.state.faults[Problem.MALFORMED] >= 3)
        path.rmdir()
        path.symlink_to(path)
        await eventually(lambda: source.state.problem is Problem.UNREACHABLE)
        path.unlink()
        path.write_text(text_of("b"))
        await members.until(names("b"))


async def test_a_file_that_may_not_be_read_is_told(tmp_path):
    path = tmp_path / "endpoints.yaml"
    path.write_text(text_of("a"))
    source = reading(path)
    async with running(source) as members:
        await members.until(names("a"))
        replace(path, text_of("b"))
        path.chmod(0)
        with whom_permissions_bind():
            await eventually(lambda: source.state.problem is Problem.FORBIDDEN)
            assert names("a")(members)
        path.chmod(0o600)
        await members.until(names("b"))


async def test_a_good_file_that_does_not_change_stays_young(tmp_path):
    path = tmp_path / "endpoints.yaml"
    path.write_text(text_of("a"))
    source = reading(path)
    async with running(source) as members:
        await members.until(names("a"))
        for _ in range(3):
            await looked(path, source)
        assert source.state.resyncs == 1
        assert source.contact_age_s(time.monotonic()) < 5


async def test_replaced_a_hundred_times_quickly_it_ends_with_the_last(tmp_path):
    path = tmp_path / "endpoints.yaml"
    path.write_text(text_of("start"))
    async with running(reading(path)) as members:
        await members.until(names("start"))
        for number in range(100):
            replace(path, text_of(f"n{number}", f"m{number}"))
            await asyncio.sleep(0.001)
        await members.until(names("n99", "m99"))
        for step in members.history[1:]:
            found = sorted(str(member.id)[1:] for member in step)
            assert len(found) == 2
            assert found[0] == found[1]  # never of two files
