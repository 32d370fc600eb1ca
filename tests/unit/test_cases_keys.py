"""What keys a request, seen through a whole exchange: explicit keys, stored answers, ids that are no key,
bodies that have none, compressed ones. The ids P09 .. P24 stand in comments.
"""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zstandard

from extproc import answers, chain, choice, exchange, pool, prompt, protocol, reading, residency, router
from extproc.exchange import BodyMode, Echo, Phase

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
N = 8
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED


def start(**settings: Any) -> router.Router:
    endpoints = [pool.Endpoint(pool.EndpointId(f"e{n}"), f"10.0.0.{n}:80") for n in range(N)]
    return router.Router(pool.make("p", endpoints), router.Settings(**settings))


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def chat(*texts: str, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return encoded({"model": "m", "messages": messages, **fields})


class Sent:
    """One request through an exchange; its answer can be sent too. The lease stays open until `end`."""

    def __init__(
        self,
        of: router.Router,
        body: bytes,
        *,
        path: str = CHAT,
        headers: dict[str, str] | None = None,
        chunks: int = 1,
        mode: BodyMode = BodyMode.BUFFERED,
        now: float = 0.0,
        **settings: Any,
    ) -> None:
        self.exchange = exchange.Exchange(of, exchange.Settings(**settings))
        first = protocol.RequestHeaders(
            {":path": path, ":method": "POST", **(headers or {})},
            end_of_stream=False,
            body_mode=mode,
            response_body_mode=BodyMode.STREAMED,
        )
        size = -(-len(body) // chunks) or 1
        pieces = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        events: list[protocol.Event] = [first]
        events += [protocol.RequestBody(piece, n == len(pieces) - 1) for n, piece in enumerate(pieces)]
        self.actions = [action for event in events for action in self.exchange.receive(event, now, 0.5)]

    @property
    def choice(self) -> choice.Choice:
        assert isinstance(self.exchange.result, choice.Choice)
        return self.exchange.result

    @property
    def home(self) -> str:
        return self.choice.endpoint.id

    def answer(self, *pieces: bytes, now: float = 0.0) -> None:
        for piece in pieces:
            self.exchange.receive(protocol.ResponseBody(piece, end_of_stream=False), now, 0.5)

    def end(self) -> "Sent":
        self.exchange.close()
        return self


def visit(of: router.Router, body: bytes, **how: Any) -> choice.Choice:
    return Sent(of, body, **how).end().choice


# ---- growing conversations ----


@pytest.mark.parametrize("policy", ["cost", "ring"])
def test_conversation_keeps_its_home_while_it_grows(policy: str) -> None:  # P09
    of = start(policy=policy)
    talks = {name: [f"system prompt of all {'s' * 2000}", f"{name} asks {name * 200}"] for name in "abcdefgh"}
    homes: dict[str, set[str]] = {name: set() for name in talks}
    lengths: dict[str, list[int]] = {name: [] for name in talks}
    visit(of, chat(*talks["a"][:1], "the first of all: only the second tells what is shared"))
    for turn in range(10):
        for name, texts in talks.items():
            made = visit(of, chat(*texts), now=float(turn))
            homes[name].add(made.endpoint.id)
            lengths[name].append(made.chain_blocks)
            texts.append(f"turn {turn} {'more ' * 100}")
    assert all(len(home) == 1 for home in homes.values())
    if policy == "ring":
        assert len({*map(frozenset, homes.values())}) >= 3
    assert all(blocks == sorted(set(blocks)) for blocks in lengths.values())


def test_billing_header_changes_neither_home_nor_body() -> None:  # P11
    of = start()
    seen = set()
    for number in range(5):
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={number:05x};"
        system = [{"type": "text", "text": line}, {"type": "text", "text": "Be brief. " * 100}]
        body = encoded({"model": "m", "system": system, "messages": [{"role": "user", "content": "hi"}]})
        sent = Sent(of, body, path="/v1/messages", mode=DUPLEX, chunks=3).end()
        echoed = [action.data for action in sent.actions if isinstance(action, Echo)]
        assert b"".join(echoed) == body
        seen.add((sent.home, sent.choice.chain_blocks))
        assert sent.choice.cached_tokens > 0 or number == 0
    assert len(seen) == 1


# ---- explicit keys ----


@pytest.mark.parametrize(
    ("keyed_by", "of_key"),
    [
        (choice.KeyedBy.HEADER, lambda key: {"headers": {"x-session": key}, "key_header": "x-session"}),
        (choice.KeyedBy.CACHE_KEY, lambda key: {"cache_key": key}),
    ],
    ids=["header", "prompt_cache_key"],
)
def test_explicit_key_wins_over_the_prompt_and_is_matched_exactly(
    keyed_by: choice.KeyedBy, of_key: Callable[[str], dict[str, Any]]
) -> None:  # P13
    of = start()

    def home(key: str, text: str) -> str:
        how = of_key(key)
        body = chat(text, **({"prompt_cache_key": how.pop("cache_key")} if "cache_key" in how else {}))
        made = visit(of, body, **how)
        assert made.keyed_by is keyed_by
        assert made.unkeyed is None
        assert made.anchor_block is None
        return made.endpoint.id

    assert len({home("s-1", f"prompt {number} " * 300) for number in range(20)}) == 1
    keys = [f"s-{number}" for number in range(1, 61)]
    homes = {key: home(key, "one prompt for all " * 100) for key in keys}
    assert len(set(homes.values())) == N  # s-12 does not follow s-1, nor the prompt
    assert {key: home(key, f"another {key}" * 100) for key in keys} == homes


def test_key_is_no_prefix_case_or_white_space_match() -> None:  # P13
    of = start()
    spellings = ["s-1", "s-12", "S-1", "s-1 ", "s_1", "1-s", "s-1\u200b", "\u0455-1"]
    keys = {visit(of, chat("x"), headers={"x-session": key}, key_header="x-session").key for key in spellings}
    assert len(keys) == len(spellings)
    keys = {visit(of, chat("x", prompt_cache_key=key)).key for key in spellings}
    assert len(keys) == len(spellings)


def test_header_wins_over_prompt_cache_key_and_both_are_one_name_space() -> None:  # P13
    of = start()
    both = visit(of, chat("x", prompt_cache_key="b"), headers={"x-session": "a"}, key_header="x-session")
    assert both.keyed_by is choice.KeyedBy.HEADER
    assert both.key == visit(of, chat("y", prompt_cache_key="a")).key


@pytest.mark.parametrize("key", [None, "", 5, [], {"a": 1}])
def test_prompt_cache_key_of_another_type_is_none(key: Any) -> None:
    assert visit(start(), chat("x", prompt_cache_key=key)).keyed_by is choice.KeyedBy.ANCHOR


def test_keys_can_be_switched_off() -> None:  # P13
    of = start()
    off = visit(of, chat("x", prompt_cache_key="a"), prompt=prompt.Settings(cache_keys=False))
    assert off.keyed_by is choice.KeyedBy.ANCHOR
    assert off.key == visit(of, chat("x")).key
    other = visit(of, chat("x"), headers={"x-session": "a", "x-session-id": "a"})
    assert other.keyed_by is choice.KeyedBy.ANCHOR  # no header is a key unless it is configured
    empty = visit(of, chat("x"), headers={"x-session": ""}, key_header="x-session")
    assert empty.keyed_by is choice.KeyedBy.ANCHOR


@pytest.mark.parametrize("policy", ["cost", "ring"])
def test_one_key_for_everything_is_still_bounded(policy: str) -> None:  # P13
    of = start(policy=policy)
    open_ones = [Sent(of, chat(f"{number} " * 2000, prompt_cache_key="hot")) for number in range(200)]
    served = Counter(one.home for one in open_ones)
    assert len(served) >= N // 2
    assert max(served.values()) <= 2 * 200 / N + 2  # twice the mean, and the request that reaches it
    assert open_ones[0].home == visit(start(policy=policy), chat("x", prompt_cache_key="hot")).endpoint.id


def test_explicit_key_serves_requests_whose_body_has_none() -> None:
    of = start()
    how = {"headers": {"x-session": "a"}, "key_header": "x-session"}
    made = visit(of, b"not json", **how)
    assert made.unkeyed is prompt.Unkeyed.JSON
    assert made.keyed_by is choice.KeyedBy.HEADER
    assert made.endpoint.id == visit(of, chat("x"), **how).endpoint.id


def test_session_or_user_id_alone_is_no_key() -> None:  # P14
    """20 sub-agents of one session, each with a prompt of its own."""
    of = start()
    ids = {"user": "u-1", "session_id": "s-1", "metadata": {"user_id": "u-1"}, "safety_identifier": "u-1"}
    headers = {"x-session-id": "s-1", "session-id": "s-1", "authorization": "Bearer k", "cookie": "sid=1"}
    made = [visit(of, chat(f"agent {n} {n * 7} " * 200, **ids), headers=headers) for n in range(20)]
    assert len({one.key for one in made}) == 20
    assert len({one.endpoint.id for one in made}) >= N - 2
    assert all(one.keyed_by is choice.KeyedBy.ANCHOR for one in made)


def test_ids_that_are_new_with_every_request_are_in_no_key() -> None:  # P21
    made = []
    for n in range(10):
        headers = {"x-request-id": f"r{n}", "traceparent": f"00-{n:032x}-{n:016x}-01", "date": str(n)}
        made.append(visit(start(), chat("one prompt " * 100), headers=headers))
    assert made.count(made[0]) == 10


# ---- stored answers (P15) ----

ID = "resp_0a1b2c3d4e5f"
JSON_ANSWER = b'{"id": "%b", "object": "response", "output": [{"id": "msg_1", "type": "message"}]}'
SSE_ANSWER = (
    b"event: response.created\n"
    b'data: {"type":"response.created","sequence_number":0,"response":{"id":"%b","object":"response"}}\n\n'
)
SSE_TYPELESS = b': ping\n\ndata: {"response": {"object": "response", "id" : "%b"}}\n\n'


def ask(text: str = "", **fields: Any) -> bytes:
    return encoded({"model": "m", "input": text or "q " * 300, **fields})


def continued(of: router.Router, answer: str = ID, now: float = 0.0) -> choice.Choice:
    return visit(of, ask("go on", previous_response_id=answer), path=RESPONSES, now=now)


@pytest.mark.parametrize(
    "form", [JSON_ANSWER, SSE_ANSWER, SSE_TYPELESS], ids=["json", "sse", "sse, other order"]
)
def test_continued_answer_goes_where_it_was_given_wherever_its_id_was_split(form: bytes) -> None:  # P15
    whole = form % ID.encode()
    for at in range(len(whole) + 1):
        of = start()
        sent = Sent(of, ask(f"question {at}"), path=RESPONSES)
        sent.answer(whole[:at], whole[at:])
        made = continued(of)
        assert made.endpoint == sent.choice.endpoint, at
        assert made.keyed_by is choice.KeyedBy.PREVIOUS
        assert made.unkeyed is prompt.Unkeyed.PREVIOUS


def test_answer_that_comes_byte_by_byte_is_found() -> None:  # P15
    of = start()
    sent = Sent(of, ask(), path=RESPONSES)
    sent.answer(*(bytes([byte]) for byte in SSE_ANSWER % ID.encode()))
    assert continued(of).endpoint == sent.choice.endpoint


def test_chain_of_continued_answers_stays_with_the_first() -> None:  # P15
    of = start()
    last = Sent(of, ask(), path=RESPONSES)
    last.answer(JSON_ANSWER % b"resp_0")
    homes = {last.home}
    for number in range(1, 10):
        last = Sent(of, ask("go on", previous_response_id=f"resp_{number - 1}"), path=RESPONSES)
        last.answer(SSE_ANSWER % f"resp_{number}".encode())
        last.end()
        homes.add(last.home)
    assert len(homes) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b'{"error": {"message": "no", "id": "resp_"}}',
        b'{"previous_response_id": "%b"}' % ID.encode(),
        b'{"id": "chatcmpl-1"}',
        b"x" * 20_000 + JSON_ANSWER % ID.encode(),
        b"\x1f\x8b\x08" + bytes(range(256)) * 10,
        b'{"id": "resp_' + b"a" * 500 + b'"}',
        b"",
    ],
    ids=["error", "other field", "other id", "too late", "compressed", "too long", "empty"],
)
def test_answer_without_a_usable_id_is_not_remembered(answer: bytes) -> None:  # P15
    of = start()
    Sent(of, ask(), path=RESPONSES).answer(answer, answer)
    assert len(of.answers) == 0
    made = continued(of)
    assert made.unkeyed is prompt.Unkeyed.PREVIOUS
    assert made.keyed_by is choice.KeyedBy.NOTHING
    assert made.key is None


