"""`kvring doctor` as a user runs it: real replicas over HTTP, a Prometheus API, saved files, exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from extproc.sim import performance, replica
from tests import fleets
from tests.functional.conftest import chat

MODEL = performance.PRESETS["8b-h100"]


async def doctor(*words: str) -> tuple[int, str, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "extproc", "doctor", *map(str, words),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode is not None
    return child.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def running(count: int) -> AsyncIterator[list[replica.Replica]]:
    async with contextlib.AsyncExitStack() as stack:
        made = [replica.Replica(MODEL, replica.Settings(name=f"r{n}", speed=20)) for n in range(count)]
        for one in made:
            await stack.enter_async_context(one)
        yield made


async def ask(address: str, requests: int) -> None:
    async with aiohttp.ClientSession() as session:
        for number in range(requests):
            body = json.loads(chat(f"question {number} " * 40, "codellama-13b")) | {"max_tokens": 2}
            async with session.post(f"http://{address}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200


async def test_replicas_are_asked_saved_and_the_saved_looks_say_the_same(tmp_path) -> None:
    looks = tmp_path / "looks"
    async with running(2) as made:
        for one in made:
            await ask(one.address, 40)
        addresses = [one.address for one in made]
        code, out, err = await doctor(*addresses, "127.0.0.1:1", "--json", "--save", looks)
    assert code == 0, out + err
    told = json.loads(out)
    (fleet,) = told["fleets"]
    assert fleet["figures"]["requests"] == 80
    assert sorted(fleet["each"]) == sorted(addresses)
    assert fleet["findings"][0]["kind"] == "nothing-to-win"
    assert list(told["unread"]) == ["127.0.0.1:1"]
    code, out, _ = await doctor(looks, "--json")
    assert code == 0
    assert json.loads(out)["fleets"][0]["figures"]["requests"] == 80


async def test_two_looks_show_what_came_between() -> None:
    async with running(1) as (one,):
        await ask(one.address, 30)
        looking = asyncio.ensure_future(doctor(one.address, "--json", "--interval", "3"))
        while not looking.done():
            await ask(one.address, 5)
        code, out, err = await looking
    assert code == 0, err
    (fleet,) = json.loads(out)["fleets"]
    assert not fleet["since_start"]
    assert fleet["elapsed_s"] >= 3
    assert fleet["figures"]["requests"] > 0


async def test_kvring_among_the_targets_says_that_the_fleet_is_routed() -> None:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text='# TYPE kvring_build_info gauge\nkvring_build_info{version="1"} 1.0\n')

    missing = fleets.DATA / "missing"
    async with serving({"/metrics": metrics}) as address:
        _, out, _ = await doctor(missing, address, "--json", "--no-simulation")
    kinds = [one["kind"] for one in json.loads(out)["fleets"][0]["findings"]]
    assert "scattered-prefixes" not in kinds
    code, out, _ = await doctor(missing, "--json", "--no-simulation")
    assert json.loads(out)["fleets"][0]["findings"][0]["kind"] == "scattered-prefixes"
    assert code == 1


async def test_a_prometheus_server_is_found_out_and_asked_for_the_selector_only() -> None:
    asked: list[str] = []

    async def query(_: web.Request) -> web.Response:
        return web.json_response({"status": "success", "data": {"resultType": "scalar", "result": [0, "1"]}})

    async def query_range(request: web.Request) -> web.Response:
        form = await request.post()
        asked.append(str(form["query"]))
        start, end = float(str(form["start"])), float(str(form["end"]))
        result = []
        if "__name__" in asked[-1] and "process_start" not in asked[-1]:
            for name, value in (("num_requests_running", 1), ("prompt_tokens_total", 100)):
                metric = {"__name__": f"vllm:{name}", "instance": "a:1", "model_name": "m"}
                result.append({"metric": metric, "values": [[start, "0"], [end, str(value)]]})
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})

    routes = {"/api/v1/query": query, "/api/v1/query_range": query_range}
    async with serving(routes) as address:
        code, out, err = await doctor(address, "--selector", '{job="vllm"}', "--json", "--window", "60")
    assert code == 0, err
    (fleet,) = json.loads(out)["fleets"]
    assert (fleet["model"], list(fleet["each"]), round(fleet["elapsed_s"])) == ("m", ["a:1"], 60)
    assert asked
    assert all('job="vllm"' in one for one in asked)


async def test_what_is_nothing_is_said_and_ends_with_2(tmp_path) -> None:
    async def empty(_: web.Request) -> web.Response:
        return web.Response(text="up 1\n")

    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.prom.gz").write_bytes(b"not gzip")
    async with serving({"/metrics": empty}) as address:
        code, _, err = await doctor(tmp_path / "empty", tmp_path / "bad.prom.gz", address)
    assert code == 2
    assert "nothing was read" in err
    assert "Traceback" not in err
    assert (await doctor())[0] == 2
    assert (await doctor("x", "--header", "no colon"))[0] == 2


async def test_hostile_answers_and_damaged_files_are_problems_by_name(tmp_path) -> None:
    whole = bytearray(gzip.compress(b"vllm:num_requests_running 1\n" * 1000))
    whole[15:21] = b"\xff" * 6
    (tmp_path / "damaged.prom.gz").write_bytes(whole)

    async def engine(_: web.Request) -> web.Response:
        return web.Response(text="# TYPE \n# TYPE  x\nvllm:num_requests_running 1\n")

    def prometheus(answer: str) -> dict[str, Any]:
        async def query(_: web.Request) -> web.Response:
            return web.Response(text='{"status": "success"}')

        async def query_range(_: web.Request) -> web.Response:
            return web.Response(text=answer)

        return {"/api/v1/query": query, "/api/v1/query_range": query_range}

    async def circle(_: web.Request) -> web.Response:
        raise web.HTTPFound("/metrics")

    far = json.dumps({"status": "success", "data": {"result": [{"metric": {}, "values": [[10**400, "1"]]}]}})
    async with (
        serving({"/metrics": engine}) as odd,
        serving(prometheus("[" * 200_000)) as deep,
        serving(prometheus(far)) as late,
        serving({"/metrics": circle}) as endless,
    ):
        code, out, err = await doctor(
            odd, f"http://me:hidden@{deep}", late, f"http://me:hidden@{endless}", "http://[::1", tmp_path,
            "--json", "--no-simulation", "--save", tmp_path / "kept",
        )  # fmt: skip
    assert code == 0, err
    assert "hidden" not in out + err
    problems = json.loads(out)["unread"]
    assert "Prometheus" in problems[f"http://{deep}"]
    assert "Prometheus" in problems[f"http://{late}"]
    assert "redirects" in problems[endless]
    assert "damaged" in problems[str(tmp_path / "damaged.prom.gz")]
    assert "http://[::1" in problems


async def test_a_header_goes_to_the_address_named_and_no_redirect_takes_it_elsewhere() -> None:
    seen: list[str | None] = []

    async def elsewhere(request: web.Request) -> web.Response:
        seen.append(request.headers.get("x-secret"))
        return web.Response(text="vllm:num_requests_running 1\n")

    async with serving({"/metrics": elsewhere}) as other:

        async def moved(_: web.Request) -> web.Response:
            raise web.HTTPFound(f"http://me:hidden@{other}/metrics")

        async with serving({"/metrics": moved}) as named:
            code, out, err = await doctor(named, "--header", "x-secret: 7", "--json", "--no-simulation")
    assert code == 2, err
    assert f"redirects to http://{other}/metrics" in out + err
    assert "hidden" not in out + err
    assert seen == []


async def test_the_table_is_for_people_and_names_the_first_finding() -> None:
    code, out, err = await doctor(fleets.DATA / "caching-off")
    assert code == 1
    assert "ACT 1. Prefix caching is off" in " ".join(out.split())
    assert err == ""
    code, out, _ = await doctor(fleets.DATA / "healthy", "--strict")
    assert code == 0


async def test_promql_needs_no_target() -> None:
    code, out, _ = await doctor("--promql", "--selector", 'job="vllm"', "--window", "300")
    assert code == 0
    assert 'sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{job="vllm"}[5m]))' in out


@contextlib.asynccontextmanager
async def serving(routes: dict[str, object]) -> AsyncIterator[str]:
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_route("*", path, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.usefixtures("interruptible")
async def test_watching_looks_again_until_it_is_interrupted() -> None:
    async with running(1) as (one,):
        await ask(one.address, 30)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "extproc", "doctor", one.address, "--watch", "1", "--no-simulation",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout is not None
        looks = 0
        async with asyncio.timeout(60):
            while looks < 3:
                line = (await child.stdout.readline()).decode()
                assert line, "it ended by itself"
                looks += "1 replica, vLLM" in line
            child.send_signal(signal.SIGINT)
            _, err = await child.communicate()
    assert child.returncode == 0, err.decode()
    assert "Traceback" not in err.decode()
