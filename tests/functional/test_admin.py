"""Admin: the four pages of a running sidecar, closed label sets, and no trace of any request anywhere."""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from prometheus_client import parser

from extproc import prompt
from tests import ext_proc_client, promtool, sdk_bodies
from tests.ext_proc_client import Client, Mode, Stream
from tests.functional.conftest import ROOT, WAIT_S, FakeEndpoint, Launch, Sidecar, eventually

MARK = "xyzzy-secret"
PAGES = ("/metrics", "/api/state", "/api/choices", "/api/config", "/", "/healthz", "/readyz")
DUPLEX = Mode.FULL_DUPLEX_STREAMED


def documented() -> dict[str, tuple[str, str]]:
    """Name -> (type, meaning) of the metrics in docs/metrics.md."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `((?:kvring|process)_\w+)` \| (\w+) \| [^|]* \| (.*) \|$", text, re.MULTILINE)
    return {name: (kind, meaning) for name, kind, meaning in rows}


async def scraped(running: Sidecar) -> dict[str, Any]:
    """Metric families by name, parsed by Prometheus's own parser."""
    status, text = await running.get("/metrics")
    assert status == 200
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


async def series(running: Sidecar) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    families = (await scraped(running)).values()
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in families
        for sample in family.samples
    }


async def request(client: Client, mode: Mode, headers: dict[str, str], body: bytes, *, cut: bool) -> None:
    stream = client.open(request_body_mode=mode, attributes={"request.id": MARK, "source.address": MARK})
    await stream.request_headers(headers)
    if mode is not DUPLEX:
        await stream.receive()
    await stream.request_body(body, end_of_stream=not cut)
    await stream.receive()
    if mode is DUPLEX:
        await stream.receive()
    await stream.half_close()
    assert await stream.rest() == []


async def test_the_pages_tell_of_a_running_sidecar(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint]
) -> None:
    up, down = await endpoint().listen(), endpoint()
    running = await sidecar(
        {"up": up.address, "down": down.address}, group={"name": "blue", "policy": "ring"}
    )
    assert await running.get("/healthz") == (200, "ok\n")
    assert await running.get("/readyz") == (200, "ready\n")
    assert (await running.get("/nowhere"))[0] == 404

    state = json.loads((await running.get("/api/state"))[1])
    assert state["ready"] is True
    (group,) = state["pools"]
    assert (group["name"], group["policy"], group["generation"], group["open_leases"]) == (
        "blue",
        "ring",
        2,
        0,
    )
    assert [(e["name"], e["address"], e["ready"], e["inflight"]) for e in group["endpoints"]] == [
        ("down", down.address, False, 0),
        ("up", up.address, True, 0),
    ]

    async with ext_proc_client.connect(running.grpc) as client:
        stream = client.open(request_body_mode=Mode.BUFFERED)
        await parked(stream)
        (group,) = json.loads((await running.get("/api/state"))[1])["pools"]
        assert group["open_leases"] == 1
        one = next(e for e in group["endpoints"] if e["name"] == "up")
        assert one["inflight"] == 1
        assert one["pending_tokens"] > 1000
        assert one["residency_blocks"] > 10
        families = await scraped(running)

    found = {
        family.name + ("_total" if family.type == "counter" else ""): (family.type, family.documentation)
        for family in families.values()
        if not family.name.endswith("_created")
    }
    assert found == documented()
    values = {
        sample.name: sample.value
        for family in families.values()
        for sample in family.samples
        if sample.labels.get("endpoint", "up") == "up"
    }
    assert values["kvring_inflight_requests"] == values["kvring_streams_open"] == 1
    assert values["kvring_endpoint_ready"] == 1
    assert values["kvring_start_time_seconds"] > 1_700_000_000
    await eventually(lambda: no_leases(running))


async def parked(stream: Stream) -> None:
    await stream.request_headers({":path": "/v1/chat/completions"})
    await stream.receive()
    message = {"role": "user", "content": "y" * 40_000}
    await stream.request_body(json.dumps({"model": "m", "messages": [message]}).encode())
    await stream.receive()


async def no_leases(running: Sidecar) -> bool:
    return await running.open_leases() == 0


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_the_admin_server_only_reads(serve: Callable[..., Any], method: str) -> None:
    served = await serve()
    await served.admin.start("127.0.0.1:0")
    try:
        async with aiohttp.ClientSession() as session:
            for path in ("/metrics", "/healthz", "/readyz", "/api/state"):
                async with session.request(method, f"http://{served.admin.address}{path}") as answer:
                    assert answer.status == 405
    finally:
        await served.admin.stop()


