"""The page in headless Chromium, over a real sidecar under traffic: live, explained, accessible, safe."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests import ext_proc_client
from tests.ext_proc_client import Mode
from tests.functional.conftest import PATH, FakeEndpoint, Launch, Sidecar, chat, eventually

async_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="axe is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")

MARK = "xyzzy-secret"
WAIT_MS = 30_000
SERIOUS = {"serious", "critical"}


@contextlib.asynccontextmanager
async def browser(**options: Any) -> AsyncIterator[Any]:
    """A page of a fresh browser, and everything its console said."""
    async with async_api.async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await started.new_page(**options)
        page.set_default_timeout(WAIT_MS)
        async_api.expect.set_options(timeout=WAIT_MS)
        page.said = []
        page.on("console", lambda told: page.said.append(f"{told.type}: {told.text}"))
        page.on("pageerror", lambda error: page.said.append(f"error: {error}"))
        page.on("requestfailed", lambda request: page.said.append(f"failed: {request.url}"))
        try:
            yield page
        finally:
            await started.close()


async def send(running: Sidecar, texts: list[str]) -> None:
    async with ext_proc_client.connect(running.grpc) as client:
        for text in texts:
            stream = client.open(request_body_mode=Mode.BUFFERED)
            await stream.request_headers({**PATH, "authorization": f"Bearer {MARK}"})
            await stream.receive()
            await stream.request_body(chat(text))
            await stream.receive()
            await stream.half_close()
            assert await stream.rest() == []


@pytest.fixture
async def running(sidecar: Launch, endpoint: Callable[..., FakeEndpoint]) -> Sidecar:
    listening = {f"vllm-{number}": (await endpoint().listen()).address for number in range(3)}
    return await sidecar(
        {**listening, "down": endpoint().address}, group={"name": "chat"}, key_header="x-key"
    )


def shows(page: Any, selector: str) -> Any:
    """Assertions that wait (`wait_for_function` needs `unsafe-eval`, which the page's policy forbids)."""
    return async_api.expect(page.locator(selector))


async def texts(page: Any, selector: str) -> list[str]:
    found: list[str] = await page.locator(selector).all_inner_texts()
    return found


async def serious(page: Any) -> list[str]:
    found = await axe.Axe().run(page)
    return [
        f"{one['id']}: {node['html'][:120]}"
        for one in found.response["violations"]
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


async def test_the_page_lives_explains_and_says_nothing_to_the_console(running: Sidecar) -> None:
    async with browser(viewport={"width": 1300, "height": 900}) as page:
        await page.goto(f"http://{running.admin}/")
        await page.wait_for_selector("#endpoints tbody tr")
        assert await texts(page, "#endpoints tbody th") == ["down", "vllm-0", "vllm-1", "vllm-2"]
        assert "out: refused" in (await texts(page, "#endpoints tbody tr"))[0]
        await shows(page, "#standing").to_have_text("1 out")
        await shows(page, "#news").to_have_text("Out of pool chat: down.")
        assert await texts(page, "#choices tbody tr") == []

        prompt = f"{MARK} " * 2000
        await send(running, [prompt] * 3)
        await shows(page, "#choices tbody tr").to_have_count(3)
        rows = await texts(page, "#choices tbody tr")
        assert "home" in rows[-1]
        assert "block 0 of" in rows[-1]
        assert "99 %" in rows[0], "what was sent before is thought cached"
        assert await page.locator("#ring .chord").count() == 3
        assert await page.locator("#ring .arc").count() > 50
        assert "4 endpoints, 3 ready." in await page.locator("#ring desc").inner_html()
        await shows(page, "#figures dd >> nth=0").to_have_text(re.compile("[1-9]"))

        chosen = await page.locator("#choices tbody th").first.inner_text()
        await page.fill("#explain-headers", "")
        await page.fill("#explain-body", chat(prompt).decode())
        await page.click("#explain button")
        await page.wait_for_selector("#explained .chosen")
        told = await page.locator("#explained").inner_text()
        assert f"{chosen} (" in told
        assert (await page.locator("#explained .chosen th").inner_text()).strip() == f"{chosen} (chosen)"
        assert "warm" in told or "home" in told
        key = await page.locator("#choices tbody .mono").first.inner_text()
        assert key in told, "O02: the key of the live choice"

        await page.fill("#explain-headers", "x-key: mine")
        await page.click("#explain button")
        await shows(page, "#explained").to_contain_text("from header")
        await page.fill("#explain-body", "no json")
        await page.click("#explain button")
        await shows(page, "#explained").to_contain_text("bad json")
        assert (await running.state())["open_leases"] == 0
        assert await page.locator("#choices tbody tr").count() == 3, "explaining is no choice"

        await page.click("#config summary")
        await shows(page, "#settings").to_contain_text('"policy"')
        assert await serious(page) == []
        body = await page.locator("main").inner_text()
        assert MARK not in body
        assert page.said == []


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 390])
async def test_the_page_has_no_serious_fault_for_keyboard_and_screen_reader(
    running: Sidecar, scheme: str, width: int
) -> None:
    await send(running, ["a story " * 1000, "a story " * 1000, "another " * 1000])
    async with browser(viewport={"width": width, "height": 844}, color_scheme=scheme) as page:
        await page.goto(f"http://{running.admin}/")
        await page.wait_for_selector("#choices tbody tr")
        await page.fill("#explain-body", chat("a story " * 1000).decode())
        await page.click("#explain button")
        await page.wait_for_selector("#explained .chosen")
        for summary in await page.locator("summary").all():
            await summary.click()
        assert await serious(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
            "no sideways scrolling"
        )
        await page.reload()
        await page.wait_for_selector("#choices tbody tr")
        reached = []
        for _ in range(14):
            await page.keyboard.press("Tab")
            reached.append(
                await page.evaluate("document.activeElement.id || document.activeElement.className")
            )
        assert reached[:2] == ["skip", "pause"]
        assert "explain-path" in reached
        await page.focus("#pause")
        await page.keyboard.press("Enter")
        assert await page.locator("#pause").get_attribute("aria-pressed") == "true"
        assert page.said == []


