"""The ext_proc server, message by message: every body mode, steering, lease life, faults.

A real grpc.aio server in this process; the client builds its messages with Envoy's full schema.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import random
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from extproc import choice as choices
from extproc import log, router, wire
from tests import ext_proc_client
from tests.ext_proc_client import Mode, Stream, header_set, headers_removed, kind, steered
from tests.functional.conftest import PATH, WAIT_S, Serve, chat, eventually

DUPLEX = Mode.FULL_DUPLEX_STREAMED
AT_HEADERS = [Mode.NONE, Mode.STREAMED, Mode.GRPC]
AT_BODY = [Mode.BUFFERED, Mode.BUFFERED_PARTIAL, None]
MODES = [*AT_HEADERS, *AT_BODY, DUPLEX]
MARKER = "xyzzy-secret"


def names(modes: list[Mode | None]) -> list[str]:
    return ["not told" if mode is None else str(mode.name) for mode in modes]


every_mode = pytest.mark.parametrize("mode", MODES, ids=names(MODES))


def chunk(reply: Any) -> tuple[bytes, bool] | None:
    """The chunk handed back; an empty one that is not the last, all defaults on the wire, is one too."""
    body = getattr(reply, kind(reply))
    mutation = getattr(getattr(body, "response", None), "body_mutation", None)
    streamed = None if mutation is None else mutation.streamed_response
    return None if streamed is None else (streamed.body, streamed.end_of_stream)


def pieces(data: bytes, *, end: bool) -> list[tuple[bytes, bool]]:
    """A chunk as it comes back: in pieces if it is long."""
    starts = range(0, len(data), wire.ECHO_BYTES_MAX) or [0]
    cut = [data[at : at + wire.ECHO_BYTES_MAX] for at in starts]
    return [(piece, end and number == len(cut)) for number, piece in enumerate(cut, 1)]


async def ask(stream: Stream, mode: Mode | None, body: bytes) -> list[Any]:
    """Send one request as Envoy does in `mode`; every reply up to the one that may steer, the last."""
    await stream.request_headers(PATH)
    if mode in AT_HEADERS:
        return [await stream.receive()]
    if mode is DUPLEX:
        await stream.request_body(body, end_of_stream=True)
        return [await stream.receive()]
    replies = [await stream.receive()]  # headers are answered before the body is sent
    await stream.request_body(body, end_of_stream=True)
    return [*replies, await stream.receive()]


async def finish(stream: Stream, mode: Mode | None, body: bytes) -> None:
    """Let what remains of the request pass, end in good order, and expect nothing unasked."""
    if mode in (Mode.STREAMED, Mode.GRPC):
        await stream.request_body(body)
        assert kind(await stream.receive()) == "request_body"
    if mode is DUPLEX:
        assert chunk(await stream.receive()) == (body, True)
    await stream.half_close()
    assert await stream.rest() == []
    assert await stream.code() is grpc.StatusCode.OK


# ---- every body mode ----


@every_mode
async def test_one_reply_steers_and_its_header_equals_its_metadata(serve: Serve, mode: Mode | None) -> None:
    served = await serve()
    body = chat("a" * 3000)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=mode)
        *before, steering = await ask(stream, mode, body)
        assert steered(steering) == header_set(steering) in served.addresses
        assert headers_removed(steering) == []
        for reply in before:  # a client's own header must not steer meanwhile
            assert steered(reply) is header_set(reply) is None
            assert headers_removed(reply) == [ext_proc_client.DESTINATION]
        await finish(stream, mode, body)
    await served.idle()
    assert served.choices() == served.count("kvring_streams_total") == 1
    blind = served.count("kvring_unkeyed_total", reason="body_not_seen")
    assert blind == (1 if mode in AT_HEADERS else 0)
    assert (served.count("kvring_prompt_tokens_total") > 700) == (mode not in AT_HEADERS)


@every_mode
async def test_a_request_without_a_body_is_steered_by_its_header_reply(
    serve: Serve, mode: Mode | None
) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=mode)
        await stream.request_headers({":path": "/v1/models", ":method": "GET"}, end_of_stream=True)
        reply = await stream.receive()
        assert kind(reply) == "request_headers"
        assert steered(reply) == header_set(reply) in served.addresses
        await stream.half_close()
        assert await stream.rest() == []
    await served.idle()
    assert served.count("kvring_unkeyed_total", reason="no_body") == 1


@every_mode
async def test_without_pick_header_only_metadata_is_touched(serve: Serve, mode: Mode | None) -> None:
    served = await serve(pick_header=False)
    body = chat("b" * 2000)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=mode)
        *before, steering = await ask(stream, mode, body)
        assert steered(steering) in served.addresses
        for reply in (*before, steering):
            assert header_set(reply) is None
            assert headers_removed(reply) == []
        await finish(stream, mode, body)


@pytest.mark.parametrize("pick_header", [True, False])
@every_mode
async def test_with_nobody_ready_a_clients_own_header_is_removed_and_nothing_is_set(
    serve: Serve, mode: Mode | None, *, pick_header: bool
) -> None:
    served = await serve(ready=False, pick_header=pick_header)
    body = chat("c" * 2000)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=mode)
        for reply in await ask(stream, mode, body):
            assert steered(reply) is header_set(reply) is None
            assert headers_removed(reply) == ([ext_proc_client.DESTINATION] if pick_header else [])
        assert served.state()["open_leases"] == 0
        await finish(stream, mode, body)
    assert served.count("kvring_no_opinion_total", reason="no_endpoint") == 1
    assert served.choices() == 0


@every_mode
async def test_the_gateways_subset_is_obeyed(serve: Serve, mode: Mode | None) -> None:
    served = await serve()
    body = chat("d" * 2000)
    key = "x-gateway-destination-endpoint-subset"
    async with ext_proc_client.connect(served.address) as client:
        for allowed in (["10.0.0.3:8000"], "10.0.0.2:8000, 10.9.9.9:1"):
            hint = {"envoy.lb.subset_hint": {key: allowed}}
            stream = client.open(request_body_mode=mode, metadata=hint)
            *_, steering = await ask(stream, mode, body)
            assert steered(steering) in ("10.0.0.3:8000", "10.0.0.2:8000")
            assert str(steered(steering)) in allowed
            await finish(stream, mode, body)
        for nobody in ([], ["10.0.0.1:8001"], "10.9.9.9:8000"):
            stream = client.open(request_body_mode=mode, metadata={"envoy.lb.subset_hint": {key: nobody}})
            *_, refusal = await ask(stream, mode, body)
            assert kind(refusal) == "immediate_response"
            assert refusal.immediate_response.status.code == 503
            assert header_set(refusal, "x-kvring-refused") == "subset"
            await stream.half_close()
            assert await stream.rest() == []
            assert await stream.code() is grpc.StatusCode.OK
    assert served.count("kvring_refused_total", reason="subset") == 3
    await served.idle()


async def test_the_part_of_a_body_steers_as_the_whole_body_did(serve: Serve) -> None:
    served = await serve(endpoints=16)
    body = chat("".join(random.Random(1).choices("abcdef ", k=40_000)))
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=Mode.BUFFERED_PARTIAL)
        *_, whole = await ask(stream, Mode.BUFFERED_PARTIAL, body)
        await finish(stream, Mode.BUFFERED_PARTIAL, body)
        cached = served.count("kvring_predicted_cached_tokens_total")
        stream = client.open(request_body_mode=Mode.BUFFERED_PARTIAL)
        await stream.request_headers(PATH)
        await stream.receive()
        await stream.request_body(body[:30_000], end_of_stream=False)
        part = await stream.receive()
        await stream.half_close()
        assert await stream.rest() == []
    assert steered(part) == header_set(part) == steered(whole)
    assert served.count("kvring_predicted_cached_tokens_total") - cached > 7000
    assert served.count("kvring_unkeyed_total", reason="bad_json") == 0
    await served.idle()


@pytest.mark.parametrize("mode", AT_BODY, ids=names(AT_BODY))
async def test_a_body_in_several_messages_is_chosen_for_once(serve: Serve, mode: Mode | None) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=mode)
        await ask(stream, mode, chat("e"))
        for data, end in ((b"", True), (b"more", False), (b"more", True)):  # envoy#46237 and worse
            await stream.request_body(data, end_of_stream=end)
            reply = await stream.receive()
            assert kind(reply) == "request_body"
            assert steered(reply) is header_set(reply) is None
            assert headers_removed(reply) == []
        await stream.half_close()
        assert await stream.rest() == []
    await served.idle()
    assert served.choices() == 1


@every_mode
async def test_messages_of_the_answer_are_answered_and_change_nothing(
    serve: Serve, mode: Mode | None
) -> None:
    served = await serve()
    body = chat("f" * 40_000)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=mode)
        *_, steering = await ask(stream, mode, body)
        if mode is DUPLEX:
            assert chunk(await stream.receive()) == (body, True)
        await stream.response_headers(200)
        await stream.response_body(b"data: ", end_of_stream=False)
        await stream.response_body(b"", end_of_stream=True)
        await stream.response_trailers()
        replies = [await stream.receive() for _ in range(4)]
        assert [kind(reply) for reply in replies] == [
            "response_headers",
            "response_body",
            "response_body",
            "response_trailers",
        ]
        assert all(chunk(reply) is None and steered(reply) is None for reply in replies)
        home = next(e for e in served.state()["endpoints"] if e["address"] == steered(steering))
        assert (home["inflight"], home["pending_tokens"]) == (1, 0), "the first token ends the prefill"
        await stream.half_close()
        assert await stream.rest() == []
    await served.idle()


async def test_a_message_that_brings_nothing_known_is_passed_over(serve: Serve) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=Mode.NONE)
        await stream.send_bytes(b"")
        await stream.request_headers(PATH)
        assert kind(await stream.receive()) == "request_headers"
        await stream.half_close()
        assert await stream.rest() == []
    assert served.count("kvring_no_opinion_total", reason="malformed_message") == 0


async def test_a_unix_socket_serves_too_also_where_an_old_one_was_left(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "kvring.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    served = await serve(listen=f"unix:{path}")
    assert served.address == f"unix:{path}"
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=Mode.BUFFERED)
        *_, steering = await ask(stream, Mode.BUFFERED, chat("p"))
        assert steered(steering) in served.addresses


# ---- full duplex ----


async def duplex(stream: Stream, chunks: list[bytes], *, trailers: bool) -> list[Any]:
    """Send the chunks (the last with end of stream, unless trailers follow); every reply, read meanwhile."""

    async def send() -> None:
        await stream.request_headers(PATH)
        for number, data in enumerate(chunks, 1):
            await stream.request_body(data, end_of_stream=number == len(chunks) and not trailers)
        if trailers:
            await stream.request_trailers({"x": "y"})
        await stream.half_close()

    sending = asyncio.create_task(send())
    replies = await stream.rest()
    await sending
    return replies


@pytest.mark.parametrize("trailers", [False, True], ids=["end of stream", "trailers"])
@pytest.mark.parametrize(
    ("bytes_total", "bytes_chunk"),
    [(600, 1), (70_000, 8_000), (5_000_000, 256 * 1024)],
    ids=["1-byte chunks", "70 KB", "5 MB"],
)
async def test_duplex_hands_the_body_back_byte_by_byte_behind_the_pick(
    serve: Serve, bytes_total: int, bytes_chunk: int, *, trailers: bool
) -> None:
    served = await serve()
    body = chat(random.Random(2).randbytes(bytes_total).hex()[:bytes_total])
    chunks = [body[at : at + bytes_chunk] for at in range(0, len(body), bytes_chunk)]
    if trailers is False:
        chunks.append(b"")  # Envoy's own end of stream is an empty chunk
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=DUPLEX)
        steering, *replies = await duplex(stream, chunks, trailers=trailers)
        assert await stream.code() is grpc.StatusCode.OK
    assert kind(steering) == "request_headers"
    assert steered(steering) == header_set(steering) in served.addresses
    if trailers:
        assert kind(replies.pop()) == "request_trailers"
    echoes = [chunk(reply) for reply in replies]
    ends = [False] * (len(chunks) - 1) + [not trailers]
    assert echoes == [
        piece for data, end in zip(chunks, ends, strict=True) for piece in pieces(data, end=end)
    ]
    assert all(steered(reply) is header_set(reply) is None for reply in replies)
    await served.idle()
    assert served.choices() == 1
    assert served.count("kvring_prompt_tokens_total") > 0, "the whole body was read, not the first chunk"


@pytest.mark.parametrize("again", [b"", b"last"], ids=["empty", "repeated"])
async def test_a_second_end_of_stream_in_duplex_is_not_answered(serve: Serve, again: bytes) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=DUPLEX)
        await stream.request_headers(PATH)
        await stream.request_body(b"last", end_of_stream=True)
        await stream.request_body(again, end_of_stream=True)
        await stream.half_close()
        replies = await stream.rest()
    assert [kind(reply) for reply in replies] == ["request_headers", "request_body"]
    assert chunk(replies[1]) == (b"last", True)


async def test_a_slow_duplex_upload_is_let_go_at_the_deadline_and_echoed_on(serve: Serve) -> None:
    served = await serve(decision_timeout_s=1.0)  # in which the half must have come, on any machine
    body = chat("g" * 9000)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=DUPLEX)
        sent_s = time.monotonic()
        await stream.request_headers(PATH)
        await stream.request_body(body[:4000], end_of_stream=False)
        steering, echo = await stream.receive(), await stream.receive()
        assert time.monotonic() - sent_s >= 1.0
        assert steered(steering) == header_set(steering) in served.addresses
        assert chunk(echo) == (body[:4000], False)
        assert sum(served.inflight().values()) == 1
        for data, end in ((body[4000:8000], False), (b"", False), (body[8000:], True)):
            await stream.request_body(data, end_of_stream=end)
            assert chunk(await stream.receive()) == (data, end)
        await stream.half_close()
        assert await stream.rest() == []
    await served.idle()
    assert served.choices() == 1
    assert served.count("kvring_decision_seconds_count") == 1
    assert 900 < served.count("kvring_prompt_tokens_total") < 1100, "chosen by the part that had come"


async def test_duplex_headers_without_any_body_are_let_go_at_the_deadline(serve: Serve) -> None:
    served = await serve(decision_timeout_s=0.05)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=DUPLEX)
        await stream.request_headers(PATH)
        assert steered(await stream.receive()) in served.addresses
        await stream.request_trailers()
        assert kind(await stream.receive()) == "request_trailers"
        await stream.half_close()
        assert await stream.rest() == []
    assert served.choices() == 1


async def test_a_duplex_upload_is_let_go_as_soon_as_enough_of_it_came(serve: Serve) -> None:
    served = await serve(decision_timeout_s=60.0, prompt_bytes_max=4096)
    body = chat("h" * 20_000)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=DUPLEX)
        await stream.request_headers(PATH)
        await stream.request_body(body[:4000], end_of_stream=False)
        await stream.request_body(body[4000:5000], end_of_stream=False)
        assert steered(await stream.receive()) in served.addresses
        assert chunk(await stream.receive()) == (body[:4000], False)
        assert chunk(await stream.receive()) == (body[4000:5000], False)
        stream.cancel()
    await served.idle()


async def test_a_reader_slower_than_the_deadline_is_counted_once(serve: Serve) -> None:
    """The deadline passes while a body that was chosen for waits for Envoy to read its echo."""
    served = await serve(decision_timeout_s=0.1)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=DUPLEX)
        await stream.request_headers(PATH)
        writing = asyncio.create_task(stream.request_body(bytes(24 * 1024 * 1024)))
        await eventually(lambda: served.choices() > 0)
        await asyncio.sleep(0.2)  # past the deadline
        assert served.choices() == served.count("kvring_decision_seconds_count") == 1
        assert steered(await stream.receive()) in served.addresses
        await writing
        stream.cancel()
    await served.idle()


async def test_duplex_both_ways_keeps_the_lease_until_the_answer_has_ended(serve: Serve) -> None:
    served = await serve()
    body = chat("i" * 40_000)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=DUPLEX, response_body_mode=DUPLEX)
        *_, steering = await ask(stream, DUPLEX, body)
        assert chunk(await stream.receive()) == (body, True)
        home = str(steered(steering))

        def load() -> tuple[int, int]:
            found = next(e for e in served.state()["endpoints"] if e["address"] == home)
            return found["inflight"], found["pending_tokens"]

        inflight, pending = load()
        assert inflight == 1
        assert pending > 5000
        await stream.response_headers(200)
        assert kind(await stream.receive()) == "response_headers"
        assert load()[1] > 5000, "response headers say nothing of the first token"
        for data, end in ((b"data: 1\n\n", False), (b"\x00\xff", False), (b"", True)):
            await stream.response_body(data, end_of_stream=end)
            reply = await stream.receive()
            assert kind(reply) == "response_body"
            assert chunk(reply) == (data, end)
            assert load() == (1, 0)
        await stream.response_body(b"", end_of_stream=True)  # envoy#46237
        await stream.response_trailers()
        assert kind(await stream.receive()) == "response_trailers"
        await stream.half_close()
        assert await stream.rest() == []
    await served.idle()


# ---- lease life ----


async def end_by_half_close(stream: Stream) -> None:
    await stream.half_close()
    assert await stream.rest() == []


async def end_by_cancel(stream: Stream) -> None:
    stream.cancel()


async def end_by_malformed_message(stream: Stream) -> None:
    await stream.send_bytes(b"\xff\xff\xff")
    assert await stream.rest() == []
    assert await stream.code() is grpc.StatusCode.OK


ENDINGS = [end_by_half_close, end_by_cancel, end_by_malformed_message]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__.removeprefix("end_by_"))
@every_mode
async def test_a_request_is_counted_until_its_stream_ends(
    serve: Serve, mode: Mode | None, ending: Callable[[Stream], Awaitable[None]]
) -> None:
    served = await serve()
    body = chat("j" * 5000)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=mode)
        *_, steering = await ask(stream, mode, body)
        if mode is DUPLEX:
            assert chunk(await stream.receive()) == (body, True)
        counted = served.inflight()
        assert counted.pop(str(steered(steering))) == 1
        assert set(counted.values()) == {0}
        assert served.count("kvring_streams_open") == 1
        await ending(stream)
        await served.idle()
    assert served.count("kvring_streams_total") == 1


@pytest.mark.parametrize("mode", [Mode.BUFFERED, DUPLEX], ids=["BUFFERED", "FULL_DUPLEX_STREAMED"])
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__.removeprefix("end_by_"))
async def test_a_stream_that_ends_before_the_choice_takes_no_lease(
    serve: Serve, mode: Mode, ending: Callable[[Stream], Awaitable[None]]
) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=mode)
        await stream.request_headers(PATH)
        if mode is Mode.BUFFERED:
            await stream.receive()
        else:
            await stream.request_body(b"half", end_of_stream=False)
            await eventually(lambda: served.server.streams_open == 1)
        await ending(stream)
        await served.idle()
    assert served.choices() == 0


async def test_losing_the_connection_releases_every_lease_on_it(serve: Serve) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        for number in range(20):
            mode = MODES[number % len(MODES)]
            await ask(client.open(request_body_mode=mode), mode, chat("k" * 1000))
        assert served.state()["open_leases"] == 20
    await served.idle()
    assert served.count("kvring_streams_total") == 20


async def test_headers_sent_twice_take_one_lease(serve: Serve) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=Mode.NONE)
        for _ in range(2):
            await stream.request_headers(PATH, end_of_stream=True)
            assert steered(await stream.receive()) in served.addresses
        assert served.state()["open_leases"] == 1
        await stream.half_close()
        assert await stream.rest() == []
    await served.idle()


async def test_streams_with_one_request_id_are_counted_apart(serve: Serve) -> None:
    served = await serve(endpoints=1)
    async with ext_proc_client.connect(served.address) as client:
        streams = [client.open(request_body_mode=Mode.NONE) for _ in range(3)]
        for stream in streams:
            await stream.request_headers([*PATH.items(), ("x-request-id", "same")])
            await stream.receive()
        for left, stream in zip((2, 1, 0), streams, strict=True):
            await end_by_half_close(stream)
            await eventually(lambda left=left: served.inflight() == {"10.0.0.1:8000": left})


# ---- faults ----


class FaultyRouter(router.Router):
    """Fails at every choice, quoting the prompt as careless code would."""

    __slots__ = ()

    def choose(self, prompt: Any, *_args: Any, **_kwargs: Any) -> choices.Decision | choices.NoEndpoint:
        raise RuntimeError(f"can't choose for {prompt} {MARKER}")


@pytest.fixture
def log_text(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a sidecar would have on stderr, libraries' words included."""
    stream, loggers = io.StringIO(), [logging.getLogger("kvring"), logging.getLogger()]
    before = [(logger, logger.handlers, logger.level, logger.propagate) for logger in loggers]
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        log.setup("debug")
    yield stream
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.level, logger.propagate = handlers, level, propagate