async def test_requests_leave_no_trace_and_make_no_series(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint]
) -> None:
    """200 invented models and paths, with a mark wherever a request can carry one."""
    up = await endpoint().listen()
    running = await sidecar({"up": up.address}, environ={"KVRING_LOG_LEVEL": "debug"})
    rng = random.Random(3)
    before = await series(running)
    async with ext_proc_client.connect(running.grpc) as client:

        async def one(number: int) -> None:
            model = f"{MARK}-{rng.random()}"
            body = json.dumps(
                {
                    "model": model,
                    "user": MARK,
                    "prompt_cache_key": MARK,
                    "messages": [{"role": "user", "content": f"{MARK} {number} " * 50}],
                }
            ).encode()
            if number % 5 == 0:
                body = body[: rng.randrange(len(body))]
            elif number % 7 == 0:
                body = MARK.encode() + body
            path = "/v1/chat/completions" if number % 3 else f"/v1/{MARK}/{rng.random()}"
            headers = {
                ":path": f"{path}?key={MARK}",
                ":authority": f"{MARK}.example",
                "authorization": f"Bearer {MARK}",
                "x-api-key": MARK,
                "cookie": MARK,
                f"x-{MARK}": MARK,
                "content-encoding": "" if number % 11 else MARK,
            }
            mode = (Mode.BUFFERED, Mode.BUFFERED_PARTIAL, DUPLEX)[number % 3]
            await request(client, mode, headers, body, cut=number % 5 == 0 and mode is Mode.BUFFERED_PARTIAL)

        await asyncio.gather(*(one(number) for number in range(200)))
        for data in (MARK.encode(), b"\x12\xff" + MARK.encode(), b"\xff\xff"):
            stream = client.open()
            await stream.send_bytes(data)
            assert await stream.rest() == []
        hint = {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": f"{MARK}:1"}}
        stream = client.open(request_body_mode=Mode.NONE, metadata=hint)
        await stream.request_headers({":path": MARK})
        await stream.receive()
        stream.cancel()
    await garbage(running.admin)
    await explained(running)
    await eventually(lambda: no_leases(running))

    families = await scraped(running)
    assert await series(running) == before
    pages = [(await running.get(page))[1] for page in PAGES]
    counted = {
        tuple(sample.labels.values()): sample.value
        for name in ("kvring_choices", "kvring_unkeyed", "kvring_no_opinion", "kvring_refused")
        for sample in families[name].samples
        if sample.name.endswith("_total")
    }
    assert counted["unknown_path",] > 0
    assert counted["bad_json",] > 0
    assert counted["content_encoding",] > 0
    assert counted["malformed_message",] == 3
    assert counted["subset",] == 1
    assert counted["fault",] == 0
    running.signal()
    assert await running.exited() == 0
    logged = running.events()
    assert len([line for line in logged if line["event"] == "choice"]) == 200, "debug tells every choice"
    everything = "\n".join([*pages, running.stderr()])
    assert MARK not in everything
    assert len(everything) > 10_000


async def explained(running: Sidecar) -> None:
    """Marks in what is pasted into the form, good and bad; they come back to nobody but the model's name."""
    good = json.dumps({"model": "m", "messages": [{"role": "user", "content": MARK * 500}]}).encode()
    async with aiohttp.ClientSession() as session:
        for body in (good, MARK.encode(), good[:-2], MARK.encode() * 100_000):
            async with session.post(
                f"http://{running.admin}/api/explain?path=/v1/chat/completions&x={MARK}",
                data=io.BytesIO(body),
                headers={"content-type": "application/json", f"x-kvring-asked-{MARK}": MARK, "cookie": MARK},
            ) as answer:
                assert answer.status in {200, 413}
                assert MARK not in await answer.text()


async def garbage(address: str) -> None:
    """What is no HTTP, and what is no path of ours."""
    host, _, port = address.rpartition(":")
    for data in (
        f"{MARK}\r\n\r\n",
        f"GET /{MARK} HTTP/9.9\r\n\r\n",
        f"GET /\x00{MARK} HTTP/1.1\r\nhost: {MARK}\r\n\r\n",
        f"GET /metrics HTTP/1.1\r\nhost: a\r\ncontent-length: {MARK}\r\n\r\n",
        f"GET /{MARK * 2000} HTTP/1.1\r\nhost: a\r\n\r\n",
        f"GET /{MARK} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    ):
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data.encode())
            answer = await reader.readline()
            writer.close()
            await writer.wait_closed()
        assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))


