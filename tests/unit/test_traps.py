"""Each trap: a file with it is warned of, the same file mended is not; and the shipped ones have none."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extproc import bootstrap, cli, traps
from extproc.protocol import BodyMode

HEADER = bootstrap.DESTINATION
ENDPOINTS = [bootstrap.Endpoint(f"replica-{number}", f"10.0.0.{number + 1}:8000") for number in range(3)]
ROOT = Path(__file__).parents[2]


def shipped(**steering):
    """A bootstrap as kvring prints it."""
    sidecars = [bootstrap.Sidecar("127.0.0.1:9002", 9003)]
    door = bootstrap.Listener("0.0.0.0:80", ENDPOINTS, steering=bootstrap.Steering(sidecars, **steering))
    return bootstrap.build([door])


def by_header():
    """The same, steering by the header instead of metadata: every guard that this needs is there."""
    config = shipped()
    del asking(config)["mutation_rules"]
    override(config)["override_host_sources"] = [{"header": HEADER}]
    return config


def named(document):
    return [found.trap for found in traps.find(document)]


def manager(config):
    return config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def asking(config):
    return manager(config)["http_filters"][0]["typed_config"]


def route(config):
    return manager(config)["route_config"]["virtual_hosts"][0]["routes"][0]


def cluster(config, name="llm"):
    return next(one for one in config["static_resources"]["clusters"] if one["name"] == name)


def override(config):
    return cluster(config)["load_balancing_policy"]["policies"][0]["typed_extension_config"]["typed_config"]


def http(config, name):
    options = cluster(config, name)["typed_extension_protocol_options"]
    return options["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]


def mode(config):
    return asking(config)["processing_mode"]


def health(config):
    return cluster(config, "kvring")["health_checks"][0]


def threshold(config, name):
    return cluster(config, name)["circuit_breakers"]["thresholds"][0]


def drop_filter(config):
    manager(config)["http_filters"].pop(0)


def second_duplex(config):
    mode(config)["request_body_mode"] = "FULL_DUPLEX_STREAMED"
    mode(config)["response_trailer_mode"] = "SEND"
    again = copy.deepcopy(manager(config)["http_filters"][0])
    manager(config)["http_filters"].insert(0, again | {"name": "another kvring"})


def hashed(**more):
    """A bootstrap as kvring prints it where Envoy's own hashing chooses."""
    return shipped(hash=bootstrap.Hash(**more))


def hashed_by_dns():
    config = hashed()
    cluster(config)["type"] = "STRICT_DNS"
    return config


def hashed_anew():
    """The same with the policy as an extension, as newer configurations have it."""
    config = hashed()
    del cluster(config)["lb_policy"], cluster(config)["ring_hash_lb_config"]
    del cluster(config)["common_lb_config"]
    typed = {
        "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash",
        "minimum_ring_size": 65536,
        "consistent_hashing_lb_config": {"hash_balance_factor": {"value": 150}},
    }
    policy = {"typed_extension_config": {"name": "ring_hash", "typed_config": typed}}
    cluster(config)["load_balancing_policy"] = {"policies": [policy]}
    return config


def hash_config(config):
    return cluster(config)["common_lb_config"]["consistent_hashing_lb_config"]