def logged(log_text: io.StringIO) -> list[dict[str, Any]]:
    """The lines, without grpc.aio's about its poller: tests make many event loops, a sidecar has one."""
    lines = [json.loads(line) for line in log_text.getvalue().splitlines()]
    return [line for line in lines if "PollerCompletionQueue" not in line["event"]]


@every_mode
async def test_a_fault_while_choosing_is_no_opinion_and_everything_passes(
    serve: Serve, mode: Mode | None, log_text: io.StringIO
) -> None:
    served = await serve(kind=FaultyRouter)
    body = chat(MARKER + "l" * 3000)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=mode)
        for reply in await ask(stream, mode, body):
            assert steered(reply) is header_set(reply) is None
            assert headers_removed(reply) == [ext_proc_client.DESTINATION]
        await finish(stream, mode, body)
    await served.idle()
    assert served.count("kvring_no_opinion_total", reason="fault") == 1
    assert served.choices() == served.count("kvring_decision_seconds_count") == 0
    (line,) = logged(log_text)
    assert line["exception"] == "RuntimeError"
    assert any("choose" in place for place in line["at"])
    assert MARKER not in log_text.getvalue()


@pytest.mark.parametrize("ending", ["end of stream", "trailers", "deadline"])
async def test_a_fault_in_duplex_loses_no_chunk(serve: Serve, ending: str, log_text: io.StringIO) -> None:
    served = await serve(kind=FaultyRouter, decision_timeout_s=0.1 if ending == "deadline" else 30)
    chunks = [b"1" * 1000, b"", b"2" * 60_000, b"3"]
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=DUPLEX, response_body_mode=DUPLEX)
        await stream.request_headers(PATH)
        for data in chunks:
            await stream.request_body(data, end_of_stream=False)
        if ending == "end of stream":
            await stream.request_body(b"4", end_of_stream=True)
        elif ending == "trailers":
            await stream.request_trailers()
        headers = await stream.receive()
        assert kind(headers) == "request_headers"
        assert steered(headers) is None
        assert headers_removed(headers) == [ext_proc_client.DESTINATION]
        assert [chunk(await stream.receive()) for _ in chunks] == [(data, False) for data in chunks]
        if ending == "trailers":
            assert kind(await stream.receive()) == "request_trailers"
        elif ending == "end of stream":
            assert chunk(await stream.receive()) == (b"4", True)
        else:
            for data, end in ((b"5" * 1000, False), (b"", True)):
                await stream.request_body(data, end_of_stream=end)
                assert chunk(await stream.receive()) == (data, end)
        for data, end in ((b"data: 1", False), (b"", False), (b"data: 2", True)):
            await stream.response_body(data, end_of_stream=end)
            assert chunk(await stream.receive()) == (data, end)
        await stream.half_close()
        assert await stream.rest() == []
        assert await stream.code() is grpc.StatusCode.OK
    await served.idle()
    assert served.count("kvring_no_opinion_total", reason="fault") == 1
    assert [line["exception"] for line in logged(log_text)] == ["RuntimeError"]
    assert MARKER not in log_text.getvalue()


