"""What choices are worth, which limits they met, and how old leases get: as metrics tell it."""

from __future__ import annotations

import json

import pytest

from extproc import choice, exchange, ledger, metrics, policy, pool, prompt, protocol, router, views

NAMES = [pool.EndpointId(name) for name in ("a", "b", "c", "d")]
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "long story " * 2000}]}).encode()
READ = prompt.read("/v1/chat/completions", BODY, prompt.Settings(), whole=True)


def made(**settings: object) -> router.Router:
    endpoints = [pool.Endpoint(name, f"10.0.0.{at}:1") for at, name in enumerate(NAMES, 1)]
    return router.Router(pool.make("p", endpoints), router.Settings(**settings))


def decided(of: router.Router, now: float = 0.0) -> choice.Decision:
    found = of.choose(READ, now, 0.5)
    assert isinstance(found, choice.Decision)
    return found


def counter(counted: metrics.Metrics, name: str) -> float:
    return counted.registry.get_sample_value(name, {"pool": "p"}) or 0.0


def test_a_warm_choice_saves_what_the_mean_candidate_would_have_to_prefill() -> None:
    of = made(prefill_tokens_per_s=1000.0)
    cold = decided(of).choice
    assert cold.saved_tokens == 0
    warm = decided(of).choice
    assert warm.endpoint == cold.endpoint
    assert warm.saved_tokens == pytest.approx(warm.cached_tokens * 3 / 4)
    counted = metrics.Metrics(of, lambda: 0.0, 0.0)
    counted.add_pool("p", gpus=2)
    counted.record(cold)
    counted.record(warm)
    assert counter(counted, "kvring_saved_prefill_tokens_total") == pytest.approx(warm.saved_tokens)
    assert counter(counted, "kvring_saved_gpu_seconds_total") == pytest.approx(2 * warm.saved_tokens / 1000)
    assert counter(counted, "kvring_added_prefill_tokens_total") == 0


def test_a_choice_that_gives_cache_up_for_less_load_is_counted_on_the_other_side() -> None:
    of = made(limits=policy.Limits(1.05, 0.0))
    home = decided(of).choice.endpoint.id
    of.ledger.take(home, 1_000_000, 0.0)
    moved = decided(of).choice
    assert moved.endpoint.id != home
    assert moved.saved_tokens < 0
    counted = metrics.Metrics(of, lambda: 0.0, 0.0)
    counted.record(moved)
    assert counter(counted, "kvring_added_prefill_tokens_total") == pytest.approx(-moved.saved_tokens)
    assert counter(counted, "kvring_added_gpu_seconds_total") > 0
    assert counter(counted, "kvring_saved_prefill_tokens_total") == 0


def test_what_is_only_rendered_saves_nothing() -> None:
    of = made()
    decided(of)
    rendered = prompt.read("/v1/chat/completions/render", BODY, prompt.Settings(), whole=True)
    found = of.choose(rendered, 0.0, 0.5)
    assert isinstance(found, choice.Decision)
    assert found.choice.saved_tokens == 0


def test_limits_of_reading_are_told() -> None:
    assert decided(made()).choice.limits == ()
    assert decided(made(blocks_max=16)).choice.limits == (choice.Limit.BLOCKS,)
    settings = prompt.Settings(bytes_max=4096)
    cut = prompt.read("/v1/chat/completions", BODY, settings, whole=True)
    found = made().choose(cut, 0.0, 0.5)
    assert isinstance(found, choice.Decision)
    assert found.choice.limits == (choice.Limit.PROMPT_BYTES,)


DUPLEX = protocol.BodyMode.FULL_DUPLEX_STREAMED


@pytest.mark.parametrize("late", [False, True])
def test_limits_of_waiting_are_told(late: bool) -> None:  # noqa: FBT001
    one = exchange.Exchange(made(), exchange.Settings(held_bytes_max=1000, decision_timeout_s=1.0))
    headers = protocol.RequestHeaders(
        {":path": "/v1/chat/completions"}, end_of_stream=False, body_mode=DUPLEX
    )
    one.receive(headers, 0.0, 0.5)
    one.receive(protocol.RequestBody(BODY[:100], end_of_stream=False), 0.0, 0.5)
    assert one.limit is None
    if late:
        one.expire(1.0, 0.5)
        assert one.limit is choice.Limit.DECISION_TIMEOUT
    else:
        one.receive(protocol.RequestBody(BODY[100:1200], end_of_stream=False), 0.0, 0.5)
        assert one.limit is choice.Limit.HELD_BYTES


def test_the_oldest_open_lease_tells_its_age() -> None:
    book = ledger.Ledger(1000.0)
    assert book.oldest_s(NAMES[0], 5.0) is None
    first, second = book.take(NAMES[0], 10, 1.0), book.take(NAMES[0], 10, 3.0)
    assert book.oldest_s(NAMES[0], 5.0) == 4.0
    first.release()
    first.release()
    assert book.oldest_s(NAMES[0], 5.0) == 2.0
    second.release()
    assert book.oldest_s(NAMES[0], 5.0) is None


@pytest.mark.parametrize("policy_", ["ring", "cost"])
def test_the_view_holds_load_against_the_bound_of_the_policy(policy_: str) -> None:
    of = made(policy=policy_)
    decisions = [decided(of) for _ in range(9)]
    (view,) = views.alone(of)(0.0)
    loads = {one.endpoint.id: one.inflight if policy_ == "cost" else one.work for one in view.endpoints}
    least, more = (8, 1) if policy_ == "cost" else (8192, 0)
    assert view.bound == max(least, 2 * (sum(loads.values()) + more) / 4)
    for one in view.endpoints:
        assert one.filled == pytest.approx(loads[one.endpoint.id] / view.bound)
    preview = of.preview(of.read(READ), 0.0, 0.5)
    assert isinstance(preview, router.Preview)
    if policy_ == "cost":
        assert preview.bound == view.bound
    for decision in decisions:
        decision.lease.release()
    (view,) = views.alone(of)(1000.0)
    assert {one.filled for one in view.endpoints} == {0}
