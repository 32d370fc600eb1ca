import json

import pytest

from extproc import choice as choices
from extproc import exchange, pool, prompt, protocol, router
from extproc.protocol import BodyMode, Echo, Phase, Reply, Steer

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 1000}]}).encode()
HEADERS = {":path": "/v1/chat/completions", ":method": "POST"}
AT_BODY = [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, None]
AT_HEADERS = [BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC]
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED


class Broken(router.Router):
    """A router with a fault."""

    def choose(self, *_: object, **__: object) -> choices.Decision | choices.NoEndpoint:
        raise ArithmeticError


def chooser(count: int = 4, kind: type[router.Router] = router.Router) -> router.Router:
    endpoints = [pool.Endpoint(pool.EndpointId(f"e{i}"), f"10.0.0.{i}:80") for i in range(count)]
    return kind(pool.make("p", endpoints), router.Settings())


def headers(mode: BodyMode | None, *, end: bool = False, **fields: object) -> protocol.RequestHeaders:
    return protocol.RequestHeaders(HEADERS, end, mode, **fields)  # type: ignore[arg-type]


def opened(of: router.Router, **settings: object) -> exchange.Exchange:
    return exchange.Exchange(of, exchange.Settings(**settings))  # type: ignore[arg-type]


def feed(one: exchange.Exchange, *events: protocol.Event, now: float = 0.0) -> list[protocol.Action]:
    return [action for event in events for action in one.receive(event, now, 0.5)]


def chunk(data: bytes, *, end: bool = False) -> protocol.RequestBody:
    return protocol.RequestBody(data, end)


def choice_of(one: exchange.Exchange) -> choices.Choice:
    assert isinstance(one.result, choices.Choice)
    return one.result


@pytest.mark.parametrize("mode", AT_BODY)
def test_buffered_headers_are_answered_at_once_and_the_body_reply_steers(mode: BodyMode | None) -> None:
    of = chooser()
    one = opened(of)
    assert feed(one, headers(mode)) == [Reply(Phase.REQUEST_HEADERS, Steer(""))]
    assert one.result is None
    answer = feed(one, chunk(BODY, end=True))
    assert answer == [Reply(Phase.REQUEST_BODY, Steer(choice_of(one).endpoint.address))]
    assert choice_of(one).chain_blocks
    assert of.ledger.open_leases == 1


@pytest.mark.parametrize("mode", AT_HEADERS)
def test_modes_whose_headers_leave_first_steer_in_the_header_reply_without_a_chain(mode: BodyMode) -> None:
    one = opened(chooser())
    answer = feed(one, headers(mode))
    assert answer == [Reply(Phase.REQUEST_HEADERS, Steer(choice_of(one).endpoint.address))]
    assert choice_of(one).unkeyed is prompt.Unkeyed.MODE
    assert feed(one, chunk(BODY), chunk(b"", end=True)) == [Reply(Phase.REQUEST_BODY)] * 2


@pytest.mark.parametrize("mode", [*BodyMode, None])
def test_request_without_a_body_is_steered_in_the_header_reply(mode: BodyMode | None) -> None:
    one = opened(chooser())
    answer = feed(one, headers(mode, end=True))
    assert answer == [Reply(Phase.REQUEST_HEADERS, Steer(choice_of(one).endpoint.address))]
    assert choice_of(one).unkeyed is prompt.Unkeyed.BODY
    assert one.deadline_s is None


def test_duplex_holds_all_until_the_end_and_then_echoes_headers_first() -> None:
    one = opened(chooser())
    assert feed(one, headers(DUPLEX), chunk(BODY[:100]), chunk(BODY[100:])) == []
    assert one.deadline_s is not None
    assert feed(one, chunk(b"", end=True)) == [
        Reply(Phase.REQUEST_HEADERS, Steer(choice_of(one).endpoint.address)),
        Echo(Phase.REQUEST_BODY, BODY[:100], end_of_stream=False),
        Echo(Phase.REQUEST_BODY, BODY[100:], end_of_stream=False),
        Echo(Phase.REQUEST_BODY, b"", end_of_stream=True),
    ]
    assert one.deadline_s is None


@pytest.mark.parametrize("again", [b"", BODY])
def test_duplex_ignores_a_second_end_of_stream(again: bytes) -> None:
    one = opened(chooser())
    feed(one, headers(DUPLEX), chunk(BODY, end=True))
    before = one.result
    assert feed(one, chunk(again, end=True)) == []
    assert one.result is before


def test_duplex_decides_once_the_budget_is_reached_and_passes_the_rest_on() -> None:
    one = opened(chooser(), prompt=prompt.Settings(bytes_max=1000))
    assert feed(one, headers(DUPLEX), chunk(BODY[:999])) == []
    assert len(feed(one, chunk(BODY[999:1500]))) == 3
    assert feed(one, chunk(BODY[1500:])) == [Echo(Phase.REQUEST_BODY, BODY[1500:], end_of_stream=False)]
    assert choice_of(one).chain_blocks == 3  # of 256 bytes, from less than 1000


