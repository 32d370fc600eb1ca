"""Config: every setting's range is kept and named; only ConfigError comes out, whatever goes in."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from extproc import config
from extproc.config import allowed

MINIMAL: dict[str, Any] = {"pools": [{"endpoints": [{"name": "vllm-0", "address": "10.0.0.1:8000"}]}]}
SETTINGS = list(allowed.settings())
NUMBER = re.compile(r"(an integer|a number) from (\S+) to (\S+)")


def load(raw: Any, **environ: str) -> config.Config:
    return config.loads(json.dumps(raw), environ)


def refusal(raw: Any, **environ: str) -> str:
    """Why the configuration is refused: one line, not longer than a screen."""
    text = raw if isinstance(raw, str) else json.dumps(raw)
    with pytest.raises(config.ConfigError) as caught:
        config.loads(text, environ)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 1500
    return said


# What a block needs beside the setting that a test is about.
NEEDED: dict[str, dict[str, Any]] = {
    "pools[].file": {"path": "/etc/endpoints.yaml"},
    "pools[].dns": {"name": "vllm.default.svc", "port": 8000},
    "pools[].kubernetes_service": {"service": "vllm"},
    "pools[].inference_pool": {"name": "vllm"},
    "pools[].envoy_cluster": {"admin": "http://127.0.0.1:9901", "cluster": "vllm"},
    "pools[].health.envoy": {"admin": "http://127.0.0.1:9901", "cluster": "vllm"},
    "pools[].match": {"models": ["m"]},
    "kubernetes_api": {"server": "https://10.0.0.1:6443"},
    "store": {"url": "valkey://10.0.0.1:6379"},
    "traces": {"endpoint": "http://127.0.0.1:4318/v1/traces"},
}


def base(key: str) -> Any:
    """The least configuration that has the block in which `key` stands."""
    raw = copy.deepcopy(MINIMAL)
    for block, needed in NEEDED.items():
        if key.startswith(block + "."):
            *outer, last = block.replace("pools[].", "pools.").split(".")
            at = raw["pools"][0] if outer[:1] == ["pools"] else raw
            for name in outer[1:]:
                at = at.setdefault(name, {})
            at[last] = copy.deepcopy(needed)
            if last in config.SOURCES:
                del raw["pools"][0]["endpoints"]
    return raw


def without(key: str, raw: Any) -> Any:
    """`raw` with the setting `key` left out."""
    bare = copy.deepcopy(raw)
    at: Any = bare
    *blocks, last = key.split(".")
    for block in blocks:
        at = at[block.removesuffix("[]")]
        at = at[0] if block.endswith("[]") else at
    del at[last]
    return bare


def changed(key: str, value: Any) -> tuple[Any, str]:
    """The least configuration with the setting `key` at `value`, and the key as an error names it."""
    raw = base(key)
    at: Any = raw
    *blocks, last = key.split(".")
    for block in blocks:
        name = block.removesuffix("[]")
        at = at.setdefault(name, [{"start": "span:"}] if block.endswith("[]") else {})
        at = at[0] if block.endswith("[]") else at
    at[last] = value
    if last == "endpoint_count" or value == "hash":  # which knows no endpoints
        del at["endpoints"]
        at |= {"steering": "hash", "endpoint_count": at.get("endpoint_count", 8)}
    return raw, key.replace("[]", "[0]")


def numbers() -> list[tuple[allowed.Setting, float, float]]:
    found = []
    for row in SETTINGS:
        match = NUMBER.fullmatch(row.allowed)
        if match:
            number = int if match[1] == "an integer" else float
            found.append((row, number(match[2]), number(match[3])))
    return found


def of(kind: str) -> list[allowed.Setting]:
    return [row for row in SETTINGS if row.allowed.startswith(kind)]


def by_key(row: Any) -> str:
    return row.key if isinstance(row, allowed.Setting) else str(row)


# ---- every setting ----


def test_every_setting_is_of_a_kind_tested_here() -> None:
    kinds = ("an integer", "a number", "true or false", "one of", "text", "a list", "a block")
    assert len(SETTINGS) > 30
    for row in SETTINGS:
        assert row.allowed.startswith(kinds), row
        assert row.meaning, row
        assert row.default, row
    assert len(numbers()) == len(of("an integer")) + len(of("a number")) > 15


@pytest.mark.parametrize(("row", "least", "most"), numbers(), ids=by_key)
def test_a_number_out_of_range_is_refused_by_key_value_and_range(
    row: allowed.Setting, least: float, most: float
) -> None:
    step = 1 if isinstance(least, int) else 0.001
    for value in (least - step, most + step, -(10**30), 10**30, most * 10**6 + step):
        raw, key = changed(row.key, value)
        said = refusal(raw)
        assert said.startswith(f"{key}: ")
        assert f"{value} is not allowed" in said or len(str(value)) > 30
        assert said.endswith(f"must be {row.allowed}")


@pytest.mark.parametrize(("row", "least", "most"), numbers(), ids=by_key)
def test_a_number_of_another_kind_is_refused_by_key_value_and_range(
    row: allowed.Setting, least: float, most: float
) -> None:
    wrong: list[Any] = ["5", "", True, [], [least], {}, {"x": 1}]
    if row.default != "unset":
        wrong.append(None)  # which is how the others are unset
    if isinstance(least, int):
        wrong.append(least + 0.5)
    for value in wrong:
        raw, key = changed(row.key, value)
        said = refusal(raw)
        assert said.startswith(f"{key}: {value!r} is not allowed")
        assert said.endswith(f"must be {row.allowed}")
    for text in (".nan", ".inf", "-.inf"):
        raw, key = changed(row.key, "@")
        assert refusal(json.dumps(raw).replace('"@"', text)).startswith(f"{key}: ")


@pytest.mark.parametrize(("row", "least", "most"), numbers(), ids=by_key)
def test_the_ends_of_a_range_are_allowed(row: allowed.Setting, least: float, most: float) -> None:
    signals = {"signals": {"interval_s": 0.1, "age_max_s": 600}}
    partners = {  # what else must be set so that the combination is possible
        "message_bytes_max": {"prompt_bytes_max": 4096},
        "prompt_bytes_max": {"message_bytes_max": 1024**3},
    }
    for value in (least, most):
        raw, _ = changed(row.key, value)
        raw |= partners.get(row.key, {})
        if row.key.startswith("pools[].signals."):
            raw["pools"][0] |= {"signals": signals["signals"] | raw["pools"][0]["signals"]}
        if row.key.startswith("pools[].health.") and "envoy" not in row.key:
            raw["pools"][0]["health"] = {"interval_s": 6, "timeout_s": 1} | raw["pools"][0]["health"]
            if row.key.endswith("interval_s"):
                raw["pools"][0]["health"]["timeout_s"] = 0.5
        got: Any = load(raw)
        for block in row.key.split("."):
            got = getattr(got, block.removesuffix("[]"))
            got = got[0] if block.endswith("[]") else got
        assert got == value


@pytest.mark.parametrize(
    "row", [*of("true or false"), *of("one of"), *of("text"), *of("a block")], ids=by_key
)
@pytest.mark.parametrize("value", [5, 0.5, None, [], [1]], ids=repr)
def test_a_value_of_the_wrong_kind_is_refused_by_key_value_and_kind(row: allowed.Setting, value: Any) -> None:
    raw, key = changed(row.key, value)
    if value is None and row.default == "unset":
        assert load(raw) == load(without(row.key, raw))
        return
    said = refusal(raw)
    assert said.startswith(f"{key}: {value!r} is not allowed; must be ")
    assert said.endswith(row.allowed)


@pytest.mark.parametrize("row", of("one of"), ids=by_key)
def test_a_word_not_in_the_list_is_refused_and_the_words_are_named(row: allowed.Setting) -> None:
    words = row.allowed.removeprefix("one of ").split(", ")
    assert len(words) > 1
    for value in ("", "Cost", words[0].upper(), words[0] + " "):
        raw, key = changed(row.key, value)
        said = refusal(raw)
        assert said == f"{key}: {value!r} is not allowed; must be {row.allowed}"
    for word in words:
        raw, _ = changed(row.key, word)
        load(raw)


@pytest.mark.parametrize(
    "row", [row for row in SETTINGS if row.default not in ("required", "see below", "unset")]
)
def test_the_default_told_is_allowed_and_is_what_leaving_out_means(row: allowed.Setting) -> None:
    raw, _ = changed(row.key, yaml.safe_load(row.default))
    if row.key.startswith("pools[].match."):
        raw["pools"][0]["match"] = {"adapters": ["a"], "models": ["m"]} | raw["pools"][0]["match"]
        raw["pools"][0]["match"].setdefault("adapters", ["a"])
        raw["pools"][0]["match"]["routes"] = ["r"] if not row.key.endswith("routes") else []
    assert load(raw) == load(without(row.key, raw))


@pytest.mark.parametrize("where", ["", "pools[].", "pools[].endpoints[].", "pools[].health."])
def test_an_unknown_key_is_refused_where_it_stands(where: str) -> None:
    raw, key = changed(where + "zzz", 1)
    said = refusal(raw)
    assert said.startswith(f"{key}: unknown key; known keys: ")
    known = [row.key.removeprefix(where) for row in SETTINGS if row.key.startswith(where)]
    for name in known:
        assert "." in name or name in said


@pytest.mark.parametrize("row", SETTINGS, ids=by_key)
def test_a_key_misspelt_is_told_the_right_one(row: allowed.Setting) -> None:
    *_, last = row.key.split(".")
    wrong = last.replace("_", "-") if "_" in last else last + "s" if last != "pools" else "pool"
    raw, key = changed(row.key.removesuffix(last) + wrong, 1)
    if last == "pools":
        raw.pop("pools")
    said = refusal(raw)
    assert said == f"{key}: unknown key; did you mean {last}?"


@pytest.mark.parametrize("row", [row for row in SETTINGS if row.default == "required"], ids=by_key)
def test_a_required_key_left_out_is_named(row: allowed.Setting) -> None:
    raw, key = changed(row.key, None)
    raw = without(row.key, raw)
    said = refusal(raw)
    assert said == f"{key}: missing; must be {row.allowed}"


def test_settings_that_would_break_the_ring_or_the_bound_are_refused() -> None:
    for key, value in (("block_bytes", 1), ("ring_points", 0), ("bound_factor", 0.5), ("bound_factor", 1)):
        raw, _ = changed(f"pools[].{key}", value)
        assert re.search(rf"{key}: {value} is not allowed; must be .* from ", refusal(raw))


@pytest.mark.parametrize(
    "url",
    [
        "valkey://valkey", "redis://10.0.0.1:6379", "rediss://a.b.c:6380/", "valkeys://a:1,b:2,[fd00::1]:65535",
        "unix:///run/valkey.sock",
    ],
)  # fmt: skip
def test_a_store_is_named_by_its_url(url: str) -> None:
    assert config.loads(json.dumps(MINIMAL | {"store": {"url": url}}), {}).store.url == url


@pytest.mark.parametrize(
    "url",
    [
        "valkey",
        "http://a:1",
        "valkey://",
        "valkey://u:secret@a:1",
        "valkey://a:1/0",
        "valkey://a:99999",
        "valkey://a:65536",
        "valkey://a:66000",
        "unix://x",
    ],
)
def test_another_url_of_a_store_is_refused_without_being_quoted_beyond_its_scheme(url: str) -> None:
    said = refusal(MINIMAL | {"store": {"url": url}})
    assert said.startswith("store.url: ")
    assert "secret" not in said


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("ca_file", {"url": "valkey://a:1", "ca_file": "/ca.pem"}),
        ("cert_file", {"url": "unix:///run/valkey.sock", "cert_file": "/a.pem"}),
        ("cert_file", {"url": "valkeys://a:1", "key_file": "/a.key"}),
        ("sentinel", {"url": "unix:///run/valkey.sock", "sentinel": "primary"}),
        ("sentinel_user", {"url": "valkey://a:1", "sentinel_user": "kvring"}),
        ("sentinel_password_file", {"url": "valkey://a:1", "sentinel_password_file": "/password"}),
    ],
)
def test_what_a_store_would_have_no_use_for_is_refused(key: str, given: dict[str, str]) -> None:
    assert refusal(MINIMAL | {"store": given}).startswith(f"store.{key}: ")


# ---- combinations ----


def endpoints(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"pools": [{"endpoints": [{"name": name, "address": address} for name, address in pairs]}]}


def test_a_name_or_an_address_given_twice_is_refused() -> None:
    said = refusal(endpoints(("a", "10.0.0.1:1"), ("b", "10.0.0.2:1"), ("a", "10.0.0.3:1")))
    assert said == "pools[0].endpoints: the name 'a' is given 2 times; each must be unique"
    said = refusal(endpoints(("a", "[fd00::1]:1"), ("b", "[fd00::1]:1"), ("c", "[fd00::1]:1")))
    assert said == "pools[0].endpoints: the address '[fd00::1]:1' is given 3 times; each must be unique"


def test_one_address_with_several_ports_is_several_endpoints() -> None:
    raw = endpoints(*((f"rank-{n}", f"10.0.0.1:{8000 + n}") for n in range(8)))
    assert len(load(raw).pools[0].endpoints) == 8


def group(name: str, address: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "endpoints": [{"name": f"{name}-0", "address": address}]} | fields


def test_no_pool_is_refused_and_several_are_loaded() -> None:
    assert refusal({"pools": []}) == "pools: [] is not allowed; must be a list of 1 to 64"
    loaded = load(
        {
            "pools": [
                group("chat", "10.0.0.1:1", match={"models": ["llama-*"], "adapters": ["a"]}, policy="ring"),
                group("code", "10.0.0.2:1", match={"models": ["coder"]}, kv_tokens=5000),
                group("rest", "10.0.0.3:1"),
            ]
        }
    )
    assert [one.policy for one in loaded.pools] == ["ring", "cost", "cost"]
    assert config.match_of(loaded.pools[0]).models == ("llama-*",)
    assert config.match_of(loaded.pools[2]).is_default
    assert config.router_settings(loaded.pools[1]).kv_tokens == 5000


M, N = {"models": ["m"]}, {"models": ["n"]}


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (
            [group("a", "10.0.0.1:1"), group("a", "10.0.0.2:1", match=M)],
            "pools: the name 'a' is in a and in a; must belong to one pool",
        ),
        (
            [group("a", "10.0.0.1:1"), group("b", "10.0.0.2:1")],
            "pools: a and b have no match; at most one pool, the default, can be without",
        ),
        (
            [group("a", "10.0.0.1:1", match=M), group("b", "10.0.0.1:1", match=N)],
            "pools: the endpoint '10.0.0.1:1' is in a and in b; must belong to one pool",
        ),
        (
            [group("a", "10.0.0.1:1", match=M), group("b", "10.0.0.2:1", match={"adapters": ["m"]})],
            "pools: the model 'm' is in a and in b; must belong to one pool",
        ),
        (
            [group("a", "10.0.0.1:1", match={})],
            "pools[0].match: must name a model, adapter, cluster or route; leave it out for the default",
        ),
        (
            [group("a", "10.0.0.1:1", match={"models": ["a*b*"]})],
            "pools[0].match.models[0]: 'a*b*' is not allowed; must be a model's name with at most one *",
        ),
    ],
)
def test_pools_that_contradict_each_other_are_refused(groups: list[Any], said: str) -> None:
    assert refusal({"pools": groups}) == said


def test_one_model_may_be_in_pools_of_different_clusters() -> None:
    bound = [group(c, f"10.0.0.{n}:1", match=M | {"clusters": [c]}) for n, c in enumerate("ab")]
    assert len(load({"pools": bound}).pools) == 2
    bound[1]["match"] = M | {"clusters": ["a"]}
    assert refusal({"pools": bound}).startswith("pools: the model 'm' is in a and in b")


def test_a_pool_has_exactly_one_source() -> None:
    said = refusal({"pools": [{"name": "a"}]})
    assert said == f"pools[0]: must have exactly one of {', '.join(config.SOURCES)}"
    both = group("a", "10.0.0.1:1", file={"path": "x"})
    assert refusal({"pools": [both]}).endswith("; here are endpoints and file")
    for name in config.SOURCES[1:]:
        loaded = load({"pools": [{name: NEEDED[f"pools[].{name}"]}]}).pools[0]
        assert getattr(loaded, name) is not None
        assert config.static_members(loaded) == ()


def test_addresses_by_dns_need_a_port_and_srv_records_none() -> None:
    assert refusal({"pools": [{"dns": {"name": "x"}}]}).startswith("pools[0].dns.port: missing; must be ")
    load({"pools": [{"dns": {"name": "x", "type": "srv"}}]})


def test_signals_must_not_be_too_old_before_the_next_come() -> None:
    raw, _ = changed("pools[].signals.age_max_s", 1)
    raw["pools"][0]["signals"]["interval_s"] = 2
    assert refusal(raw) == (
        "pools[0].signals.age_max_s: 1.0 is not allowed; must be at least interval_s, here 2"
    )


def test_what_is_left_to_the_engines_has_a_value_to_begin_with() -> None:
    settings = config.router_settings(load(MINIMAL).pools[0])
    assert (settings.kv_tokens, settings.host_kv_tokens) == (400_000, 0)
    assert (settings.prefill_tokens_per_s, settings.bytes_per_token) == (8000, 4)


def test_an_endpoint_may_say_which_models_it_serves() -> None:
    raw, _ = changed("pools[].endpoints[].models", ["m", "adapter"])
    assert config.static_pool(load(raw).pools[0]).endpoints[0].models == {"m", "adapter"}


def test_more_endpoints_than_allowed_are_refused() -> None:
    many = [(f"e{n}", f"10.0.{n // 256}.{n % 256}:1") for n in range(1025)]
    load(endpoints(*many[:-1]))
    assert refusal(endpoints(*many)).endswith("must be a list of 1 to 1024")


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1:8000", "127.0.0.1:1", "255.255.255.255:65535", "[fd00::1]:8000", "[::1]:1", "[::]:80"),
        "[::ffff:10.0.0.1]:80",
    ],
)
def test_an_address_as_envoy_writes_it_is_taken_as_it_is(address: str) -> None:
    assert load(endpoints(("a", address))).pools[0].endpoints[0].address == address


@pytest.mark.parametrize(
    "address",
    [
        *("localhost:8000", "vllm-0.vllm:8000", "example.com:80", "10.0.0.1", "10.0.0.1:", ":8000", "", ":"),
        *("fd00::1:8000", "[fd00::1]", "[10.0.0.1]:80", "[]:80", "[fd00::1:80", "fd00::1]:80", "[[::1]]:80"),
        *("10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:-1", "10.0.0.1:+1", "10.0.0.1:1e3", "10.0.0.1:8_0"),
        *("10.0.0.256:80", "10.0.0:80", "010.0.0.1:80", "0x7f.0.0.1:80", "2130706433:80", "10.0.0.1/8:80"),
        *(" 10.0.0.1:80", "10.0.0.1:80 ", "10.0.0.1:80\n", "10.0.0.1: 80", "http://10.0.0.1:80"),
        *(
            "10.0.0.1:80,10.0.0.2:80",
            "10.0.0.1:\u0668\u0660",
            "\uff11\uff10.0.0.1:80",
            "unix:/tmp/x",
            "10.0.0.1:80\r\nx: y",
        ),
    ],
)
def test_what_is_no_ip_and_port_is_refused(address: str) -> None:
    said = refusal(endpoints(("a", address)))
    assert said.startswith(
        f"pools[0].endpoints[0].address: {address!r} is not allowed; must be an IP address"
    )


@pytest.mark.parametrize(
    ("address", "envoys"),
    [
        ("10.0.0.1:08000", "10.0.0.1:8000"),
        ("[FD00::A]:80", "[fd00::a]:80"),
        ("[fd00:0:0::1]:80", "[fd00::1]:80"),
        ("[fe80::1%eth0]:80", "[fe80::1]:80"),
    ],
)
def test_an_address_that_override_host_would_never_match_is_refused(address: str, envoys: str) -> None:
    said = refusal(endpoints(("a", address)))
    assert f'{address!r} is not allowed; must be as Envoy writes it, "{envoys}"' in said


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "a\n", "a" * 254, "ä", 'a"', "a{b}"])
@pytest.mark.parametrize("key", ["pools[].name", "pools[].endpoints[].name"])
def test_a_name_that_is_no_label_is_refused(key: str, name: str) -> None:
    raw, where = changed(key, name)
    assert refusal(raw).startswith(f"{where}: ")


@pytest.mark.parametrize("key", ["grpc_listen", "health_listen", "admin_listen"])
@pytest.mark.parametrize(
    "value",
    [
        "",
        "9002",
        ":9002",
        "0.0.0.0",
        "0.0.0.0:",
        "0.0.0.0:65536",
        "0.0.0.0:x",
        "0.0.0.0:1\n",
        "a b:1",
        "unix:",
    ],
)
def test_a_listener_without_host_and_port_is_refused(key: str, value: str) -> None:
    assert refusal(MINIMAL | {key: value}).startswith(
        f"{key}: {value!r} is not allowed; must be a host and a port"
    )


def test_only_grpc_listens_on_unix_sockets() -> None:
    assert load(MINIMAL | {"grpc_listen": "unix:/run/kvring.sock"}).grpc_listen == "unix:/run/kvring.sock"
    load(MINIMAL | {"health_listen": "unix:/run/health.sock", "admin_listen": "[::]:9090"})
    said = refusal(MINIMAL | {"admin_listen": "unix:/run/admin.sock"})
    assert said.startswith("admin_listen: ")
    assert said.endswith('must be a host and a port, "0.0.0.0:9002"')


def test_limits_that_contradict_each_other_are_refused() -> None:
    said = refusal(MINIMAL | {"message_bytes_max": 65_536, "prompt_bytes_max": 65_537})
    assert said == "message_bytes_max: 65536 is not allowed; must be at least prompt_bytes_max, here 65537"
    raw, _ = changed("pools[].health", {"interval_s": 0.1, "timeout_s": 2})
    said = refusal(raw)
    assert said.startswith(
        "pools[0].health.timeout_s: 2.0 is not allowed; must be at most ten times interval_s"
    )


# ---- the environment ----


def test_the_environment_wins_over_the_file() -> None:
    raw = MINIMAL | {"drain_timeout_s": 5, "grpc_listen": "127.0.0.1:1", "pick_header": True}
    got = load(
        raw,
        KVRING_DRAIN_TIMEOUT_S="7.5",
        KVRING_GRPC_LISTEN="[::]:2",
        KVRING_PICK_HEADER="false",
        KVRING_LOG_LEVEL="debug",
    )
    assert (got.drain_timeout_s, got.grpc_listen, got.pick_header, got.log_level) == (
        7.5,
        "[::]:2",
        False,
        "debug",
    )


def test_every_top_level_value_can_be_set_by_the_environment() -> None:
    for row in SETTINGS:
        if "." not in row.key and row.default not in ("required", "unset"):
            assert load(MINIMAL, **{f"KVRING_{row.key.upper()}": row.default}) == load(MINIMAL)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("drain_timeout_s", "abc"),
        ("drain_timeout_s", "-1"),
        ("drain_timeout_s", ""),
        ("streams_max", "0"),
        ("streams_max", "[1"),
        ("streams_max", "2001-99-99"),
        ("pick_header", "maybe"),
        ("log_level", "loud"),
        ("grpc_listen", "nowhere"),
        ("admin_listen", "unix:/x"),
        ("message_bytes_max", "65536"),
    ],
)
def test_a_bad_value_in_the_environment_names_its_variable(key: str, value: str) -> None:
    variable = f"KVRING_{key.upper()}"
    said = refusal(MINIMAL, **{variable: value})
    assert said.startswith(f"{key} (from {variable}): ")
    assert "not YAML" in said or "not allowed; must be " in said


def test_what_kubernetes_puts_into_the_environment_is_left_alone() -> None:
    environ = {
        "KVRING_SERVICE_HOST": "10.1.2.3",
        "KVRING_SERVICE_PORT": "9002",
        "KVRING_PORT": "tcp://10.1.2.3:9002",
        "KVRING_PORT_9002_TCP_ADDR": "10.1.2.3",
        "KVRING_POOLS": "[]",
        "KVRING_UNKNOWN": "1",
        "kvring_drain_timeout_s": "bad",
    }
    assert load(MINIMAL, **environ) == load(MINIMAL)


# ---- text that is no configuration ----


@pytest.mark.parametrize(
    "text", ["", " ", "# nothing\n", "---\n", "null", "[]", "[1, 2]", "5", "text", "--- 'x'"]
)
def test_a_file_without_a_block_is_refused(text: str) -> None:
    assert refusal(text) == "must be a block of keys, at least `pools`"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a: b: c",
            "{",
            "[" * 1000,
            "a: &x *y",
            "\t- a",
            "%YAML 9.9\n---\na: 1",
            "a: !!python/object:os.x {}",
        ),
        *("\x00", "\ud800", "a: 1\n---\nb: 2", "{a: " * 3000, '"\\ud800'),
        *("a: 2001-99-99", "a: 0x_", "a: " + "1" * 5000, "a: !!bool x", "a: !!timestamp x", "a: !!map x"),
        *("a: !!int x", "a: !!float x", "a: !!binary x", "!!set x", "a: !!omap x", "? !!int x\n: 1"),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_what_is_not_yaml_is_refused(text: str) -> None:
    assert refusal(text).startswith(("not YAML: ", "line "))


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("streams_max: 1\npools: []\nstreams_max: 2", 3, "streams_max"),
        ("pools:\n  - name: a\n    name: b", 3, "name"),
        ("pools: [{health: {path: /a, path: /b}}]", 1, "path"),
    ],
)
def test_a_key_given_twice_is_refused_at_every_level(text: str, line: int, key: str) -> None:
    assert refusal(text) == f"line {line}: the key {key} is given twice"


@pytest.mark.parametrize(
    "key",
    ["1", "true", "null", "1.5", "2001-01-01", "[a]", "{a: b}", "''", "'a b'", "a`b", "'x - at `$.pools`'"],
)
def test_a_key_that_no_setting_can_have_is_refused_by_line(key: str) -> None:
    assert re.fullmatch(
        r"line 2: the key .* is not allowed; must be a setting's name", refusal(f"\n{key}: 1")
    )


def test_merges_are_refused_since_a_small_file_could_blow_up() -> None:
    assert (
        refusal("a: &a {b: 1}\nc:\n  <<: *a")
        == "line 3: the key << (a merge) is not allowed; write the keys out"
    )


def test_an_error_quotes_no_more_than_a_screen_of_a_huge_value() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    lines = bomb.splitlines()
    inner = "".join(f"      - {line.partition(': ')[2]}\n" for line in lines)  # 10^12 strings by aliases
    for text in (
        f"grpc_listen:\n{inner}",
        f"pools:\n  - endpoints:\n{inner}",
        f"pools:\n  - {'x' * 100_000}",
    ):
        refusal(text)
    refusal(endpoints(("a", "h" * 100_000)))
    refusal(MINIMAL | {"grpc_listen": "x" * 100_000})
    refusal(MINIMAL | {"x" * 100_000: 1})


def test_a_file_is_named_in_every_error(tmp_path: Path) -> None:
    good, bad, binary = tmp_path / "good.yaml", tmp_path / "bad.yaml", tmp_path / "binary.yaml"
    good.write_text(json.dumps(MINIMAL))
    bad.write_text("pools: 5")
    binary.write_bytes(b"pools: \xff\xfe")
    huge, missing = tmp_path / "huge.yaml", tmp_path / "missing.yaml"
    with huge.open("wb") as file:
        file.truncate(4 * 1024 * 1024 + 1)
    assert config.load(good, {}) == load(MINIMAL)
    for path in (bad, binary, huge, missing, tmp_path):
        with pytest.raises(config.ConfigError, match=rf"^{re.escape(str(path))}: "):
            config.load(path, {})


def test_a_byte_order_mark_and_windows_line_ends_are_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "kvring.yaml"
    path.write_bytes("\ufeffpools:\r\n- endpoints:\r\n  - {name: a, address: '10.0.0.1:80'}\r\n".encode())
    assert config.load(path, {}).pools[0].endpoints[0].address == "10.0.0.1:80"


# ---- whatever goes in ----

words = st.sampled_from([part for row in SETTINGS for part in row.key.replace("[]", "").split(".")])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates() | words
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(words | st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=20,
)


def only_config_error(text: str, environ: dict[str, str]) -> None:
    try:
        config.loads(text, environ)
    except config.ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017


@given(st.text(max_size=200))
@example("a: 2001-99-99")
@example("? [a]\n: b")
def test_any_text_gives_a_configuration_or_a_config_error(text: str) -> None:
    only_config_error(text, {})


@given(st.text(alphabet="!&*<>{}[]:-?|'\"%@` \n\tabx0159._~#,=", max_size=40))
def test_any_text_of_yaml_marks_gives_a_config_error(text: str) -> None:
    only_config_error(text, {})
    only_config_error(f"pools:\n  - endpoints: {text}", {})


@given(st.binary(max_size=200))
def test_any_bytes_give_a_config_error(data: bytes) -> None:
    only_config_error(data.decode("latin-1"), {})
    only_config_error(data.decode("utf-8", "surrogateescape"), {})


@given(trees)
def test_any_tree_gives_a_config_error_or_a_configuration(tree: Any) -> None:
    only_config_error(yaml.safe_dump(tree), {})
    only_config_error(yaml.safe_dump({"pools": tree}), {})
    only_config_error(yaml.safe_dump({"pools": [{"endpoints": [tree], "health": tree}]}), {})


@given(st.dictionaries(words.map(lambda word: f"KVRING_{word.upper()}"), st.text(max_size=30), max_size=4))
def test_any_environment_gives_a_config_error_or_a_configuration(environ: dict[str, str]) -> None:
    only_config_error(json.dumps(MINIMAL), environ)