async def test_promtool_finds_nothing_to_say_about_a_scrape_under_traffic(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint]
) -> None:
    up, other = await endpoint().listen(), await endpoint().listen()
    members = {"up": up.address, "other": other.address}
    running = await sidecar(members, group={"name": "blue", "gpus": 2}, decision_timeout_s=60)
    bodies = [
        json.dumps({"model": "m", "messages": [{"role": "user", "content": f"{number} " * 8000}]}).encode()
        for number in range(10)
    ]
    async with ext_proc_client.connect(running.grpc) as client:
        stream = client.open(request_body_mode=Mode.BUFFERED)
        await parked(stream)
        for mode in (Mode.BUFFERED, DUPLEX):
            headers = {":path": "/v1/chat/completions"}
            await asyncio.gather(*(request(client, mode, headers, body, cut=False) for body in bodies))
        families = await scraped(running)
        _, text = await running.get("/metrics")
    # in a thread: the endpoints answer their health checks meanwhile
    done = await asyncio.to_thread(promtool.run, "check", "metrics", stdin=text)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert values["kvring_request_tokens_count",] == 21
    assert values["kvring_saved_prefill_tokens_total", "blue"] > 5 * 1500, "the second time they are warm"
    saved_s = values["kvring_saved_gpu_seconds_total", "blue"]
    rate = values["kvring_prefill_tokens_per_second", "blue"]
    assert saved_s == pytest.approx(2 * values["kvring_saved_prefill_tokens_total", "blue"] / rate)
    assert max(values["kvring_oldest_lease_seconds", name, "blue"] for name in ("up", "other")) > 0
    assert 0 < max(values["kvring_bound_ratio", name, "blue"] for name in ("up", "other")) < 1
    assert values["process_resident_memory_bytes",] > 10_000_000
    assert {family.unit for family in families.values()} == {""}


async def test_what_the_page_explains_is_what_the_next_request_gets(
    sidecar: Launch, endpoint: Callable[..., FakeEndpoint]
) -> None:
    """O02: key, order, pick and reason, over live load and caches, for recorded requests of real SDKs."""
    up = {f"vllm-{number}": (await endpoint().listen()).address for number in range(4)}
    running = await sidecar(up)
    recorded = [one for one in sdk_bodies.RECORDED if len(one.body) < 400_000]
    async with aiohttp.ClientSession() as session, ext_proc_client.connect(running.grpc) as client:
        await parked(client.open(request_body_mode=Mode.BUFFERED))
        for one in [*recorded, *recorded]:
            url = f"http://{running.admin}/api/explain"
            kind = {"content-type": "application/json"}
            async with session.post(url, params={"path": one.path}, data=one.body, headers=kind) as answer:
                told = await answer.json()
            await request(client, Mode.BUFFERED, {":path": one.path}, one.body, cut=False)
            made = json.loads((await running.get("/api/choices"))[1])["choices"][0]
            assert (told["choice"], told["reason"]) == (made["endpoint"], made["reason"]), one
            for name in ("key", "keyed_by", "unkeyed", "policy", "prompt_tokens", "cached_tokens"):
                assert told[name] == made[name], (name, str(one))
            assert told["anchor"] == made["anchor_block"]
            assert set(told["ring"]) == (set(up) if made["key"] else set())


async def test_ten_thousand_invented_models_make_no_series_and_fill_nothing(
    serve: Callable[..., Any],
) -> None:
    """S02: of what clients invent, nothing is a label or a row."""
    served = await serve()
    served.metrics.add_pool("default")
    before = len(served.metrics.exposition().splitlines())
    for number in range(10_000):
        chosen = served.router.read(prompt.Unkeyed.PATH, model=f"{MARK}-{number}")
        decided = served.router.place(chosen, 0.0, 0.5)
        served.metrics.record(decided.choice)
        decided.lease.release()
    text = served.metrics.exposition().decode()
    assert len(text.splitlines()) == before
    assert MARK not in text + json.dumps(served.admin.state())
    assert served.choices() == 10_000