class LateFaultyRouter(router.Router):
    """Fails when the endpoint is chosen, before anything is taken."""

    __slots__ = ()

    def _weigh(self, *args: Any) -> Any:
        super()._weigh(*args)
        raise RuntimeError(MARKER)


@every_mode
async def test_a_fault_late_in_the_choice_leaves_no_lease(
    serve: Serve, mode: Mode | None, log_text: io.StringIO
) -> None:
    served = await serve(kind=LateFaultyRouter)
    body = chat("m" * 3000)
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=mode)
        *_, reply = await ask(stream, mode, body)
        assert steered(reply) is None
        await finish(stream, mode, body)
    await served.idle()
    assert served.count("kvring_no_opinion_total", reason="fault") == 1


async def test_a_malformed_message_ends_its_stream_and_no_other(serve: Serve) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        other = client.open(request_body_mode=Mode.BUFFERED)
        await other.request_headers(PATH)
        await other.receive()
        for number, data in enumerate((b"\xff\xff", b"\x12", b"\x12\x05ab", bytes(range(255, 200, -1))), 1):
            stream = client.open()
            await stream.send_bytes(data)
            assert await stream.rest() == []
            assert await stream.code() is grpc.StatusCode.OK
            assert served.count("kvring_no_opinion_total", reason="malformed_message") == number
        await other.request_body(chat("n"))
        assert steered(await other.receive()) in served.addresses
        await end_by_half_close(other)
    await served.idle()