def test_duplex_decides_at_its_deadline_by_what_came() -> None:
    one = opened(chooser(), decision_timeout_s=0.2)
    feed(one, headers(DUPLEX), chunk(BODY[:600]), now=7.0)
    assert one.deadline_s == pytest.approx(7.2)
    assert one.expire(7.2, 0.5) == [
        Reply(Phase.REQUEST_HEADERS, Steer(choice_of(one).endpoint.address)),
        Echo(Phase.REQUEST_BODY, BODY[:600], end_of_stream=False),
    ]
    assert one.expire(7.3, 0.5) == []
    assert feed(one, chunk(BODY[600:], end=True)) == [
        Echo(Phase.REQUEST_BODY, BODY[600:], end_of_stream=True)
    ]


def test_duplex_deadline_before_any_chunk_gives_an_unkeyed_choice() -> None:
    one = opened(chooser())
    feed(one, headers(DUPLEX))
    assert [type(action) for action in one.expire(1.0, 0.5)] == [Reply]
    assert choice_of(one).unkeyed is prompt.Unkeyed.BODY


def test_duplex_trailers_end_the_body_and_come_last() -> None:
    one = opened(chooser())
    model_last = b'{"messages":[{"role":"user","content":"hi"}],"model":"m"}'
    answer = feed(one, headers(DUPLEX), chunk(model_last), protocol.RequestTrailers())
    assert [getattr(action, "phase", None) for action in answer] == [
        Phase.REQUEST_HEADERS,
        Phase.REQUEST_BODY,
        Phase.REQUEST_TRAILERS,
    ]
    assert choice_of(one).unkeyed is None  # the body was whole, and its last key too


@pytest.mark.parametrize("mode", [*AT_BODY, DUPLEX])
def test_chain_is_the_same_in_every_mode_that_shows_the_body(mode: BodyMode | None) -> None:
    one = opened(chooser())
    feed(one, headers(mode), chunk(BODY, end=True))
    reference = opened(chooser())
    feed(reference, headers(DUPLEX), *(chunk(BODY[i : i + 7]) for i in range(0, len(BODY), 7)))
    feed(reference, chunk(b"", end=True))
    assert choice_of(one).key == choice_of(reference).key is not None
    assert choice_of(one).chain_blocks == choice_of(reference).chain_blocks


def test_partial_body_is_keyed_by_the_start_that_came() -> None:
    whole, cut = opened(chooser()), opened(chooser())
    feed(whole, headers(BodyMode.BUFFERED), chunk(BODY, end=True))
    feed(cut, headers(BodyMode.BUFFERED_PARTIAL), chunk(BODY[:2000]))
    one, other = choice_of(cut), choice_of(whole)
    assert one.chain_blocks == 7
    assert other.chain_blocks > 7
    assert other.key == one.key


@pytest.mark.parametrize("coding", ["compress", "gzip, br", "x-unknown"])
def test_body_in_an_unknown_coding_is_unkeyed(coding: str) -> None:
    one = opened(chooser())
    feed(one, protocol.RequestHeaders(HEADERS | {"content-encoding": coding}, False), chunk(BODY, end=True))
    assert choice_of(one).unkeyed is prompt.Unkeyed.ENCODING


@pytest.mark.parametrize("coding", ["", "identity", " Identity "])
def test_identity_is_no_encoding(coding: str) -> None:
    one = opened(chooser())
    feed(one, protocol.RequestHeaders(HEADERS | {"content-encoding": coding}, False), chunk(BODY, end=True))
    assert choice_of(one).unkeyed is None


@pytest.mark.parametrize("mode", [*BodyMode, None])
@pytest.mark.parametrize("end", [False, True])
def test_subset_hint_is_respected_in_every_mode(mode: BodyMode | None, *, end: bool) -> None:
    one = opened(chooser())
    feed(one, headers(mode, end=end, subset=("10.0.0.2:80",)))
    if one.result is None:
        feed(one, chunk(BODY, end=True))
    assert choice_of(one).endpoint.address == "10.0.0.2:80"


@pytest.mark.parametrize("mode", [*BodyMode, None])
def test_nobody_to_choose_removes_the_header_and_takes_no_lease(mode: BodyMode | None) -> None:
    count = 0
    of = chooser(count)
    one = opened(of)
    answer = feed(one, headers(mode), chunk(BODY, end=True))
    steers = [action.steer for action in answer if isinstance(action, Reply) and action.steer is not None]
    assert steers
    assert set(steers) == {Steer("")}
    assert one.result == choices.NoEndpoint(count, count)
    assert of.ledger.open_leases == 0


def test_lease_counts_until_close_and_close_may_repeat() -> None:
    of = chooser()
    one = opened(of)
    feed(one, headers(BodyMode.BUFFERED), chunk(BODY, end=True), protocol.ResponseHeaders(200, False))
    feed(one, protocol.ResponseBody(b"x", True), protocol.ResponseTrailers())
    assert of.ledger.open_leases == 1
    one.close()
    one.close()
    assert of.ledger.open_leases == 0


