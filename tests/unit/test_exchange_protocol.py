"""The Endpoint Picker Protocol beyond the pick: refusals, who really served, hooks, watching, early picks."""

from __future__ import annotations

import json
import random

import pytest

from extproc import choice as choices
from extproc import exchange, hooks, ledger, outbox, pool, prompt, protocol, router, signals
from extproc.choice import Why
from extproc.protocol import BodyMode, Echo, Phase, Refuse, Reply, Steer

HEADERS = {":path": "/v1/chat/completions", ":method": "POST"}
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
MODES = [*BodyMode, None]


def chat(text: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


def prose(seed: int, chars: int = 60_000) -> str:
    return "".join(random.Random(seed).choices("abcdefgh ", k=chars))


BODY = chat("word " * 1000)


def chooser(count: int = 4, *, ready: bool = True, **settings: object) -> router.Router:
    endpoints = [pool.Endpoint(pool.EndpointId(f"e{i}"), f"10.0.0.{i}:80", ready=ready) for i in range(count)]
    return router.Router(pool.make("p", endpoints), router.Settings(**settings))  # type: ignore[arg-type]


def headers(mode: BodyMode | None, *, more: dict[str, str] | None = None, **fields: object):  # type: ignore[no-untyped-def]
    return protocol.RequestHeaders(HEADERS | (more or {}), False, mode, **fields)  # type: ignore[arg-type]


def feed(one: exchange.Exchange, *events: protocol.Event, now: float = 0.0) -> list[protocol.Action]:
    return [action for event in events for action in one.receive(event, now, 0.5)]


def opened(of: router.Router, **settings: object) -> exchange.Exchange:
    return exchange.Exchange(of, exchange.Settings(**settings))  # type: ignore[arg-type]


def chosen(one: exchange.Exchange) -> choices.Choice:
    assert isinstance(one.result, choices.Choice)
    return one.result


# ---- refusals ----


def everything(mode: BodyMode | None, **fields: object) -> list[protocol.Event]:
    """A whole exchange, as it would come if nobody refused it."""
    return [
        headers(mode, **fields),
        protocol.RequestBody(BODY[:100], False),
        protocol.RequestBody(BODY[100:], False),
        protocol.RequestTrailers(),
        protocol.ResponseHeaders(200, False),
        protocol.ResponseBody(b"x", True),
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("subset", [(), ("1.1.1.1:1",), ("10.0.0.1:81",)], ids=str)
def test_a_subset_that_names_nobody_is_refused_and_nothing_follows(
    mode: BodyMode | None, subset: tuple[str, ...]
) -> None:
    of = chooser()
    one = opened(of)
    answer = feed(one, *everything(mode, subset=subset))
    at_headers = mode in (BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC, DUPLEX)
    before = [] if at_headers else [Reply(Phase.REQUEST_HEADERS, Steer(""))]
    assert answer == [*before, Refuse(503, "subset")]
    assert of.ledger.open_leases == 0
    assert one.endpoint is None


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_pool_is_refused_where_that_is_asked_for_and_else_left_to_envoy(
    mode: BodyMode | None,
) -> None:
    refusing = feed(opened(chooser(ready=False, refuses_empty=True)), *everything(mode))
    assert refusing[-1] == Refuse(503, "no_endpoint")
    passing = feed(opened(chooser(ready=False)), *everything(mode))
    assert not any(isinstance(action, Refuse) for action in passing)
    # a subset is a restriction: nobody outside of it, by Envoy's own balancing, may serve instead
    restricted = feed(opened(chooser(ready=False)), *everything(mode, subset=("10.0.0.1:80",)))
    assert restricted[-1] == Refuse(503, "subset")


@pytest.mark.parametrize("mode", MODES)
def test_when_all_are_at_the_cap_a_request_is_refused_with_429_until_one_is_over(
    mode: BodyMode | None,
) -> None:
    of = chooser(2, inflight_max=2)
    held = [opened(of) for _ in range(4)]
    for one in held:
        assert not any(isinstance(action, Refuse) for action in feed(one, *everything(mode)))
    assert [of.ledger.load(pool.EndpointId(name), 0.0).inflight for name in ("e0", "e1")] == [2, 2]
    refused = opened(of)
    assert feed(refused, *everything(mode))[-1] == Refuse(429, "saturated")
    refused.close()
    assert of.ledger.open_leases == 4
    held[0].close()
    again = opened(of)
    feed(again, *everything(mode))
    assert chosen(again).endpoint == chosen(held[0]).endpoint


def test_a_fault_after_a_refusal_stays_silent() -> None:
    one = opened(chooser())
    assert feed(one, headers(BodyMode.NONE, subset=())) == [Refuse(503, "subset")]
    assert one.give_up(protocol.RequestTrailers(), 0.0) == []
    assert one.can_end_early


# ---- who really served ----


def sent(of: router.Router, **settings: object) -> exchange.Exchange:
    one = opened(of, **settings)
    feed(one, headers(BodyMode.BUFFERED), protocol.RequestBody(BODY, True))
    return one


def held(of: router.Router, endpoint: str) -> int:
    return of.residency.blocks(pool.EndpointId(endpoint))


def work(of: router.Router, endpoint: str) -> tuple[int, int]:
    load = of.ledger.load(pool.EndpointId(endpoint), 0.0)
    return load.inflight, load.pending


def test_what_another_endpoint_served_counts_there() -> None:
    of = chooser()
    one = sent(of)
    first = chosen(one).endpoint
    other = next(e for e in of.pool.endpoints if e != first)
    blocks, load = held(of, first.id), work(of, first.id)
    assert blocks > 10
    assert load[1] > 1000
    feed(one, protocol.ResponseHeaders(200, False, other.address))
    assert (held(of, first.id), held(of, other.id)) == (0, blocks)
    assert (work(of, first.id), work(of, other.id)) == ((0, 0), load)
    for record in (of.sent, of.sent_own):
        assert [record.to(e.id).requests for e in (first, other)] == [1, 1]  # what metrics show never falls
        assert [record.to(e.id).net().requests for e in (first, other)] == [0, 1]
        gone, got = record.to(first.id).net(), record.to(other.id).net()
        assert (gone.keyed, gone.prompt_tokens, gone.prompt_bytes, gone.gpu_tokens) == (0, 0, 0, 0)
        assert (got.keyed, got.prompt_tokens) == (1, chosen(one).prompt_tokens)
    assert one.endpoint == other
    one.close()
    assert work(of, other.id) == (0, 0)
    assert of.ledger.open_leases == 0
    assert chosen(sent(of)).endpoint == other, "the prompt's cache is there now"


@pytest.mark.parametrize("entries", [None, outbox.Outbox()], ids=["alone", "one of several"])
def test_a_prediction_goes_with_the_request_to_who_served_it(entries: outbox.Outbox | None) -> None:
    of = chooser(2)
    of = router.Router(of.pool, of.settings, entries)
    warm = chosen(sent(of))  # from now on the first is thought to hold the prompt
    first = warm.endpoint
    other = next(e for e in of.pool.endpoints if e != first)
    records = (of.sent, of.sent_own)
    before = [record.to(first.id).net() for record in records]
    one = sent(of)
    assert chosen(one).endpoint == first
    assert [record.to(first.id).gpu_tokens > 1000 for record in records] == [True, True]
    feed(one, protocol.ResponseHeaders(200, False, other.address))
    for record, was in zip(records, before, strict=True):
        left = record.to(first.id).net()
        assert (left.requests, left.prompt_tokens, left.prompt_bytes) == (
            was.requests, was.prompt_tokens, was.prompt_bytes
        )  # fmt: skip
        assert left.gpu_tokens == left.cached_tokens == was.gpu_tokens == 0
        got = record.to(other.id).net()
        assert (got.requests, got.prompt_tokens, got.gpu_tokens) == (1, warm.prompt_tokens, 0)


@pytest.mark.parametrize("asked_s", [None, -1.0, 1.0], ids=["never asked", "asked before", "asked since"])
def test_what_went_elsewhere_no_longer_fills_the_cache_of_who_was_asked_before_it_was_sent(
    asked_s: float | None,
) -> None:
    of = chooser(2)
    one = opened(of)
    feed(one, headers(BodyMode.BUFFERED), protocol.RequestBody(BODY, True), now=0.0)
    first, sent_tokens = chosen(one).endpoint, of.sent.to(chosen(one).endpoint.id).uncached_tokens
    other = next(e for e in of.pool.endpoints if e != first)
    assert sent_tokens > 1000
    if asked_s is not None:
        known = sent_tokens if asked_s > 0 else 0
        of.signals.put(first.id, signals.Signal(asked_s, 0.5, 10_000, 0, known))
    feed(one, protocol.ResponseHeaders(200, False, other.address), now=2.0)
    left = of.sent.to(first.id).uncached_tokens
    assert left == (sent_tokens if asked_s == 1.0 else 0)
    assert of.sent.to(other.id).uncached_tokens == sent_tokens
    if asked_s is not None:
        assert of.signals.load(first.id, left, 2.0) == (0.5, 0)


def test_who_served_is_told_twice_and_counts_once() -> None:
    of = chooser(2)
    before = sent(of)
    first = chosen(before).endpoint
    one = opened(of)
    feed(one, headers(BodyMode.BUFFERED), protocol.RequestBody(BODY, True), now=1.0)
    other = next(e for e in of.pool.endpoints if e != first)
    for _ in range(2):
        feed(one, protocol.ResponseHeaders(200, False, other.address))
    assert held(of, first.id) == chosen(before).chain_blocks + 2  # with its answer
    assert [of.sent.to(e.id).net().requests for e in (first, other)] == [1, 1]


def test_what_the_chosen_one_served_stays_as_it_was() -> None:
    of = chooser()
    one = sent(of)
    first = chosen(one).endpoint
    before = held(of, first.id), work(of, first.id)
    feed(one, protocol.ResponseHeaders(200, False, first.address))
    assert (held(of, first.id), work(of, first.id)) == before
    assert one.endpoint == first


def test_what_a_stranger_served_counts_nowhere() -> None:
    of = chooser()
    one = sent(of)
    first = chosen(one).endpoint
    feed(one, protocol.ResponseHeaders(200, False, "1.2.3.4:5"))
    assert held(of, first.id) == of.ledger.open_leases == 0
    assert (of.sent.to(first.id).requests, of.sent.to(first.id).net().requests) == (1, 0)
    assert one.endpoint is None
    feed(one, protocol.ResponseBody(b"x", True))
    one.close()
    assert work(of, first.id) == (0, 0)


def test_what_others_used_since_stays_when_a_prompt_turns_out_to_have_gone_elsewhere() -> None:
    of = chooser(2)
    one = opened(of)
    feed(one, headers(BodyMode.BUFFERED), protocol.RequestBody(BODY, True), now=0.0)
    first = chosen(one).endpoint
    longer = opened(of)
    feed(longer, headers(BodyMode.BUFFERED), protocol.RequestBody(chat("word " * 2000), True), now=1.0)
    assert chosen(longer).endpoint == first
    before = held(of, first.id)
    other = next(e for e in of.pool.endpoints if e != first)
    feed(one, protocol.ResponseHeaders(200, False, other.address), now=2.0)
    assert held(of, first.id) == before - 2  # the answer to the first was not given there
    assert held(of, other.id) == chosen(one).chain_blocks + 2


def test_a_prompt_prefilled_already_waits_nowhere_else() -> None:
    of = chooser()
    one = sent(of)
    other = next(e for e in of.pool.endpoints if e != chosen(one).endpoint)
    feed(one, protocol.ResponseBody(b"x", False), protocol.ResponseHeaders(200, False, other.address))
    assert work(of, other.id) == (1, 0)


# ---- conformance hooks ----


def test_the_hook_header_chooses_in_its_order_and_the_answer_tells_who_served() -> None:
    of = chooser()
    for wanted, address in (
        ("10.0.0.3", "10.0.0.3:80"),
        ("10.0.0.2:80", "10.0.0.2:80"),
        ("9.9.9.9, 10.0.0.3:80,10.0.0.1:80", "10.0.0.3:80"),
    ):
        one = opened(of, hooks=True)
        feed(one, headers(BodyMode.NONE, more={hooks.CHOICE: wanted}))
        assert chosen(one).endpoint.address == address
        for served in ("", "10.0.0.1:80"):
            (answer,) = feed(one, protocol.ResponseHeaders(200, False, served))
            assert answer == Reply(Phase.RESPONSE_HEADERS, headers=((hooks.SERVED, served or address),))
    refused = opened(of, hooks=True)
    assert feed(refused, headers(BodyMode.NONE, more={hooks.CHOICE: "9.9.9.9"})) == [Refuse(503, "subset")]


def test_without_the_setting_the_hooks_do_nothing() -> None:
    of = chooser()
    for number in range(4):
        one = opened(of)
        feed(one, headers(DUPLEX, more={hooks.CHOICE: "9.9.9.9"}), protocol.RequestBody(BODY, True))
        assert chosen(one)
        assert feed(one, protocol.ResponseHeaders(200, False)) == [Reply(Phase.RESPONSE_HEADERS)], number


# ---- watching ----


@pytest.mark.parametrize("mode", MODES)
def test_an_exchange_that_envoy_only_shows_is_answered_nothing_and_takes_no_lease(
    mode: BodyMode | None,
) -> None:
    of = chooser()
    one = opened(of)
    assert feed(one, *everything(mode, observed=True)) == []
    assert one.deadline_s is None
    assert isinstance(one.result, choices.NoEndpoint)
    assert one.result.why is Why.OBSERVED
    assert of.ledger.open_leases == 0


# ---- when the choice is made in full duplex ----


def test_duplex_picks_soon_after_the_key_is_known_and_long_before_the_deadline() -> None:
    one = opened(chooser(), decision_timeout_s=30)
    body = chat(prose(1))
    assert feed(one, headers(DUPLEX), protocol.RequestBody(body[:8000], False), now=1.0) == []
    assert one.deadline_s == 31.0
    assert feed(one, protocol.RequestBody(body[8000:20_000], False), now=2.0) == []
    assert one.deadline_s == pytest.approx(2.1)
    answer = one.expire(2.1, 0.5)
    assert answer[0] == Reply(Phase.REQUEST_HEADERS, Steer(chosen(one).endpoint.address))
    assert chosen(one).keyed_by is choices.KeyedBy.ANCHOR


def test_duplex_waits_on_while_all_that_came_is_shared_by_everybody() -> None:
    of = chooser()
    shared = prose(2, 40_000)
    for user in range(20):  # everybody's system prompt; what tells users apart comes after it
        one = opened(of)
        feed(one, headers(DUPLEX), protocol.RequestBody(chat(shared + prose(100 + user, 3000)), True))
        one.close()
    late = opened(of, decision_timeout_s=30)
    body = chat(shared + prose(999, 40_000))
    feed(late, headers(DUPLEX), protocol.RequestBody(body[:30_000], False), now=1.0)
    assert late.deadline_s == 31.0, "no key yet"
    feed(late, protocol.RequestBody(body[30_000:70_000], False), now=2.0)
    assert late.deadline_s == pytest.approx(2.1)
    late.expire(2.1, 0.5)
    anchor = chosen(late).anchor_block
    assert anchor is not None
    assert anchor > 100, "behind what is shared"


def test_an_early_pick_has_the_key_that_the_whole_body_has() -> None:
    for seed in range(5):
        body = chat(prose(seed))
        early, whole = opened(chooser()), opened(chooser())
        feed(early, headers(DUPLEX), protocol.RequestBody(body[:20_000], False))
        early.expire(1.0, 0.5)
        feed(whole, headers(DUPLEX), protocol.RequestBody(body, True))
        assert chosen(early).key == chosen(whole).key


def test_an_explicit_key_needs_no_anchor() -> None:
    of = chooser()
    for _ in range(5):
        opened_ = opened(of)
        feed(opened_, headers(DUPLEX), protocol.RequestBody(chat(prose(3)), True))
        opened_.close()
    body = chat(prose(3))
    plain = opened(of, decision_timeout_s=30)
    feed(plain, headers(DUPLEX), protocol.RequestBody(body[:20_000], False))
    assert plain.deadline_s == 30.0, "always the same prompt: whether it goes on alike is not known"
    keyed = opened(of, decision_timeout_s=30, key_header="x-session")
    feed(keyed, headers(DUPLEX, more={"x-session": "s1"}), protocol.RequestBody(body[:20_000], False))
    assert keyed.deadline_s == pytest.approx(0.1)


def test_the_length_of_a_body_that_is_still_coming_counts_as_prompt_within_bounds() -> None:
    body = chat(prose(4))

    def tokens(length: str) -> float:
        one = opened(chooser(), prompt=prompt.Settings(bytes_max=100_000))
        feed(
            one, headers(DUPLEX, more={"content-length": length}), protocol.RequestBody(body[:20_000], False)
        )
        one.expire(1.0, 0.5)
        return chosen(one).prompt_tokens

    plain = tokens("")
    assert tokens(str(len(body))) == pytest.approx(plain + (len(body) - 20_000) / 4)
    assert tokens("9" * 15) == pytest.approx(plain + 100_000 / 4)
    for odd in ("-5", "1e9", "٣", "9" * 40, "10"):
        assert tokens(odd) == plain


def test_trailers_that_come_while_the_request_is_refused_are_not_answered() -> None:
    one = opened(chooser())
    answer = feed(
        one, headers(DUPLEX, subset=()), protocol.RequestBody(b"{}", False), protocol.RequestTrailers()
    )
    assert answer == [Refuse(503, "subset")]


def test_the_engines_own_token_counts_are_known_at_the_end() -> None:
    one = sent(chooser())
    assert one.usage is None
    told = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}'
    for byte in told:
        feed(one, protocol.ResponseBody(bytes([byte]), False))
    assert one.usage is not None
    assert (one.usage.prompt_tokens, one.usage.output_tokens) == (7, 2)


def test_moving_a_lease_keeps_the_order_of_those_behind_it() -> None:
    book = ledger.Ledger(100.0)
    a, b = pool.EndpointId("a"), pool.EndpointId("b")
    first, _ = book.take(a, 100, 0.0), book.take(a, 100, 0.0)
    first.move(b, 1000, 0.0)
    assert (book.load(a, 0.0).pending, book.load(b, 0.0).pending) == (100, 1000)
    assert (book.load(a, 0.9).pending, book.load(a, 1.0).pending) == (100, 0)
    assert book.load(b, 9.0).pending == 1000
    first.release()
    first.move(a, 5, 9.0)
    assert book.load(a, 9.0).inflight == 1


def test_echoes_and_replies_keep_their_order_when_a_choice_is_early() -> None:
    one = opened(chooser(), decision_timeout_s=30)
    body = chat(prose(5))
    feed(one, headers(DUPLEX), protocol.RequestBody(body[:20_000], False))
    first = one.expire(0.1, 0.5)
    rest = feed(one, protocol.RequestBody(body[20_000:], False), protocol.RequestBody(b"", True))
    assert [type(action) for action in first] == [Reply, Echo]
    assert [action.data for action in [*first[1:], *rest] if isinstance(action, Echo)] == [
        body[:20_000],
        body[20_000:],
        b"",
    ]