def test_answers_of_other_apis_are_not_looked_at() -> None:
    of = start()
    Sent(of, chat("x")).answer(JSON_ANSWER % ID.encode())
    assert len(of.answers) == 0


def test_unknown_answers_spread() -> None:  # P15
    of = start()
    served = Counter(continued(of, f"resp_{number}").endpoint.id for number in range(400))
    assert max(served.values()) <= 2 * 400 / N


def test_continued_answer_leaves_an_endpoint_that_is_over_its_bound_or_gone() -> None:  # P15
    of = start()
    sent = Sent(of, ask(), path=RESPONSES)
    sent.answer(JSON_ANSWER % ID.encode())
    open_ones = [Sent(of, ask("long " * 4000, previous_response_id=ID), path=RESPONSES) for _ in range(40)]
    served = Counter(one.home for one in open_ones)
    assert open_ones[0].home == sent.home
    assert len(served) >= N // 2
    left = [e for e in of.pool.endpoints if e.id != sent.home]
    of.publish(pool.make("p", left))
    assert continued(of).endpoint in left


def test_answers_are_bounded_and_expire() -> None:  # P15
    kept = answers.Answers(entries_max=3, idle_s=10.0)
    for number in range(5):
        kept.remember(f"resp_{number}", pool.EndpointId("e"), now=0.0)
    assert len(kept) == 3
    assert [kept.find(f"resp_{number}", 1.0) is not None for number in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert kept.find("resp_2", 10.5) is not None  # used at 1, unused for 9.5
    assert kept.find("resp_3", 11.5) is None
    assert len(kept) == 2
    assert kept.find("resp_2", 20.4) is not None
    kept.remember("resp_9", pool.EndpointId("f"), 20.4)
    kept.remember("resp_9", pool.EndpointId("e"), 20.5)
    assert kept.find("resp_9", 20.5) == "e"
    assert answers.Answers(entries_max=0).find("x", 0.0) is None


def test_kvring_that_keeps_no_answers_routes_what_continues_them() -> None:
    of = start(answers_max=0)
    Sent(of, ask(), path=RESPONSES).answer(JSON_ANSWER % ID.encode())
    assert continued(of).keyed_by is choice.KeyedBy.NOTHING


# ---- bodies without a prompt ----

BAD = [
    b'{"model":"m","messages":[{"role":"user","content":"x', b"null", b"[1,2]", b'"x"', b"7", b"{}", b"",
    b'{"messages":[{"role":"user","content":"x"}]}',
    b'{"model":"","messages":[{"role":"user","content":"x"}]}',
    b'{"model":5,"messages":[{"role":"user","content":"x"}]}', b'{"model":"m"}', b"{",
    b'{"model":"m","messages":"hi"}',
    b'{"model":"m","messages":[]}', b'{"model":"m","messages":[{"role":"user","content":5}]}', b"\xff{}",
    b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}', b"--x\r\n\r\nform-data", b"\0" * 100,
    '{"model":"m","messages":[{"role":"user","content":"x"}]}'.encode("utf-16"),
    b'{"model":"m","messages":[{"role":"user","content":"x"}]} trailing', b"\xef\xbb\xbf{}",
]  # fmt: skip


