"""Takes the pictures of the page that the docs show: six simulated replicas under traffic, seen by Chromium.

Usage: python docs/screenshots.py [FOLDER]      (docs/images by default)

Needs the extras `envoy` and `sim`, the package playwright and a chromium on PATH.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from PIL import Image
from playwright import async_api

_HERE = Path(__file__).parent
_REPLICAS = 6
_USERS = 14
_WARM_S = 25.0
_WORDS = (
    "the ring keeps every prompt where its cache already is and spills over before a replica drowns".split()  # noqa: SIM905
)
_LONG = " ".join(_WORDS * 160)
_MODEL = "codellama-13b"
_WIDTHS = {"laptop": (1440, 900), "phone": (390, 844)}


@asynccontextmanager
async def gateway() -> AsyncIterator[dict[str, Any]]:
    """`kvring up` with simulated replicas; what it says when it is ready."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc", "up", "--port", "0", "--replicas", str(_REPLICAS)),
        *("--kv-tokens", "60000"),
        stdout=asyncio.subprocess.PIPE,
        cwd=_HERE.parent,
    )
    if process.stdout is None:
        raise RuntimeError("stdout was asked for")
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        yield json.loads(line.decode().partition(" ")[2])
    finally:
        process.terminate()
        await process.wait()


async def user(number: int, url: str) -> None:
    """One of `_USERS`: a system prompt that some share, a conversation that grows, now and then no prompt."""
    rng = random.Random(number)  # noqa: S311  (traffic, no secret)
    shared = f"You are assistant {number % 5}. {_LONG[: 3000 + 2500 * (number % 5)]}"
    async with aiohttp.ClientSession() as session:
        while True:
            messages = [{"role": "system", "content": shared}]
            for turn in range(5):
                messages.append({"role": "user", "content": f"{turn} " + " ".join(rng.choices(_WORDS, k=60))})
                body = {"model": _MODEL, "messages": messages, "max_tokens": 30}
                async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                    await answer.read()
                messages.append({"role": "assistant", "content": " ".join(rng.choices(_WORDS, k=20))})
                await asyncio.sleep(rng.uniform(0.1, 0.9))
            async with session.get(f"{url}/v1/models") as answer:
                await answer.read()


async def shoot(admin: str, folder: Path) -> list[Path]:
    """The page by light and dark, on a laptop and a phone, and an explanation."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("no chromium on PATH")
    made = []
    request = {
        "model": _MODEL,
        "messages": [{"role": "system", "content": f"You are assistant 2. {_LONG[:8000]}"}],
    }
    async with async_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        pages = {}
        for device, (width, height) in _WIDTHS.items():
            for scheme in ("light", "dark"):
                pages[device, scheme] = page = await browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                await page.goto(f"http://{admin}/")
        await asyncio.sleep(_WARM_S)
        for (device, scheme), page in pages.items():
            file = folder / f"page-{device}-{scheme}.png"
            if (device, scheme) != ("phone", "dark"):
                await page.screenshot(path=file)
                made.append(file)
        page = pages["laptop", "light"]
        await page.fill("#explain-body", json.dumps(request))
        await page.click("#explain button")
        await page.wait_for_selector("#explained table")
        await page.evaluate(
            'document.querySelector(\'#explain-body\').value = \'{"model": "sim", "messages": [...]}\''
        )
        file = folder / "page-explain.png"
        await page.locator("section:has(#explain)").screenshot(path=file)
        made.append(file)
        await browser.close()
    return made


async def main() -> None:
    """Traffic, pictures, smaller files."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _HERE / "images"
    folder.mkdir(parents=True, exist_ok=True)
    async with gateway() as up:
        users = [asyncio.create_task(user(number, up["url"])) for number in range(_USERS)]
        try:
            made = await shoot(up["admin"], folder)
        finally:
            for task in users:
                task.cancel()
            await asyncio.gather(*users, return_exceptions=True)
    for file in made:  # 128 colours are enough for a page of flat ones, at half the size
        with Image.open(file) as picture:
            picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)
    print("\n".join(f"{file}: {file.stat().st_size // 1024} KiB" for file in made))


if __name__ == "__main__":
    asyncio.run(main())