# trap, the file without it, what puts the trap in
TRAPPED = [
    ("no-filter", shipped, drop_filter),
    ("observing", shipped, lambda c: asking(c).update(observability_mode=True)),
    ("headers-skipped", shipped, lambda c: mode(c).update(request_header_mode="SKIP")),
    ("metadata-dropped", shipped, lambda c: asking(c).pop("metadata_options")),
    ("metadata-dropped", shipped, lambda c: asking(c).update(
        metadata_options={"receiving_namespaces": {"untyped": ["other"]}})),
    ("header-dropped", by_header, lambda c: asking(c).update(mutation_rules={"disallow_all": True})),
    ("header-dropped", by_header, lambda c: asking(c).update(
        mutation_rules={"disallow_expression": {"regex": "x-gateway-.*"}})),
    ("fail-closed", shipped, lambda c: asking(c).pop("failure_mode_allow")),
    ("fail-closed", shipped, lambda c: asking(c).update(failure_mode_allow=False)),
    ("message-timeout", shipped, lambda c: asking(c).pop("message_timeout")),
    ("message-timeout", shipped, lambda c: asking(c).update(message_timeout="0.200s")),
    ("message-timeout-long", shipped, lambda c: asking(c).update(message_timeout="30s")),
    ("streamed", shipped, lambda c: mode(c).update(
        request_body_mode="STREAMED", response_trailer_mode="SEND")),
    ("duplex-open", shipped, lambda c: mode(c).update(
        request_body_mode="FULL_DUPLEX_STREAMED", response_trailer_mode="SEND")),
    ("two-duplex", lambda: shipped(body_mode=BodyMode.FULL_DUPLEX_STREAMED), second_duplex),
    ("body-limit", shipped, lambda c: (
        mode(c).update(request_body_mode="BUFFERED"), route(c).pop("request_body_buffer_limit"))),
    ("body-start", shipped, lambda c: route(c).update(request_body_buffer_limit=32768)),
    ("body-start", shipped, lambda c: (
        route(c).pop("request_body_buffer_limit"),
        c["static_resources"]["listeners"][0].update(per_connection_buffer_limit_bytes=32768))),
    ("stream-short", shipped, lambda c: mode(c).update(request_body_mode="NONE")),
    ("stream-short", lambda: shipped(body_mode=BodyMode.FULL_DUPLEX_STREAMED),
     lambda c: mode(c).pop("response_trailer_mode")),
    ("answer-buffered", shipped, lambda c: mode(c).update(response_body_mode="BUFFERED")),
    ("content-length", shipped, lambda c: asking(c).pop("allow_content_length_header")),
    ("no-cluster", shipped, lambda c: cluster(c, "kvring").update(name="kvrings")),
    ("not-http2", shipped, lambda c: http(c, "kvring").update(
        explicit_http_config={"http_protocol_options": {}})),
    ("breaker-kvring", shipped, lambda c: cluster(c, "kvring").pop("circuit_breakers")),
    ("breaker-kvring", shipped, lambda c: threshold(c, "kvring").update(max_requests=1024)),
    ("breaker-kvring", shipped, lambda c: threshold(c, "kvring").pop("max_pending_requests")),
    ("unchecked", shipped, lambda c: cluster(c, "kvring").pop("health_checks")),
    ("unchecked", shipped, lambda c: (
        health(c).pop("grpc_health_check"), health(c).update(tcp_health_check={}))),
    ("slow-recovery", shipped, lambda c: health(c).pop("no_traffic_interval")),
    ("panic", shipped, lambda c: cluster(c, "kvring").pop("common_lb_config")),
    ("pings", shipped, lambda c: http(c, "kvring")["explicit_http_config"].update(
        http2_protocol_options={"connection_keepalive": {"interval": "10s", "timeout": "1s"}})),
    ("not-steered", shipped, lambda c: (
        cluster(c).pop("load_balancing_policy"), cluster(c).update(lb_policy="LEAST_REQUEST"))),
    ("spoof", by_header, lambda c: manager(c).pop("early_header_mutation_extensions")),
    ("original-dst", by_header, lambda c: (
        cluster(c).pop("load_balancing_policy"),
        cluster(c).update(type="ORIGINAL_DST", original_dst_lb_config={
            "use_http_header": True, "http_header_name": HEADER}))),
    ("locality-weights", shipped, lambda c: cluster(c).update(
        common_lb_config={"locality_weighted_lb_config": {}})),
    ("breaker-endpoints", shipped, lambda c: threshold(c, "llm").pop("max_connections")),
    ("route-timeout", shipped, lambda c: route(c)["route"].pop("timeout")),
    ("route-timeout", shipped, lambda c: route(c)["route"].update(timeout="60s")),
    ("idle-timeout", shipped, lambda c: manager(c).pop("stream_idle_timeout")),
    ("retry-same", shipped, lambda c: route(c)["route"]["retry_policy"].pop("retry_host_predicate")),
    ("keep-alive", shipped, lambda c: http(c, "llm").pop("common_http_protocol_options")),
    ("hash-unread", hashed, lambda c: route(c)["route"].pop("hash_policy")),
    ("hash-unread", hashed, lambda c: route(c)["route"].update(
        hash_policy=[{"connection_properties": {"source_ip": True}}])),
    ("hash-ignored", hashed, lambda c: cluster(c).update(lb_policy="LEAST_REQUEST")),
    ("hash-ignored", hashed, lambda c: cluster(c).pop("lb_policy")),
    ("hash-removed", hashed, lambda c: route(c).update(request_headers_to_remove=["X-Kvring-Hash"])),
    ("hash-removed", hashed, lambda c: manager(c)["route_config"]["virtual_hosts"][0].update(
        request_headers_to_remove=["x-kvring-hash"])),
    ("hash-dropped", hashed, lambda c: asking(c)["mutation_rules"].pop("allow_expression")),
    ("hash-mixed", hashed, lambda c: route(c)["route"]["hash_policy"].insert(
        0, {"connection_properties": {"source_ip": True}})),
    ("hash-mixed", hashed, lambda c: (
        route(c)["route"]["hash_policy"][0].pop("terminal"),
        route(c)["route"]["hash_policy"].append({"connection_properties": {"source_ip": True}}))),
    ("hash-one-name", hashed_by_dns, lambda c: hash_config(c).update(use_hostname_for_hashing=True)),
    ("hash-unbound", hashed, lambda c: hash_config(c).pop("hash_balance_factor")),
    ("hash-unbound", hashed, lambda c: hash_config(c).update(hash_balance_factor=0)),
    ("hash-unbound", hashed_anew, lambda c: override(c)["consistent_hashing_lb_config"].clear()),
    ("hash-unchecked", hashed, lambda c: (
        cluster(c).pop("health_checks"), cluster(c).pop("outlier_detection"))),
    ("hash-ring", hashed, lambda c: cluster(c).pop("ring_hash_lb_config")),
    ("hash-ring", hashed_anew, lambda c: override(c).pop("minimum_ring_size")),
    ("hash-spoof", hashed, lambda c: manager(c).pop("early_header_mutation_extensions")),
]  # fmt: skip


