"""docs/quickstart.md, followed to the letter: from README to a routed request in front of two servers of
one's own.

Only addresses are put in, as the page tells. `make up` is taken apart: its environment is this one's, its
command the Makefile's.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from extproc import gateway
from extproc.sim import performance, replica
from tests.envoy import client

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/quickstart.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line and not line.startswith("#")
]
KVRING = [sys.executable, "-m", "extproc"]


def test_a_request_is_routed_in_fewer_than_five_commands_and_readme_leads_here() -> None:
    sent = next(number for number, line in enumerate(COMMANDS, 1) if line.startswith("curl"))
    assert sent < 5
    readme = (ROOT / "README.md").read_text()
    assert "docs/quickstart.md" in readme
    assert 'make up ARGS="--upstream' in readme


async def test_the_quickstart_brings_a_routed_request_in_front_of_two_servers() -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    model = performance.PRESETS["8b-h100"]
    async with (
        replica.Replica(model, replica.Settings(name="mine-0", model="mine", speed=10)) as first,
        replica.Replica(model, replica.Settings(name="mine-1", model="mine", speed=10)) as second,
    ):
        servers = {"10.0.0.1:8000": first.address, "10.0.0.2:8000": second.address}
        up, curl, state, doctor = COMMANDS
        process, ready = await asyncio.to_thread(_start, _in_place(_up(up), servers))
        try:
            put_in = {"http://127.0.0.1:10000": ready["url"], "MODEL": "mine"}
            envoy = gateway.Envoy(process, ready["envoy_admin"], {})
            send = functools.partial(asyncio.to_thread, _run, _in_place(shlex.split(curl), put_in))
            answers = [await client.in_time(envoy, send) for _ in range(2)]
            for answer in answers:
                head, _, body = answer.replace("\r\n", "\n").partition("\n\n")
                assert head.startswith("HTTP/1.1 200")
                assert json.loads(body)["choices"][0]["message"]["content"]
            served = [re.search(r"x-kvring-endpoint: (\S+)", answer)[1] for answer in answers]
            assert served[0] == served[1]
            assert served[0] in servers.values()
            shown = await asyncio.to_thread(_run, _kvring(state, {"127.0.0.1:9090": ready["admin"]}))
            assert all(address in shown for address in servers.values())
            quick = {**servers, "60": "1"}
            told = await asyncio.to_thread(_run, [*_kvring(doctor, quick), "--json"])
            assert json.loads(told)["fleets"][0]["replicas"] == 2
        finally:
            process.terminate()
            await asyncio.to_thread(process.communicate, timeout=client.WAIT_S)


def _up(line: str) -> list[str]:
    """What `make up ARGS=...` runs, on a free port."""
    make, target, argument = shlex.split(line)
    assert (make, target) == ("make", "up")
    recipe = re.search(r"^up:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert recipe == "$(BIN)/kvring up $(ARGS)"
    return [*KVRING, "up", *shlex.split(argument.removeprefix("ARGS=")), "--port", "0"]


def _kvring(line: str, put_in: dict[str, str]) -> list[str]:
    words = shlex.split(line)
    assert words[0] == ".venv/bin/kvring"
    return [*KVRING, *_in_place(words[1:], put_in)]


def _in_place(words: list[str], put_in: dict[str, str]) -> list[str]:
    for old, new in put_in.items():
        words = [word if old == "60" and word != "60" else word.replace(old, new) for word in words]
    return words


def _start(words: list[str]) -> tuple[subprocess.Popen[str], dict[str, str]]:
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    if not line.startswith("ready "):
        process.kill()
        process.communicate()
        pytest.fail(f"kvring up said {line!r}")
    return process, json.loads(line.removeprefix("ready "))


def _run(words: list[str]) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
