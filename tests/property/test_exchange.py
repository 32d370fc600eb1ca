"""Any order and length of messages, any ending, with and without faults."""

import itertools
import json
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import choice as choices
from extproc import exchange, pool, prompt, protocol, router
from extproc.exchange import BodyMode, Echo, Phase, Reply

HEADERS = {":path": "/v1/chat/completions", ":method": "POST"}
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
JSON = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 30}]}).encode()


class Faulty(router.Router):
    """A router that fails while `faults` is above 0."""

    __slots__ = ("asked", "faults")

    def choose(self, *args: object, **kwargs: object) -> choices.Decision | choices.NoEndpoint:
        self.asked += 1
        self.faults -= 1
        if self.faults >= 0:
            raise ArithmeticError
        return super().choose(*args, **kwargs)  # type: ignore[arg-type]


def chooser(faults: int = 0, count: int = 3) -> Faulty:
    endpoints = [pool.Endpoint(pool.EndpointId(f"e{i}"), f"10.0.0.{i}:80") for i in range(count)]
    made = Faulty(pool.make("p", endpoints), router.Settings(block_bytes=16))
    made.faults, made.asked = faults, 0
    return made


@dataclass
class Run:
    """An exchange driven as the server drives it, and all that came out."""

    one: exchange.Exchange
    actions: list[protocol.Action] = field(default_factory=list)
    results: list[choices.Choice | choices.NoEndpoint] = field(default_factory=list)
    now: float = 0.0

    def receive(self, event: protocol.Event) -> list[protocol.Action]:
        self.now += 0.01
        try:
            answer = self.one.receive(event, self.now, 0.5)
        except ArithmeticError:
            answer = self.one.give_up(event, self.now)
        return self._note(answer)

    def expire(self) -> list[protocol.Action]:
        if self.one.deadline_s is None:
            return []
        try:
            answer = self.one.expire(self.now, 0.5)
        except ArithmeticError:
            answer = self.one.give_up(None, self.now)
        assert self.one.deadline_s is None
        return self._note(answer)

    def _note(self, answer: list[protocol.Action]) -> list[protocol.Action]:
        self.actions += answer
        result = self.one.result
        if result is not None and not any(result is seen for seen in self.results):
            self.results.append(result)
        return answer

    def echoed(self, phase: Phase) -> list[Echo]:
        return [action for action in self.actions if isinstance(action, Echo) and action.phase is phase]


CHUNKS = st.lists(st.binary(max_size=40), max_size=6) | st.lists(st.integers(0, len(JSON)), max_size=5).map(
    lambda cuts: [JSON[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), len(JSON)], strict=True)]
)
MODE = st.sampled_from([*BodyMode, None])
BUDGET = st.sampled_from([1, 50, 10**6])


def within(budget: int) -> exchange.Settings:
    return exchange.Settings(prompt.Settings(bytes_max=budget), held_bytes_max=budget)


@settings(deadline=None, max_examples=200)
@given(
    chunks=CHUNKS,
    ends=st.sampled_from(["chunk", "empty chunk", "repeated", "trailers", "lost"]),
    expire_at=st.integers(0, 8),
    faults=st.integers(0, 2),
    budget=BUDGET,
    count=st.sampled_from([0, 3]),
)
def test_duplex_hands_every_byte_back_once_in_order_whatever_happens(
    *, chunks: list[bytes], ends: str, expire_at: int, faults: int, budget: int, count: int
) -> None:
    of = chooser(faults, count)
    run = Run(exchange.Exchange(of, within(budget)))
    last = len(chunks) - 1
    assert run.receive(protocol.RequestHeaders(HEADERS, False, DUPLEX)) == []
    sent: list[protocol.RequestBody] = []
    for at, data in enumerate(chunks):
        if at == expire_at:
            run.expire()
        sent.append(protocol.RequestBody(data, at == last and ends in ("chunk", "repeated")))
        run.receive(sent[-1])
    if ends == "empty chunk" or (ends in ("chunk", "repeated") and not chunks):
        sent.append(protocol.RequestBody(b"", True))
        run.receive(sent[-1])
    if ends == "repeated":
        assert run.receive(protocol.RequestBody(chunks[-1] if chunks else b"", True)) == []
        assert run.receive(protocol.RequestBody(b"", True)) == []
    if ends == "trailers":
        assert run.receive(protocol.RequestTrailers())[-1] == Reply(Phase.REQUEST_TRAILERS)
    if ends == "lost":
        run.expire()
    assert [(echo.data, echo.end_of_stream) for echo in run.echoed(Phase.REQUEST_BODY)] == [
        (one.data, one.end_of_stream) for one in sent
    ]
    header_replies = [a for a in run.actions if a.phase is Phase.REQUEST_HEADERS]
    assert run.actions[0] is header_replies[0]
    assert len(header_replies) == 1
    assert isinstance(header_replies[0], Reply)
    assert header_replies[0].steer is not None
    assert len(run.results) <= 1
    assert of.ledger.open_leases == (1 if isinstance(run.one.result, choices.Choice) else 0)
    run.one.close()
    assert of.ledger.open_leases == 0