def test_close_before_the_choice_is_harmless_and_nothing_is_taken_after() -> None:
    of = chooser()
    one = opened(of)
    feed(one, headers(BodyMode.BUFFERED))
    one.close()
    feed(one, chunk(BODY, end=True))
    assert of.ledger.open_leases == 0


def test_first_piece_of_the_answer_ends_prefill_and_its_headers_do_not() -> None:
    of = chooser()
    one = opened(of)
    feed(one, headers(BodyMode.BUFFERED), chunk(BODY, end=True), protocol.ResponseHeaders(200, False))

    def pending() -> int:
        return of.ledger.load(choice_of(one).endpoint.id, 0.0).pending

    assert pending() > 1000
    feed(one, protocol.ResponseBody(b"", False))
    assert pending() > 1000
    feed(one, protocol.ResponseBody(b"data: {}", False))
    assert pending() == 0
    assert of.ledger.open_leases == 1


def test_answer_is_echoed_in_duplex_and_its_repeated_end_ignored() -> None:
    one = opened(chooser())
    feed(one, headers(BodyMode.BUFFERED, response_body_mode=DUPLEX), chunk(BODY, end=True))
    assert feed(one, protocol.ResponseBody(b"a", False)) == [Echo(Phase.RESPONSE_BODY, b"a", False)]
    assert feed(one, protocol.ResponseBody(b"", True)) == [Echo(Phase.RESPONSE_BODY, b"", True)]
    assert feed(one, protocol.ResponseBody(b"", True)) == []


def test_answer_is_only_acknowledged_in_other_modes() -> None:
    one = opened(chooser())
    feed(one, headers(BodyMode.BUFFERED), chunk(BODY, end=True))
    assert feed(
        one,
        protocol.ResponseHeaders(200, False),
        protocol.ResponseBody(b"a", True),
        protocol.ResponseTrailers(),
    ) == [Reply(Phase.RESPONSE_HEADERS), Reply(Phase.RESPONSE_BODY), Reply(Phase.RESPONSE_TRAILERS)]


@pytest.mark.parametrize("cut", [0, 5, len(BODY)])
def test_fault_at_the_last_chunk_loses_nothing(cut: int) -> None:
    of = chooser(kind=Broken)
    one = opened(of)
    feed(one, headers(DUPLEX), chunk(BODY[:cut]))
    last = chunk(BODY[cut:], end=True)
    with pytest.raises(ArithmeticError):
        feed(one, last)
    assert one.give_up(last, 0.0) == [
        Reply(Phase.REQUEST_HEADERS, Steer("")),
        Echo(Phase.REQUEST_BODY, BODY[:cut], end_of_stream=False),
        Echo(Phase.REQUEST_BODY, BODY[cut:], end_of_stream=True),
    ]
    assert feed(one, chunk(b"", end=True)) == []


def test_fault_at_the_deadline_loses_nothing() -> None:
    one = opened(chooser(kind=Broken))
    feed(one, headers(DUPLEX), chunk(BODY))
    with pytest.raises(ArithmeticError):
        one.expire(1.0, 0.5)
    assert one.give_up(None, 1.0) == [
        Reply(Phase.REQUEST_HEADERS, Steer("")),
        Echo(Phase.REQUEST_BODY, BODY, end_of_stream=False),
    ]
    assert one.deadline_s is None
    assert feed(one, chunk(b"", end=True)) == [Echo(Phase.REQUEST_BODY, b"", end_of_stream=True)]


def test_headers_that_come_twice_take_one_lease_and_steer_alike() -> None:
    of = chooser()
    one = opened(of)
    first, second = feed(one, headers(BodyMode.STREAMED)), feed(one, headers(BodyMode.STREAMED))
    assert first == second
    one.close()
    assert of.ledger.open_leases == 0


def test_stream_can_end_early_only_when_nothing_is_held_or_echoed() -> None:
    buffered, duplex, answering = opened(chooser()), opened(chooser()), opened(chooser())
    feed(buffered, headers(BodyMode.BUFFERED))
    assert not buffered.can_end_early
    feed(buffered, chunk(BODY, end=True))
    assert buffered.can_end_early
    feed(duplex, headers(DUPLEX), chunk(BODY, end=True))
    assert not duplex.can_end_early
    feed(answering, headers(BodyMode.BUFFERED, response_body_mode=DUPLEX), chunk(BODY, end=True))
    assert not answering.can_end_early


@pytest.mark.parametrize("mode", AT_BODY)
def test_headers_and_trailers_without_a_body_message_are_steered_by_the_trailers(
    mode: BodyMode | None,
) -> None:
    one = opened(chooser())
    feed(one, headers(mode))
    (reply,) = feed(one, protocol.RequestTrailers())
    assert reply == Reply(Phase.REQUEST_TRAILERS, Steer(choice_of(one).endpoint.address))
    assert choice_of(one).unkeyed is prompt.Unkeyed.BODY