@pytest.mark.parametrize("body", BAD, ids=lambda body: body[:40].decode("latin-1"))
@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, DUPLEX])
def test_body_without_a_prompt_passes_unchanged_to_some_endpoint(body: bytes, mode: BodyMode) -> None:  # P17
    sent = Sent(start(), body, mode=mode, chunks=2)
    assert sent.choice.unkeyed is not None
    assert sent.choice.keyed_by is choice.KeyedBy.NOTHING
    if mode is DUPLEX:
        assert b"".join(a.data for a in sent.actions if isinstance(a, Echo)) == body


def test_bodies_without_a_prompt_spread() -> None:  # P17, P18
    of = start()
    served: Counter[str] = Counter()
    for number in range(1000):
        path = CHAT if number % 3 else "/v1/audio/transcriptions"
        served[visit(of, BAD[number % len(BAD)], path=path).endpoint.id] += 1
    assert max(served.values()) <= 2 * 1000 / N
    assert len(served) == N


def test_request_without_a_body_is_routed_unkeyed() -> None:  # P18
    of = start()
    one = exchange.Exchange(of, exchange.Settings())
    one.receive(protocol.RequestHeaders({":path": CHAT, ":method": "GET"}, end_of_stream=True), 0.0, 0.5)
    assert isinstance(one.result, choice.Choice)
    assert one.result.unkeyed is prompt.Unkeyed.BODY