@pytest.mark.parametrize(("trap", "mended", "spoil"), TRAPPED, ids=lambda one: one if str(one) == one else "")
def test_a_file_with_the_trap_is_warned_of_and_the_same_file_without_it_is_not(trap, mended, spoil):
    config = mended()
    assert trap not in named(config)
    spoil(config)
    assert trap in named(config)


def test_every_trap_in_the_catalogue_is_tried():
    assert {trap for trap, _, _ in TRAPPED} == set(traps.TRAPS)


MODES = [mode for mode in BodyMode if mode not in {BodyMode.GRPC, BodyMode.STREAMED}]
ANSWERS = [BodyMode.NONE, BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED]


@pytest.mark.parametrize(("body", "answer"), list(itertools.product(MODES, ANSWERS)))
def test_what_kvring_prints_holds_no_trap(body, answer):
    found = traps.find(shipped(body_mode=body, response_body_mode=answer))
    assert [one.trap for one in found if one.severity != "note"] == []
    assert by_header() != shipped()
    assert named(by_header()) == []


@pytest.mark.parametrize("body", MODES)
@pytest.mark.parametrize("config", [hashed, hashed_by_dns, hashed_anew, lambda: hashed(algorithm="MAGLEV")])
def test_what_kvring_prints_for_hashing_holds_no_trap(body, config):
    found = config()
    ours = shipped(hash=bootstrap.Hash(), body_mode=body)
    asking(found)["processing_mode"] = asking(ours)["processing_mode"]
    assert [one.trap for one in traps.find(found) if one.severity != "note"] == []
    assert not [trap for trap in named(found) if trap.startswith("hash-")]


def test_a_hash_policy_may_stand_in_the_balancing_itself():
    config = hashed_anew()
    del route(config)["route"]["hash_policy"]
    assert "hash-unread" in named(config)
    override(config)["consistent_hashing_lb_config"]["hash_policy"] = [
        {"header": {"header_name": "X-Kvring-Hash"}}
    ]
    assert named(config) == []


