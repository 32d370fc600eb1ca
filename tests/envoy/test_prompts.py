"""Prompts as they arrive through a real Envoy: paths, codings, chunks and cuts, stored answers: P15, P19, P20
and P23. The endpoints are small servers of this test: they tell what they received, and answer as the
Responses API does.
"""

import gzip
import hashlib
import io
import json
import zlib

import brotli
import pytest
import pytest_asyncio
import zstandard
from aiohttp import web

from extproc.exchange import BodyMode
from tests.envoy import fleet as fleets

PARTIAL, DUPLEX = BodyMode.BUFFERED_PARTIAL, BodyMode.FULL_DUPLEX_STREAMED
ENDPOINTS = 4
BUFFER_BYTES = 64 * 1024


class Stage:
    """Endpoints behind Envoy and kvring."""

    def __init__(self) -> None:
        self.running: fleets.Fleet | None = None
        self.answers = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response()
        body = await request.read()
        seen = {
            "sha256": hashlib.sha256(body).hexdigest(),
            "path": request.path_qs,
            "coding": request.headers.get("content-encoding", ""),
        }
        if "/responses" not in request.path:
            return web.json_response(seen)
        self.answers += 1
        answer = {"id": f"resp_{self.answers:08x}", "object": "response", "output": [], "metadata": seen}
        if not json.loads(body).get("stream"):
            return web.json_response(answer)
        streamed = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await streamed.prepare(request)
        event = (
            b"event: response.created\ndata: "
            + json.dumps({"type": "response.created", "sequence_number": 0, "response": answer}).encode()
        )
        for at in range(0, len(event), 7):  # the id is split over what Envoy reads
            await streamed.write(event[at : at + 7])
        await streamed.write(b"\n\nevent: response.completed\ndata: {}\n\n")
        return streamed

    async def post(self, body, path="/v1/chat/completions", **headers):
        """(endpoint that served it, what that received or answered)"""
        names = {"content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        async with self.running.http.post(
            self.running.url + path,
            data=io.BytesIO(body) if isinstance(body, bytes) else body,
            headers=names,
            skip_auto_headers=["accept-encoding"],
        ) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.headers.get("x-kvring-endpoint")
            return answer.headers["x-kvring-endpoint"], await answer.read()

    async def unkeyed(self, reason: str) -> float:
        return await self.running.metric("kvring_unkeyed_total", reason=reason)


@pytest_asyncio.fixture(
    scope="module", loop_scope="session", params=[PARTIAL, DUPLEX], ids=lambda mode: mode.name
)
async def stage(request, tmp_path_factory):
    made = Stage()
    runners, others = [], {}
    for number in range(ENDPOINTS):
        app = web.Application(client_max_size=32 << 20)
        app.router.add_route("*", "/{rest:.*}", made.serve)
        runner = web.AppRunner(app, access_log=None, auto_decompress=False)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        others[f"own-{number}"] = f"127.0.0.1:{runner.addresses[0][1]}"
    async with fleets.fleet(
        tmp_path_factory.mktemp("stage"),
        replicas=0,
        others=others,
        listener={"body_bytes_max": BUFFER_BYTES},
        body_mode=request.param,
        response_body_mode=BodyMode.STREAMED,
    ) as running:
        made.running = running
        made.mode = request.param
        yield made
    for runner in runners:
        await runner.cleanup()


def chat(text: str, **fields) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": text * 100}], **fields}
    ).encode()


async def test_prefix_query_slash_and_render_are_keyed_as_the_plain_path(stage):  # P19
    before = await stage.unkeyed("unknown_path")
    body = chat("same prompt ")
    home, _ = await stage.post(body)
    for path in (
        "/v1/chat/completions/", "/v1/chat/completions?beta=true", "/team-a/v1/chat/completions",
        "/v1/chat/completions/render", "/x/v1/chat/completions/?a=b",
    ):  # fmt: skip
        served, got = await stage.post(body, path)
        assert json.loads(got)["path"] == path
        assert served == home, path
    claude = json.dumps({**json.loads(chat("hello ")), "max_tokens": 1}).encode()
    homes = {(await stage.post(claude, path))[0] for path in ("/v1/messages", "/v1/messages?beta=true") * 3}
    assert len(homes) == 1
    assert await stage.unkeyed("unknown_path") == before
    await stage.post(body, "/v1/audio/transcriptions")
    assert await stage.unkeyed("unknown_path") == before + 1


CODERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
    "br": brotli.compress,
}


async def test_compressed_bodies_go_where_plain_ones_do_and_arrive_as_they_were(stage):  # P20
    body = chat("compressed prompt ")
    home, _ = await stage.post(body)
    before = await stage.unkeyed("content_encoding")
    for coding, encode in CODERS.items():
        data = encode(body)
        served, got = await stage.post(data, content_encoding=coding)
        seen = json.loads(got)
        assert served == home, coding
        assert (seen["sha256"], seen["coding"]) == (hashlib.sha256(data).hexdigest(), coding)
    assert await stage.unkeyed("content_encoding") == before
    for coding in ("snappy", "gzip, gzip"):
        _, got = await stage.post(b"\x01\x02" * 50, content_encoding=coding)
        assert json.loads(got)["coding"] == coding
    assert await stage.unkeyed("content_encoding") == before + 2
    _, got = await stage.post(b"\x1f\x8b broken", content_encoding="gzip")
    assert json.loads(got)["sha256"] == hashlib.sha256(b"\x1f\x8b broken").hexdigest()


async def test_single_bytes_and_bodies_over_envoys_buffer_go_to_the_same_endpoint(stage):  # P23
    body = chat("in pieces ")

    async def single_bytes():
        for at in range(len(body)):
            yield body[at : at + 1]

    home, _ = await stage.post(body)
    served, got = await stage.post(single_bytes())
    assert json.loads(got)["sha256"] == hashlib.sha256(body).hexdigest()
    assert served == home
    long = chat("longer than the buffer of 64 KiB " * 40, stream=False)
    assert len(long) > BUFFER_BYTES + 10_000
    homes = []
    for number in range(4):
        served, got = await stage.post(long + b" " * number)
        homes.append(served)
        assert json.loads(got)["sha256"] == hashlib.sha256(long + b" " * number).hexdigest()
    assert len(set(homes)) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_continued_answers_go_to_the_endpoint_that_gave_them(stage, stream):  # P15
    def ask(text, **fields):
        return json.dumps({"model": "m", "input": text * 60, "stream": stream, **fields}).encode()

    homes = []
    before = await stage.running.metric("kvring_unkeyed_total", reason="previous_response")
    for number in range(8):
        home, got = await stage.post(ask(f"question {number} {stream} "), "/v1/responses")
        for _ in range(3):
            start = got.index(b'"id": "resp_') + len(b'"id": "')
            answer = got[start : got.index(b'"', start)].decode()
            served, got = await stage.post(ask("go on ", previous_response_id=answer), "/v1/responses")
            assert served == home
        homes.append(home)
    assert len(set(homes)) > 1
    spread = {
        (await stage.post(ask("go on ", previous_response_id=f"resp_unknown{n}"), "/v1/responses"))[0]
        for n in range(24)
    }
    assert len(spread) >= ENDPOINTS - 1
    assert await stage.running.metric("kvring_unkeyed_total", reason="previous_response") == before + 24 + 24