def test_new_role_is_keyed() -> None:  # P17
    body = encoded({"model": "m", "messages": [{"role": "critic", "content": "x " * 400}]})
    assert visit(start(), body).chain_blocks > 2


# ---- compressed and cut bodies ----


def compressed(body: bytes) -> Iterator[tuple[str, bytes]]:
    yield "gzip", gzip.compress(body)
    yield "deflate", zlib.compress(body)
    yield "zstd", zstandard.compress(body)


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, DUPLEX])
def test_compressed_body_has_the_chain_of_its_text_and_is_forwarded_as_it_came(mode: BodyMode) -> None:  # P20
    body = chat("question " * 500)
    plain = visit(start(), body)
    for coding, data in compressed(body):
        chunks = 7 if mode is DUPLEX else 1
        sent = Sent(start(), data, mode=mode, chunks=chunks, headers={"content-encoding": coding})
        if mode is DUPLEX:
            assert b"".join(a.data for a in sent.actions if isinstance(a, Echo)) == data
        assert (sent.choice.key, sent.choice.chain_blocks) == (plain.key, plain.chain_blocks)


@pytest.mark.parametrize("coding", ["compress", "snappy", "gzip, gzip", "aws-chunked", "x", "gzip;q=1"])
def test_unknown_or_stacked_coding_is_unkeyed(coding: str) -> None:  # P20
    made = visit(start(), gzip.compress(chat("x")), headers={"content-encoding": coding})
    assert made.unkeyed is prompt.Unkeyed.ENCODING