def test_the_pieces_for_an_envoy_that_exists_hold_none_and_can_be_spoilt():
    sidecars = [bootstrap.Sidecar("127.0.0.1:9002", 9003)]
    door = bootstrap.Listener("0.0.0.0:80", ENDPOINTS, steering=bootstrap.Steering(sidecars))
    pieces = bootstrap.fragments(door)
    # the connection manager's own settings are not among the pieces
    assert named(pieces) == ["idle-timeout"]
    del pieces["http_filters"][0]["typed_config"]["metadata_options"]
    del pieces["clusters"][1]["circuit_breakers"]
    assert named(pieces)[:2] == ["metadata-dropped", "breaker-kvring"]


def dumped(config):
    """`config` as Envoy's /config_dump shows what an xDS server sent."""
    listener = copy.deepcopy(config["static_resources"]["listeners"][0])
    table = listener["filter_chains"][0]["filters"][0]["typed_config"].pop("route_config")
    listener["filter_chains"][0]["filters"][0]["typed_config"]["rds"] = {"route_config_name": "llm"}
    clusters = config["static_resources"]["clusters"]
    return {"configs": [
        {"@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump", "bootstrap": {}},
        {"@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump",
         "dynamic_active_clusters": [{"cluster": one} for one in clusters]},
        {"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump",
         "dynamic_listeners": [{"name": "llm", "active_state": {"listener": listener}}]},
        {"@type": "type.googleapis.com/envoy.admin.v3.RoutesConfigDump",
         "dynamic_route_configs": [{"route_config": table}]},
    ]}  # fmt: skip


def test_a_config_dump_is_read_like_the_bootstrap_it_came_from():
    for _, mended, spoil in TRAPPED:
        config = mended()
        spoil(config)
        assert named(dumped(config)) == named(config)


def camel(value):
    if isinstance(value, dict):
        return {_camel(key) if key[0] != "@" and "." not in key else key: camel(inner)
                for key, inner in value.items()}  # fmt: skip
    return [camel(one) for one in value] if isinstance(value, list) else value


def _camel(key):
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def test_keys_may_be_written_in_either_way_that_envoy_reads():
    for _, mended, spoil in TRAPPED:
        config = mended()
        spoil(config)
        assert named(camel(config)) == named(config)


def test_a_filter_that_only_some_routes_turn_on_is_looked_at_with_their_overrides():
    config = shipped()
    manager(config)["http_filters"][0]["disabled"] = True
    name = manager(config)["http_filters"][0]["name"]
    assert named(config) == ["no-filter"]
    base = "type.googleapis.com/envoy"
    on = {"@type": f"{base}.config.route.v3.FilterConfig", "config": {}}
    route(config)["typed_per_filter_config"] = {name: on}
    assert named(config) == []
    changed = {"@type": f"{base}.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
               "overrides": {"failure_mode_allow": False}}  # fmt: skip
    route(config)["typed_per_filter_config"] = {name: changed}
    assert named(config) == ["fail-closed"]
    route(config)["typed_per_filter_config"] = {name: on | {"config": changed}}
    assert named(config) == ["fail-closed"]
    route(config)["typed_per_filter_config"] = {name: {"@type": on["@type"], "disabled": True}}
    assert named(config) == ["no-filter"]


@pytest.mark.parametrize(
    "scrub",
    [
        lambda c: manager(c)["http_filters"].insert(0, {
            "name": "scrub", "typed_config": {"mutations": {"request_mutations": [{"remove": HEADER}]}}}),
        lambda c: manager(c)["route_config"].update(internal_only_headers=[HEADER]),
    ],
    ids=["a filter before", "internal only"],
)  # fmt: skip
def test_each_way_to_keep_clients_from_steering_counts(scrub):
    config = by_header()
    del manager(config)["early_header_mutation_extensions"]
    assert "spoof" in named(config)
    scrub(config)
    assert "spoof" not in named(config)


def test_a_header_is_scrubbed_only_before_the_filter_and_internal_only_needs_an_edge():
    config = by_header()
    del manager(config)["early_header_mutation_extensions"]
    late = {"name": "late", "typed_config": {"mutations": {"request_mutations": [{"remove": HEADER}]}}}
    manager(config)["http_filters"].insert(1, late)
    assert "spoof" in named(config)
    manager(config)["route_config"]["internal_only_headers"] = [HEADER]
    manager(config)["use_remote_address"] = False
    assert "spoof" in named(config)