async def test_names_and_errors_are_text_whatever_they_hold(sidecar: Launch, tmp_path: Any) -> None:
    evil = '<img src=x onerror="document.title=1">'
    file = tmp_path / "members.json"
    file.write_text(json.dumps({"endpoints": [{"name": "ok", "address": "127.0.0.1:1"}]}))
    running = await sidecar(
        {}, group={"endpoints": None, "file": {"path": str(file), "poll_interval_s": 0.05}}
    )
    async with browser() as page:

        async def answer(route: Any) -> None:
            """The sidecar refuses such names: here is a source that would not."""
            found = await (await route.fetch()).json()
            for pool in found["pools"]:
                pool["name"] = evil
                pool["source"] |= {"problem": evil, "detail": evil}
                for one in pool["endpoints"]:
                    one |= {"name": evil, "address": evil, "against": [evil], "signals_problem": evil}
            await route.fulfill(json=found)

        await page.route("**/api/state", answer)
        await page.goto(f"http://{running.admin}/")
        await page.wait_for_selector("#endpoints tbody tr")
        assert evil in (await texts(page, "#endpoints tbody tr"))[0]
        await page.fill(
            "#explain-body", json.dumps({"model": evil, "messages": [{"role": evil, "content": "x" * 999}]})
        )
        await page.click("#explain button")
        await page.wait_for_selector("#explained p, #explained dl")
        assert await page.locator("img[src=x]").count() == 0
        assert await page.title() == "kvring"


async def test_a_token_is_asked_for_and_kept_out_of_everything(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint], tmp_path: Any
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{MARK}-token\n")
    up = await endpoint().listen()
    running = await sidecar({"up": up.address}, admin_token_file=str(file))
    async with browser() as page:
        await page.goto(f"http://{running.admin}/")
        await page.wait_for_selector("#key:not([hidden])")
        assert await page.locator("#endpoints tbody tr").count() == 0
        await page.fill("#token", "wrong-wrong-wrong")
        await page.click("#key button")
        await shows(page, "#key-problem").to_have_text("That is not the token.")
        await page.fill("#token", f"{MARK}-token")
        await page.click("#key button")
        await page.wait_for_selector("#endpoints tbody tr")
        await page.click("#config summary")
        await shows(page, "#settings").to_contain_text("pools")
        assert MARK not in await page.content()
    assert MARK not in (await running.get("/metrics"))[1]
    running.signal()
    await running.exited()
    assert MARK not in running.stderr()


@pytest.mark.heavy
async def test_the_page_tells_that_kvring_is_gone_and_comes_back_by_itself(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint]
) -> None:
    up = await endpoint().listen()
    running = await sidecar({"up": up.address})
    async with browser() as page:
        await page.goto(f"http://{running.admin}/")
        await shows(page, "#standing").to_have_text("well")
        running.signal()
        await running.exited()
        await shows(page, "#standing").to_have_text("no answer")
        again = await sidecar({"up": up.address}, admin_listen=running.admin)
        await eventually(lambda: asyncio.sleep(0, again.admin == running.admin))
        await shows(page, "#standing").to_have_text("well")


async def test_a_pool_steered_by_hash_is_shown_without_endpoints_and_explained(sidecar: Launch) -> None:
    group = {"name": "big", "steering": "hash", "endpoint_count": 64}
    running = await sidecar({}, pools=[group])
    async with browser() as page:
        await page.goto(f"http://{running.admin}/")
        await async_api.expect(page.locator("#standing")).to_have_text("well")
        await async_api.expect(page.locator("#source")).to_contain_text("knows no endpoint")
        await async_api.expect(page.locator("#figures")).to_contain_text("64")
        await page.fill("#explain-body", chat("question " * 100).decode())
        await page.locator("#explain button[type=submit], #explain button").first.click()
        await async_api.expect(page.locator("#explained")).to_contain_text("in x-kvring-hash")
        assert [line for line in page.said if line.startswith(("error", "failed"))] == []
        found = await axe.Axe().run(page)
        assert [one["id"] for one in found.response["violations"] if one["impact"] in SERIOUS] == []