@pytest.mark.parametrize("chunks", [1, 2, 97, 10_000])
def test_chunks_make_no_difference(chunks: int) -> None:  # P23
    body = chat("word " * 1500, "and more " * 100)
    whole = visit(start(), body)
    assert visit(start(), body, mode=DUPLEX, chunks=chunks) == whole


def test_body_cut_by_envoys_buffer_is_keyed_by_its_start() -> None:  # P23
    body = chat("word " * 40_000)
    headers = {":path": CHAT, ":method": "POST"}
    whole = reading.read(headers, body, prompt.Settings(), whole=True).prompt
    for length in (65_536, 65_535, 65_537):
        cut = reading.read(headers, body[:length], prompt.Settings(), whole=False).prompt
        assert isinstance(whole, prompt.Prompt)
        assert isinstance(cut, prompt.Prompt)
        one, other = (start().chain_of(found).hashes for found in (cut, whole))
        assert len(one) >= 65_000 // 256
        assert other[: len(one)] == one


def test_hashing_stops_at_its_budget() -> None:  # P22
    of = start()
    body = chat("word " * 400_000)
    made = visit(of, body, prompt=prompt.Settings(bytes_max=64 * 1024))
    assert 250 <= made.chain_blocks <= 256
    assert made.prompt_tokens == pytest.approx(len(body) / 4, rel=0.01)  # what is not read counts as work
    again = visit(of, body, prompt=prompt.Settings(bytes_max=64 * 1024))
    assert again.endpoint == made.endpoint
    assert again.cached_tokens == pytest.approx(made.prompt_tokens, rel=0.01)


def test_blocks_without_those_before_them_are_no_hit() -> None:  # P24
    held = residency.Residency(residency.Capacity(100), idle_s=180.0)
    name = pool.EndpointId("e")
    whole = chain.build(1, b"x" * 1000, 100, 99)
    held.add(name, whole, 0.0)
    headless = chain.Chain((11, 22, *whole.hashes[2:]), whole.tail)
    assert held.match(name, headless, 0.0).any_blocks == 0
    assert held.match(name, whole, 0.0).any_blocks == 10
    assert held.match(name, whole, 179.0).any_blocks == 10
    assert held.match(name, whole, 181.0).any_blocks == 0


def test_phases_are_answered_once() -> None:
    sent = Sent(start(), chat("x"), mode=DUPLEX, chunks=3)
    assert [a.phase for a in sent.actions] == [Phase.REQUEST_HEADERS, *[Phase.REQUEST_BODY] * 3]
