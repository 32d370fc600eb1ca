"""Who may see what of the admin port: by address, by token; sizes, kinds and headers of what is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc import admin, config, exchange, groups, journal, metrics, pool, prompt, router
from extproc.admin import access
from tests.functional.conftest import chat

TOKEN = "a-token-of-some-length"  # noqa: S105
PAGES = ["/api/state", "/api/choices", "/api/config"]


@contextlib.asynccontextmanager
async def desk(token_file: Path | None = None, bytes_max: int = 4096) -> AsyncIterator[Any]:
    """`await ask(method, path, **options)`: status, headers and text of a served admin."""
    members = [pool.Endpoint(pool.EndpointId(f"e{at}"), f"10.0.0.{at}:1") for at in (1, 2)]
    chooser = router.Router(pool.make("p", members), router.Settings())
    how = exchange.Settings(prompt.Settings(bytes_max), key_header="x-key")
    shown = admin.Desk(
        groups.alone(chooser),
        how,
        journal.Journal(),
        {"pools": []},
        admin.Access(None if token_file is None else str(token_file)),
    )
    counted = metrics.Metrics(chooser, lambda: 0.0, 0.0)
    served = admin.Admin(chooser, counted, lambda: 0.0, lambda: True, shown)
    await served.start("127.0.0.1:0")
    try:
        async with aiohttp.ClientSession() as session:

            async def ask(method: str, path: str, **options: Any) -> tuple[int, Any, str]:
                url = f"http://{served.address}{path}"
                async with session.request(method, url, **options) as answer:
                    return answer.status, answer.headers, await answer.text()

            ask.chooser = chooser  # type: ignore[attr-defined]
            yield ask
    finally:
        await served.stop()


def test_without_a_token_the_network_sees_load_and_only_this_machine_sees_choices() -> None:
    rule = access.Access()
    for here in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"):
        assert rule.allows("", here, guarded=True)
    for there in (
        "10.0.0.1",
        "192.168.1.1",
        "fd00::1",
        "::ffff:10.0.0.1",
        "fe80::1%eth0",
        "",
        None,
        "localhost",
    ):
        assert not rule.allows("", there, guarded=True)
        assert rule.allows("", there, guarded=False)


@pytest.mark.parametrize(
    "host", ["", "localhost", "LocalHost:9090", "127.0.0.1:9090", "[::1]:9090", "10.0.0.1"]
)
def test_this_machine_is_asked_for_by_address_or_as_localhost(host: str) -> None:
    assert access.Access().allows("", "127.0.0.1", guarded=True, host=host)
    assert not access.Access().allows("", "10.0.0.1", guarded=True, host=host)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9090", "127.0.0.1.evil.example", "localhost.", ":1:"]
)
def test_a_page_whose_name_was_made_to_point_here_reads_nothing_that_is_guarded(host: str) -> None:
    assert not access.Access().allows("", "127.0.0.1", guarded=True, host=host)
    assert access.Access().allows("", "127.0.0.1", guarded=False, host=host)


async def test_rebound_names_are_refused_over_http() -> None:
    async with desk() as ask:
        rebound = {"host": "evil.example", "content-type": "application/json"}
        for path in ("/api/choices", "/api/config"):
            assert (await ask("GET", path, headers=rebound))[0] == 403
        assert (await ask("POST", "/api/explain", data=chat("x"), headers=rebound))[0] == 403
        assert (await ask("GET", "/metrics", headers=rebound))[0] == 200


def test_with_a_token_nothing_else_counts(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN}\n")
    rule = access.Access(str(file))
    for guarded in (True, False):
        assert rule.allows(f"Bearer {TOKEN}", "10.0.0.1", guarded=guarded)
        assert rule.allows(f"bearer  {TOKEN} ", None, guarded=guarded)
        for wrong in (
            "",
            TOKEN,
            f"Basic {TOKEN}",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            "Bearer ",
            "Bearer é",
        ):
            assert not rule.allows(wrong, "127.0.0.1", guarded=guarded)


def test_a_new_token_is_taken_over_and_a_broken_file_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    rule = access.Access(str(file))
    other = tmp_path / "new"
    other.write_text(f"{TOKEN}-2")
    other.replace(file)
    assert rule.allows(f"Bearer {TOKEN}-2", None, guarded=True)
    assert not rule.allows(f"Bearer {TOKEN}", None, guarded=True)
    file.write_text("short")
    assert rule.allows(f"Bearer {TOKEN}-2", None, guarded=True)
    file.unlink()
    assert rule.allows(f"Bearer {TOKEN}-2", None, guarded=True)


@pytest.mark.parametrize("text", ["", "short", "x" * 5000, "with a space in it, long", "é" * 40])
def test_what_is_no_token_is_refused_at_the_start_without_quoting_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(admin.AccessError) as refused:
        access.Access(str(file))
    assert "admin_token_file" in str(refused.value)
    assert not text or text not in str(refused.value)
    with pytest.raises(admin.AccessError, match="can't be read"):
        access.Access(str(tmp_path / "nowhere"))


async def test_api_asks_for_the_token_and_machines_pages_do_not(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    async with desk(file) as ask:
        for path in PAGES:
            status, _, text = await ask("GET", path)
            assert (status, json.loads(text)) == (401, {"problem": "a token is needed"})
            assert (await ask("GET", path, headers={"authorization": f"Bearer {TOKEN}"}))[0] == 200
        json_kind = {"content-type": "application/json"}
        assert (await ask("POST", "/api/explain", data=b"{}", headers=json_kind))[0] == 401
        for path in ("/", "/page/main.js", "/page/page.css", "/metrics", "/healthz", "/readyz"):
            assert (await ask("GET", path))[0] == 200


async def test_files_go_out_under_a_policy_that_lets_nothing_else_in() -> None:
    async with desk() as ask:
        for path in ("/", "/page/main.js", "/page/page.css", "/page/mark.svg", *PAGES):
            status, headers, text = await ask("GET", path)
            assert status == 200
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert "://" not in text.replace("http://www.w3.org/", ""), "nothing from elsewhere"
        page = (await ask("GET", "/"))[2]
        assert "<script>" not in page
        assert " style=" not in page
        for path in ("/page/", "/page/../server.py", "/page/..%2fserver.py", "/page/access.py", "/server.py"):
            assert (await ask("GET", path))[0] == 404


async def test_explain_is_limited_in_size_and_kind_and_changes_nothing() -> None:
    json_kind = {"content-type": "application/json"}
    async with desk() as ask:
        before = ask.chooser.sent.to(pool.EndpointId("e1")).requests
        status, _, text = await ask("POST", "/api/explain", data=chat("word " * 400), headers=json_kind)
        told = json.loads(text)
        assert status == 200
        assert told["choice"] in {"e1", "e2"}
        assert "word" not in text
        assert {one["endpoint"] for one in told["candidates"]} == {"e1", "e2"}
        keyed = {**json_kind, "x-kvring-asked-x-key": "s-1"}
        _, _, text = await ask("POST", "/api/explain", data=chat("word " * 400), headers=keyed)
        assert json.loads(text)["keyed_by"] == "header"
        assert "s-1" not in text
        assert (await ask("POST", "/api/explain", data=b"x" * 5121, headers=json_kind))[0] == 413
        assert (await ask("POST", "/api/explain", data=b"x" * 5120, headers=json_kind))[0] == 200
        assert (await ask("POST", "/api/explain", data=chat("x")))[0] == 415
        assert (await ask("GET", "/api/explain"))[0] == 405
        assert ask.chooser.ledger.open_leases == 0
        assert ask.chooser.sent.to(pool.EndpointId("e1")).requests == before
        status, _, text = await ask("GET", "/api/choices?after=x")
        assert json.loads(text)["choices"] == []


async def test_a_body_that_is_not_as_it_says_or_never_ends_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk() as ask:
        kind = {"content-type": "application/json"}
        packed = kind | {"content-encoding": "gzip", "connection": "close"}
        status, _, text = await ask("POST", "/api/explain", data=b"no gzip", headers=packed)
        assert status == 400
        assert "content-encoding" in json.loads(text)["problem"]

        async def never() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.Event().wait()

        monkeypatch.setattr("extproc.admin.server._BODY_S", 0.05)
        assert (await ask("POST", "/api/explain", data=never(), headers=kind))[0] == 408


def test_settings_are_shown_without_secrets() -> None:
    text = json.dumps(
        {"pools": [{"endpoints": [{"name": "a", "address": "10.0.0.1:1"}]}], "key_header": "x-key"}
    )
    shown = config.plain(config.loads(text, {}))
    assert shown["pools"][0]["policy"] == "cost"
    assert shown["key_header"] == "x-key"
    hidden = config.plain.__globals__["_without_secrets"]
    told = hidden("", {"password": "p", "url": "redis://me:pw@host:1/0", "token_file": "/x", "api_key": "k"})
    assert told == {"password": "***", "url": "redis://***@host:1/0", "token_file": "/x", "api_key": "***"}
    for url in ("redis://me:p@w@host:1/0", "redis://:pw@w@host:1", "http://host/v1?key=pw&a=@w"):
        assert "pw" not in str(hidden("", {"url": url}))
        assert "@w" not in str(hidden("", {"url": url}))


def test_the_journal_is_bounded_and_tells_the_newest_first() -> None:
    book = journal.Journal(entries_max=3)
    chooser = router.Router(
        pool.make("p", [pool.Endpoint(pool.EndpointId("a"), "10.0.0.1:1")]), router.Settings()
    )
    assert book.spent_s(0.5) is None
    for number in range(5):
        decided = chooser.choose(prompt.Unkeyed.PATH, 0.0, 0.0)
        book.note(decided.choice, float(number), number / 1000)
    assert book.latest == 5
    assert [entry.number for entry in book.after(0, 9)] == [5, 4, 3]
    assert [entry.number for entry in book.after(4, 9)] == [5]
    assert [entry.number for entry in book.after(0, 1)] == [5]
    assert book.spent_s(0.5) == 0.003
    assert json.loads(json.dumps(journal.told(book.after(4, 1)[0].made)))["unkeyed"] == "unknown_path"