@settings(deadline=None, max_examples=200)
@given(
    mode=MODE.filter(lambda mode: mode is not DUPLEX),
    bodyless=st.booleans(),
    chunks=CHUNKS,
    faults=st.integers(0, 2),
    count=st.sampled_from([0, 3]),
    trailers=st.booleans(),
)
def test_every_message_of_the_other_modes_is_answered_by_one_reply(
    *,
    mode: BodyMode | None,
    bodyless: bool,
    chunks: list[bytes],
    faults: int,
    count: int,
    trailers: bool,
) -> None:
    of = chooser(faults, count)
    run = Run(exchange.Exchange(of, exchange.Settings()))
    events: list[tuple[protocol.Event, Phase]] = [
        (protocol.RequestHeaders(HEADERS, bodyless, mode), Phase.REQUEST_HEADERS)
    ]
    if not bodyless:
        last = len(chunks) - 1
        events += [
            (protocol.RequestBody(data, at == last and not trailers), Phase.REQUEST_BODY)
            for at, data in enumerate(chunks)
        ]
        events += [(protocol.RequestTrailers(), Phase.REQUEST_TRAILERS)] * trailers
    events += [
        (protocol.ResponseHeaders(200, False), Phase.RESPONSE_HEADERS),
        (protocol.ResponseBody(b"x", True), Phase.RESPONSE_BODY),
    ]
    for event, phase in events:
        (answer,) = run.receive(event)
        assert isinstance(answer, Reply)
        assert answer.phase is phase
        assert run.one.deadline_s is None
    assert len(run.results) <= 1
    steered = [a.steer.address for a in run.actions if isinstance(a, Reply) and a.steer and a.steer.address]
    assert steered == ([run.one.result.addresses] if isinstance(run.one.result, choices.Choice) else [])
    run.one.close()
    assert of.ledger.open_leases == 0


EVENT = st.one_of(
    st.builds(
        protocol.RequestHeaders,
        st.just(HEADERS),
        st.booleans(),
        MODE,
        MODE,
        subset=st.sampled_from([None, (), ("10.0.0.1:80",)]),
    ),
    st.builds(protocol.RequestBody, st.binary(max_size=30) | st.just(JSON), st.booleans()),
    st.just(protocol.RequestTrailers()),
    st.builds(protocol.ResponseHeaders, st.integers(0, 599), st.booleans()),
    st.builds(protocol.ResponseBody, st.binary(max_size=5), st.booleans()),
    st.just(protocol.ResponseTrailers()),
)
WHAT = EVENT | st.sampled_from(["expire", "close"])


@settings(deadline=None, max_examples=150)
@given(st.lists(WHAT, max_size=12), st.integers(0, 2), BUDGET)
def test_no_order_of_messages_leaves_a_lease_or_chooses_twice(
    events: list[protocol.Event | str], faults: int, budget: int
) -> None:
    of = chooser(faults)
    run = Run(exchange.Exchange(of, within(budget)))
    closed = False
    for event in events:
        if event == "expire":
            run.expire()
        elif event == "close":
            run.one.close()
            closed = True
        else:
            assert not isinstance(event, str)
            run.receive(event)
        assert of.ledger.open_leases <= (0 if closed else 1)
    assert sum(isinstance(result, choices.Choice) for result in run.results) <= 1
    run.one.close()
    assert of.ledger.open_leases == 0
    assert all(of.ledger.load(endpoint.id, run.now).work == 0 for endpoint in of.pool.endpoints)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, len(JSON)), max_size=8), st.sampled_from([None, BodyMode.BUFFERED, DUPLEX]))
def test_chain_does_not_depend_on_mode_or_chunks(cuts: list[int], mode: BodyMode | None) -> None:
    edges = [0, *sorted(cuts), len(JSON)] if mode is DUPLEX else [0, len(JSON)]
    run = Run(exchange.Exchange(chooser(), exchange.Settings()))
    run.receive(protocol.RequestHeaders(HEADERS, False, mode))
    for start, stop in itertools.pairwise(edges):
        run.receive(protocol.RequestBody(JSON[start:stop], mode is not DUPLEX))
    if mode is DUPLEX:
        run.receive(protocol.RequestBody(b"", True))
    reference = Run(exchange.Exchange(chooser(), exchange.Settings()))
    reference.receive(protocol.RequestHeaders(HEADERS, False, BodyMode.BUFFERED))
    reference.receive(protocol.RequestBody(JSON, True))
    one, other = run.one.result, reference.one.result
    assert isinstance(one, choices.Choice)
    assert isinstance(other, choices.Choice)
    assert (one.key, one.chain_blocks) == (other.key, other.chain_blocks)
    assert one.chain_blocks


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.binary(max_size=5), st.booleans()), max_size=8))
def test_duplex_answer_is_echoed_once_up_to_its_first_end(pieces: list[tuple[bytes, bool]]) -> None:
    run = Run(exchange.Exchange(chooser(), exchange.Settings()))
    run.receive(protocol.RequestHeaders(HEADERS, True, None, DUPLEX))
    for data, end in pieces:
        run.receive(protocol.ResponseBody(data, end))
    firsts = [at for at, (_, end) in enumerate(pieces) if end]
    expected = pieces[: firsts[0] + 1] if firsts else pieces
    assert [(echo.data, echo.end_of_stream) for echo in run.echoed(Phase.RESPONSE_BODY)] == expected
    assert Counter(end for _, end in expected)[True] <= 1
