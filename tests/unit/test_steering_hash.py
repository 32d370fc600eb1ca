"""`steering: hash`: what may be configured, what the exchange answers in each mode, what is told of it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from extproc import (
    choice,
    cli,
    config,
    exchange,
    explanation,
    groups,
    hasher,
    journal,
    metrics,
    pool,
    prompt,
    protocol,
    router,
    telling,
    wire,
)  # fmt: skip
from extproc.protocol import BodyMode, Echo, Phase, Refuse, Reply, Steer

HASH = "x-kvring-hash"
POOL: dict[str, Any] = {"name": "big", "steering": "hash", "endpoint_count": 100}
OTHER: dict[str, Any] = {
    "name": "small", "endpoints": [{"name": "e0", "address": "10.0.0.1:80"}], "match": {"models": ["tiny"]},
}  # fmt: skip
HEADERS = {":path": "/v1/chat/completions", ":method": "POST"}
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 1000}]}).encode()
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
AT_BODY = [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, None]


def load(*pools: dict[str, Any], **more: Any) -> config.Config:
    return config.loads(json.dumps({"pools": list(pools), **more}), {})


# ---- configuration ----


def test_a_pool_of_unknown_endpoints_loads_and_makes_a_hasher() -> None:
    group = load(POOL | {"block_bytes": 64, "anchor_half_life_s": 60}).pools[0]
    made = config.hasher_of(group)
    assert made is not None
    assert (made.name, made.endpoints, made.settings.block_bytes) == ("big", 100, 64)
    assert config.hasher_of(load(OTHER | {"match": {"models": ["x"]}}).pools[0]) is None


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"endpoints": OTHER["endpoints"]}, "endpoints"),
        ({"dns": {"name": "vllm", "port": 80}}, "dns"),
        ({"inference_pool": {"name": "vllm"}}, "inference_pool"),
        ({"envoy_cluster": {"admin": "http://127.0.0.1:1", "cluster": "x"}}, "envoy_cluster"),
        ({"policy": "ring"}, "policy"),
        ({"bound_factor": 3}, "bound_factor"),
        ({"alternates": 2}, "alternates"),
        ({"inflight_max": 5}, "inflight_max"),
        ({"on_empty": "refuse"}, "on_empty"),
        ({"kv_tokens": 5000}, "kv_tokens"),
        ({"answers_max": 5}, "answers_max"),
        ({"health": {"path": "/ping"}}, "health"),
        ({"signals": {"interval_s": 0}}, "signals"),
    ],
)
def test_whatever_is_about_endpoints_is_refused_by_its_key(more: dict[str, Any], key: str) -> None:
    with pytest.raises(config.ConfigError, match=rf"^pools\[0\]\.{key}: not allowed with steering: hash"):
        load(POOL | more)


def test_the_number_of_endpoints_belongs_to_hash_and_is_needed_there() -> None:
    with pytest.raises(config.ConfigError, match=r"^pools\[0\]\.endpoint_count: missing; must be"):
        load({"steering": "hash"})
    with pytest.raises(config.ConfigError, match=r"^pools\[0\]\.endpoint_count: not allowed; only with"):
        load({"endpoints": OTHER["endpoints"], "endpoint_count": 1})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"pick_header": False}, "pick_header: false is not allowed"),
        ({"conformance_hooks": True}, "conformance_hooks: true is not allowed"),
        ({"store": {"url": "valkey://v"}}, "store: not allowed"),
    ],
)
def test_what_cannot_be_beside_it_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(config.ConfigError, match=f"^{said}"):
        load(POOL, **more)
    load(OTHER, **more)
    if "store" in more:  # for the other pool
        load(POOL, OTHER, **more)


# ---- the exchange ----


def chunk(data: bytes, *, end: bool = False) -> protocol.RequestBody:
    return protocol.RequestBody(data, end)


def headers(mode: BodyMode | None, *, end: bool = False, **fields: Any) -> protocol.RequestHeaders:
    return protocol.RequestHeaders(HEADERS | fields.pop("headers", {}), end, mode, **fields)


def opened(**settings: Any) -> tuple[exchange.Exchange, hasher.Hasher]:
    of = hasher.Hasher("big", 100, router.Settings())
    return exchange.Exchange(of, exchange.Settings(**settings)), of


def feed(one: exchange.Exchange, *events: protocol.Event, now: float = 0.0) -> list[protocol.Action]:
    return [action for event in events for action in one.receive(event, now, 0.5)]


def expected(body: bytes = BODY, **settings: Any) -> Steer:
    """What a sidecar that has just started says of `body` when it sees all of it."""
    one, _ = opened(**settings)
    feed(one, headers(BodyMode.BUFFERED), chunk(body, end=True))
    assert isinstance(one.result, choice.Hashed)
    assert one.result.hash is not None
    return Steer("", hash=one.result.text)


@pytest.mark.parametrize("mode", AT_BODY)
def test_buffered_the_body_reply_sets_the_hash_and_the_exchange_is_over(mode: BodyMode | None) -> None:
    one, _ = opened()
    assert feed(one, headers(mode)) == [Reply(Phase.REQUEST_HEADERS, Steer("", hash=""))]
    assert not one.is_over
    assert feed(one, chunk(BODY, end=True)) == [Reply(Phase.REQUEST_BODY, expected())]
    assert one.is_over
    assert one.endpoint is None


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED])
def test_without_a_body_a_clients_own_hash_is_removed(mode: BodyMode) -> None:
    for event in (headers(mode), headers(BodyMode.BUFFERED, end=True)):
        one, _ = opened()
        assert feed(one, event) == [Reply(Phase.REQUEST_HEADERS, Steer("", hash=""))]
        assert isinstance(one.result, choice.Hashed)
        assert one.result.hash is None


def test_in_duplex_the_header_reply_sets_the_hash_and_the_stream_goes_on_until_all_is_echoed() -> None:
    one, _ = opened()
    answer = feed(one, headers(DUPLEX), chunk(BODY[:100]), chunk(BODY[100:], end=True))
    assert answer == [
        Reply(Phase.REQUEST_HEADERS, expected()),
        Echo(Phase.REQUEST_BODY, BODY[:100], end_of_stream=False),
        Echo(Phase.REQUEST_BODY, BODY[100:], end_of_stream=True),
    ]
    assert not one.is_over


def test_in_duplex_nothing_is_waited_for_once_the_anchor_is_known() -> None:
    long = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 20_000}]}).encode()
    one, _ = opened(prompt=prompt.Settings(cache_keys=False))
    answer = feed(one, headers(DUPLEX), chunk(long[:50_000]))
    assert answer[0] == Reply(Phase.REQUEST_HEADERS, expected(long))
    assert one.deadline_s is None
    by_header, _ = opened(key_header="x-key")
    answer = feed(by_header, headers(DUPLEX, headers={"x-key": "a"}), chunk(long[:50_000]))
    assert answer[0] == Reply(Phase.REQUEST_HEADERS, expected_by_key("a"))


def expected_by_key(key: str) -> Steer:
    of = hasher.Hasher("big", 100, router.Settings())
    return Steer("", hash=of.choose(prompt.Unkeyed.BODY, 0.0, key).text)


def test_in_duplex_a_key_of_the_bodys_end_is_waited_for_a_moment_and_wins() -> None:
    fields = {"model": "m", "messages": [{"role": "user", "content": "word " * 20_000}]}
    long = json.dumps(fields | {"prompt_cache_key": "a"}).encode()
    one, _ = opened()
    assert feed(one, headers(DUPLEX), chunk(long[:50_000]), now=5.0) == []
    assert one.deadline_s is not None
    assert 5.0 < one.deadline_s <= 5.1
    assert feed(one, chunk(long[50_000:], end=True))[0] == Reply(Phase.REQUEST_HEADERS, expected_by_key("a"))


def test_a_gateway_that_allows_only_some_endpoints_is_refused_since_no_hash_keeps_to_them() -> None:
    one, _ = opened()
    answer = feed(one, headers(BodyMode.BUFFERED, subset=("10.0.0.1:80",)), chunk(BODY, end=True))
    assert answer[-1] == Refuse(503, "subset")


def test_the_stream_stays_open_where_answers_are_shown() -> None:
    for told in (BodyMode.STREAMED, DUPLEX):
        one, _ = opened()
        feed(one, headers(BodyMode.BUFFERED, response_body_mode=told), chunk(BODY, end=True))
        assert not one.is_over
        usage = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 1}}'
        feed(one, protocol.ResponseHeaders(200, False), protocol.ResponseBody(usage, end_of_stream=True))
        assert one.usage is not None
        assert one.usage.prompt_tokens == 7


def test_after_a_fault_a_clients_own_hash_is_removed_too() -> None:
    class Broken(hasher.Hasher):
        def choose(self, *_: object, **__: object) -> choice.Hashed:
            raise ArithmeticError

    one = exchange.Exchange(Broken("big", 100, router.Settings()), exchange.Settings())
    feed(one, headers(BodyMode.BUFFERED))
    event = chunk(BODY, end=True)
    with pytest.raises(ArithmeticError):
        one.receive(event, 0.0, 0.5)
    assert one.give_up(event, 0.0) == [Reply(Phase.REQUEST_BODY, Steer("", hash=""))]


def test_beside_a_pool_with_endpoints_each_gets_its_own_answer() -> None:
    member = pool.Endpoint(pool.EndpointId("e0"), "10.0.0.1:80")
    small = router.Router(pool.make("small", [member]), router.Settings())
    big = hasher.Hasher("big", 100, router.Settings())
    both = groups.Groups([groups.Group(big), groups.Group(small, groups.Match(models=("tiny",)))])
    assert (both.routers, both.hashers) == ((small,), (big,))
    one = exchange.Exchange(both, exchange.Settings())
    answer = feed(one, headers(BodyMode.BUFFERED), chunk(BODY.replace(b'"m"', b'"tiny"'), end=True))
    assert answer[-1] == Reply(Phase.REQUEST_BODY, Steer("10.0.0.1:80", hash=""))  # a client's own is removed
    other = exchange.Exchange(both, exchange.Settings())
    assert feed(other, headers(BodyMode.BUFFERED), chunk(BODY, end=True))[-1] == Reply(
        Phase.REQUEST_BODY, expected()
    )


# ---- on the wire ----


def test_a_hash_is_set_as_header_over_a_clients_own_and_as_metadata() -> None:
    message = wire.encode(Reply(Phase.REQUEST_BODY, Steer("", hash="00ff")))
    mutation = message.request_body.response.header_mutation
    assert [(one.header.key, one.header.raw_value) for one in mutation.set_headers] == [(HASH, b"00ff")]
    assert mutation.set_headers[0].append_action == 2  # OVERWRITE_IF_EXISTS_OR_ADD
    assert list(mutation.remove_headers) == ["x-gateway-destination-endpoint"]
    told = message.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    assert {name: value.string_value for name, value in told.items()} == {HASH: "00ff"}


def test_without_a_hash_the_header_is_removed_and_where_none_is_used_it_is_not_touched() -> None:
    removed = wire.encode(Reply(Phase.REQUEST_HEADERS, Steer("", hash=""))).request_headers.response
    assert HASH in removed.header_mutation.remove_headers
    alone = wire.encode(Reply(Phase.REQUEST_HEADERS, Steer(""))).request_headers.response
    assert list(alone.header_mutation.remove_headers) == ["x-gateway-destination-endpoint"]


# ---- what is told ----


def hashed(of: hasher.Hasher, body: bytes = BODY) -> choice.Hashed:
    one = exchange.Exchange(of, exchange.Settings())
    feed(one, headers(BodyMode.BUFFERED), chunk(body, end=True))
    assert isinstance(one.result, choice.Hashed)
    return one.result


def test_metrics_journal_and_log_take_a_hash_for_a_decision() -> None:
    of = hasher.Hasher("big", 100, router.Settings())
    counted = metrics.Metrics(lambda _: [], lambda: 0.0, 0.0)
    counted.add_hasher("big")
    latest = journal.Journal()
    teller = telling.Teller(counted, latest, log_share=1.0, chance=lambda: 0.0)
    for body in (BODY, b"{"):
        teller.tell(telling.Decided(hashed(of, body), None, 0.0, 0.0, 0.0))
    text = counted.exposition().decode()
    assert 'kvring_hashes_total{pool="big",source="anchor"} 1.0' in text
    assert 'kvring_hashes_total{pool="big",source="nothing"} 1.0' in text
    assert 'kvring_hashes_total{pool="big",source="header"} 0.0' in text
    assert 'kvring_keys_total{source="anchor"} 1.0' in text
    assert counted.totals()["hashes"] == 2
    assert counted.totals()["no_opinion"] == 0
    with_key, without = [journal.told(entry.made) for entry in reversed(latest.after(0, 5))]
    assert (with_key["reason"], with_key["hash"], with_key["anchor_block"]) == ("hash", expected().hash, 0)
    assert (without["reason"], without["hash"]) == ("no_hash", None)


def test_what_is_explained_is_what_comes_next() -> None:
    of = hasher.Hasher("big", 100, router.Settings())
    for number in range(30):
        hashed(of, BODY.replace(b"word", b"word%d" % (number % 5)))
    told = explanation.explain(
        groups.alone(of), exchange.Settings(), explanation.Asked(HEADERS, BODY), 0.0, show_text=True
    )
    assert isinstance(told, dict)
    made = hashed(of)
    assert (told["steering"], told["hash"], told["key"]) == ("hash", made.text, f"{made.key:016x}")
    assert len(told["chain"]) == made.chain_blocks
    assert (told["anchor"], told["pool"], told["api"]) == (made.anchor_block, "big", "chat")


def test_the_command_explains_it(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body = tmp_path / "kvring.yaml", tmp_path / "request.json"
    path.write_text(json.dumps({"pools": [POOL]}))
    body.write_bytes(BODY)
    monkeypatch.setattr(sys, "argv", ["kvring"])
    assert cli.main(["explain", str(body), "--config", str(path)]) == 0
    shown = capsys.readouterr().out
    assert f"{expected().hash} in x-kvring-hash" in shown
    assert "block 0" in shown
    assert cli.main(["explain", str(body), "--config", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hash"] == expected().hash
    assert cli.main(["check", "--config", str(path)]) == 0
    assert "about 100 endpoints" in capsys.readouterr().out