def test_envoys_own_hashing_is_steering_too():
    config = shipped()
    del cluster(config)["load_balancing_policy"]
    cluster(config)["lb_policy"] = "RING_HASH"
    assert "not-steered" not in named(config)
    assert "hash-unread" in named(config)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["static_resources", "listeners", "clusters", "configs", "http_filters", "routes",
                         "filter_chains", "filters", "typed_config", "@type", "name", "virtual_hosts"]),
        inner, max_size=4),
    max_leaves=20))  # fmt: skip
def test_anything_can_be_asked_about(document):
    traps.find(document)


JUNK = [None, 7, "text", [[]], {"": None}]


def places(value):
    """Every block and list in `value` with each of its keys."""
    found = [(value, key) for key in (value if isinstance(value, dict) else range(len(value)))]
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            found += places(inner)
    return found


@pytest.mark.parametrize("make", [by_header, lambda: dumped(shipped())], ids=["bootstrap", "dump"])
def test_junk_in_any_place_is_no_crash(make):
    config = make()
    for block, key in places(config):
        kept = block[key]
        for junk in JUNK:
            block[key] = junk
            traps.find(config)
        block[key] = kept


# ---- the command ----


@pytest.fixture
def file(tmp_path):
    return tmp_path / "envoy.yaml"


def test_the_command_is_silent_about_a_good_file(file, capsys):
    file.write_text(bootstrap.to_yaml(shipped()))
    assert cli.main(["check", "--envoy", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: no known traps\n"


def test_the_command_says_where_what_happens_and_what_mends_it(file, capsys):
    config = shipped()
    del asking(config)["metadata_options"], cluster(config, "kvring")["circuit_breakers"]
    file.write_text(yaml.safe_dump(config))
    assert cli.main(["check", "--envoy", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{file}: 1 error, 1 warning"
    assert lines[1] == (
        "  error  metadata-dropped  (listener llm, filter envoy.filters.http.ext_proc: "
        "cluster llm reads envoy.lb)"
    )
    assert lines[4] == "  warning  breaker-kvring  (cluster kvring: 1024)"
    assert lines[6] == "    mend: circuit_breakers: max_requests and max_pending_requests: 100000"


def test_notes_alone_are_no_failure(file, capsys):
    file.write_text(bootstrap.to_yaml(shipped(body_mode=BodyMode.FULL_DUPLEX_STREAMED)))
    assert cli.main(["check", "--envoy", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"{file}: 1 note\n  note  duplex-open")


def test_the_command_prints_json_for_machines(file, capsys):
    config = shipped()
    asking(config)["message_timeout"] = "0.2s"
    file.write_text(json.dumps(config))
    assert cli.main(["check", "--json", "--envoy", str(file)]) == 1
    told = json.loads(capsys.readouterr().out)
    (found,) = told["envoy"]["findings"]
    assert (found["trap"], found["severity"], found["seen"]) == ("message-timeout", "warning", "0.2 s")
    assert set(found) == {"trap", "where", "seen", "severity", "happens", "mend"}


@pytest.mark.parametrize("text", ["", "[1]", "{", "a: b: c", "just text"])
def test_a_file_that_is_no_configuration_is_refused_in_one_line(text, file, capsys):
    file.write_text(text)
    assert cli.main(["check", "--envoy", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"kvring check: {file}: ")
    assert err.count("\n") == 1


def test_both_files_can_be_checked_at_once_and_none_is_an_error(file, tmp_path, capsys):
    file.write_text(bootstrap.to_yaml(shipped()))
    own = tmp_path / "kvring.yaml"
    own.write_text('pools: [{endpoints: [{name: a, address: "10.0.0.1:80"}]}]')
    assert cli.main(["check", "--config", str(own), "--envoy", str(file)]) == 0
    assert cli.main(["check", "--config", str(own), "--envoy", str(tmp_path / "none")]) == 2
    none = f"kvring check: {tmp_path / 'none'}: can't be read: No such file or directory\n"
    assert capsys.readouterr().err == none
    assert cli.main(["check"]) == 2
    assert "nothing to check" in capsys.readouterr().err