_PARKS = """
import sys, time, grpc
address, count = sys.argv[1], int(sys.argv[2])
body = bytes.fromhex(sys.stdin.readline())
def messages():
    yield body
    time.sleep(60)
with grpc.insecure_channel(address) as channel:
    process = channel.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Process")
    calls = [process(messages()) for _ in range(count)]
    for call in calls:
        next(call)
    print("parked", flush=True)
    time.sleep(60)
"""


async def test_killing_the_client_process_releases_its_leases(serve: Serve) -> None:
    served = await serve()
    message = b"\x12\x02\x18\x01"  # request_headers {end_of_stream: true}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PARKS, served.address, "5", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(message.hex().encode() + b"\n")
        await process.stdin.drain()
        async with asyncio.timeout(WAIT_S):
            assert await process.stdout.readline() == b"parked\n"
        assert served.state()["open_leases"] == 5
    finally:
        process.kill()
        await process.communicate()
    await served.idle()


# ---- stopping ----


async def test_stopping_ends_decided_streams_with_ok_and_lets_duplex_finish(serve: Serve) -> None:
    served = await serve()
    body = chat("o" * 1000)
    async with ext_proc_client.connect(served.address) as client:
        decided = []
        for mode in (*AT_HEADERS, *AT_BODY):
            decided.append(client.open(request_body_mode=mode))
            await ask(decided[-1], mode, body)
        two_way = client.open(request_body_mode=DUPLEX, response_body_mode=DUPLEX)
        await ask(two_way, DUPLEX, body)
        assert chunk(await two_way.receive()) == (body, True)
        held = client.open(request_body_mode=DUPLEX)
        await held.request_headers(PATH)
        await held.request_body(b"abc", end_of_stream=False)
        undecided = client.open(request_body_mode=Mode.BUFFERED)
        await undecided.request_headers(PATH)
        await undecided.receive()

        stopping = asyncio.create_task(served.server.stop(30))
        for stream in decided:
            assert await stream.rest() == []
            assert await stream.code() is grpc.StatusCode.OK

        await undecided.request_body(body)
        assert steered(await undecided.receive()) in served.addresses
        assert await undecided.rest() == [], "decided now, so it ends too"
        assert await undecided.code() is grpc.StatusCode.OK

        await held.request_body(b"def", end_of_stream=True)
        assert kind(await held.receive()) == "request_headers"
        assert [chunk(await held.receive()) for _ in range(2)] == [(b"abc", False), (b"def", True)]
        await end_by_half_close(held)
        await two_way.response_body(b"x", end_of_stream=True)
        assert chunk(await two_way.receive()) == (b"x", True)
        assert not stopping.done()
        await end_by_half_close(two_way)
        async with asyncio.timeout(WAIT_S):
            await stopping
    await served.idle()


async def test_a_stream_that_never_ends_is_cut_when_the_time_is_up(serve: Serve) -> None:
    served = await serve()
    async with ext_proc_client.connect(served.address) as client:
        stream = client.open(request_body_mode=DUPLEX)
        await stream.request_headers(PATH)
        await eventually(lambda: served.server.streams_open == 1)
        async with asyncio.timeout(WAIT_S):
            await served.server.stop(0.1)
        assert await stream.code() is not grpc.StatusCode.OK
    await served.idle()
