import itertools

import pytest
import yaml

from extproc import bootstrap, cli
from extproc.bootstrap import address, reasons
from extproc.exchange import BodyMode

ENDPOINTS = [bootstrap.Endpoint(f"replica-{number}", f"10.0.0.{number + 1}:8000") for number in range(3)]
CLIENTS = bootstrap.Tls("/ca.crt", "/own.crt", "/own.key")
SIDECAR = bootstrap.Sidecar("127.0.0.1:9002", health_port=9003)


def steered(**options):
    steering = {key: options.pop(key) for key in list(options) if key in bootstrap.Steering.__slots__}
    options.setdefault("endpoints", ENDPOINTS)
    options["tls"] = options.pop("listen_tls", None)
    sidecars = steering.pop("sidecars", [SIDECAR])
    return bootstrap.Listener("127.0.0.1:0", steering=bootstrap.Steering(sidecars, **steering), **options)


def find(value, key):
    """Every value stored under `key` anywhere inside."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from find(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from find(inner, key)


def only(value, key):
    found = list(find(value, key))
    assert len(found) == 1, (key, found)
    return found[0]


VARIANTS = [
    bootstrap.build([steered(body_mode=mode, response_body_mode=response)])
    for mode, response in itertools.product(
        (BodyMode.BUFFERED_PARTIAL, BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE),
        (BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED),
    )
] + [
    bootstrap.build([steered(fail_open=False)]),
    bootstrap.build([bootstrap.Listener("[::1]:0", ENDPOINTS)]),
    bootstrap.build([steered(access_log_path="/dev/null", expose_endpoint=True)]),
    bootstrap.build([steered(sidecars=[bootstrap.Sidecar("unix:/run/kvring.sock")])]),
    bootstrap.build([steered(endpoints=[bootstrap.Endpoint("a", "vllm.models.svc:8000")])]),
    bootstrap.build([steered(endpoints=[], endpoints_path="/etc/envoy/endpoints.yaml")]),
    bootstrap.build([steered(hash=bootstrap.Hash())]),
    bootstrap.build([steered(hash=bootstrap.Hash("MAGLEV"))]),
    bootstrap.build(
        [steered(tls=bootstrap.Tls("/ca.crt", "/tls.crt", "/tls.key", "kvring"), listen_tls=CLIENTS)]
    ),
]


def test_equal_values_give_equal_text_and_the_comments_change_nothing():
    for variant in VARIANTS:
        text = bootstrap.to_yaml(variant, heading="one\n\ntwo")
        assert yaml.safe_load(text) == variant
        assert text == bootstrap.to_yaml(variant, heading="one\n\ntwo")
        assert text.startswith("# one\n#\n# two\n")


def test_every_reason_is_printed_in_some_bootstrap():
    printed = "".join(bootstrap.to_yaml(variant) for variant in VARIANTS)
    squeezed = " ".join(printed.replace("#", " ").split())
    unused = [key for key, why in reasons.REASONS.items() if " ".join(why.split()) not in squeezed]
    assert unused == []


def test_a_reason_stands_directly_above_its_setting():
    lines = bootstrap.to_yaml(bootstrap.build([steered()])).splitlines()
    at = next(number for number, line in enumerate(lines) if line.strip() == "timeout: 0s")
    assert lines[at - 1].strip() == f"# {reasons.REASONS['route.timeout']}"


def test_the_longest_key_that_fits_gives_the_reason():
    inner = reasons.reason(("x", "processing_mode", "request_body_mode"))
    assert inner == reasons.REASONS["processing_mode.request_body_mode"]
    assert reasons.reason(("x", "processing_mode")) == reasons.REASONS["processing_mode"]
    assert reasons.reason(("request_body_mode",)) == ""


def test_by_default_kvring_can_steer_by_metadata_only_and_envoy_balances_without_it():
    config = bootstrap.build([steered()])
    assert only(config, "failure_mode_allow") is True
    assert only(config, "request_body_mode") == "BUFFERED_PARTIAL"
    assert only(config, "message_timeout") == "0.25s"
    assert only(config, "mutation_rules") == {"disallow_all": True}
    assert only(config, "receiving_namespaces") == {"untyped": ["envoy.lb"]}
    assert only(config, "request_body_buffer_limit") == 8 * 1024 * 1024
    assert only(config, "override_host_sources") == [
        {"metadata": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]}}
    ]
    assert "access_log" not in bootstrap.to_yaml(config)


def test_the_clients_destination_header_is_removed_at_every_listener():
    config = bootstrap.build([steered(), bootstrap.Listener("127.0.0.1:0", ENDPOINTS, name="plain")])
    removed = [
        each["typed_config"]["mutations"]
        for found in find(config, "early_header_mutation_extensions")
        for each in found
    ]
    assert removed == [[{"remove": "x-gateway-destination-endpoint"}]] * 2


def test_breakers_are_far_above_1024_on_every_cluster():
    config = bootstrap.build([steered()])
    for cluster in config["static_resources"]["clusters"]:
        threshold = cluster["circuit_breakers"]["thresholds"][0]
        assert (
            min(threshold[key] for key in ("max_connections", "max_pending_requests", "max_requests"))
            >= 50_000
        )


def test_failing_closed_answers_503():
    config = bootstrap.build([steered(fail_open=False)])
    assert only(config, "failure_mode_allow") is False
    assert only(config, "status_on_error") == {"code": "ServiceUnavailable"}


@pytest.mark.parametrize("algorithm", ["RING_HASH", "MAGLEV"])
def test_steered_by_hash_envoy_chooses_by_the_one_header_that_kvring_may_set(algorithm):
    config = bootstrap.build([steered(hash=bootstrap.Hash(algorithm, 125))])
    endpoints = config["static_resources"]["clusters"][0]
    assert endpoints["lb_policy"] == algorithm
    assert only(endpoints, "hash_balance_factor") == 125
    assert only(config, "hash_policy") == [{"header": {"header_name": "x-kvring-hash"}, "terminal": True}]
    assert only(config, "mutation_rules") == {
        "disallow_all": True, "allow_expression": {"regex": "x-kvring-hash"}
    }  # fmt: skip
    removed = [one["remove"] for one in only(config, "mutations")]
    assert removed == ["x-gateway-destination-endpoint", "x-kvring-hash"]
    assert list(find(endpoints, "hash_key")) == ["replica-0", "replica-1", "replica-2"]
    assert only(endpoints, "http_health_check") == {"path": "/health"}  # kvring checks nobody
    assert "override_host" not in str(config)


def test_behind_a_dns_name_endpoints_have_places_of_their_own():
    config = bootstrap.build(
        [steered(hash=bootstrap.Hash(), endpoints=[bootstrap.Endpoint("a", "vllm.models.svc:8000")])]
    )
    assert not list(find(config, "hash_key"))
    assert not list(find(config, "use_hostname_for_hashing"))


@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE])
def test_steered_by_hash_the_stream_need_not_live_as_long_as_the_answer(mode):
    config = bootstrap.build([steered(hash=bootstrap.Hash(), body_mode=mode)])
    assert "response_trailer_mode" not in only(config, "processing_mode")


def test_a_hash_that_cannot_be_is_refused():
    for wrong in (100, 1001, 0):
        with pytest.raises(ValueError, match=f"hash balance {wrong} %"):
            bootstrap.Hash(balance_percent=wrong)
    with pytest.raises(ValueError, match="expected RING_HASH or MAGLEV"):
        bootstrap.Hash("RANDOM")


def test_the_command_takes_hash_options_only_with_hash(capsys):
    base = ["envoy-config", "--replica=a=10.0.0.1:8000"]
    assert cli.main([*base, "--hash-balance-percent=125"]) == 2
    assert "need --steering hash" in capsys.readouterr().err
    assert cli.main([*base, "--steering=hash", "--hash-algorithm=maglev", "--hash-balance-percent=125"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed == bootstrap.build(
        [bootstrap.Listener("0.0.0.0:10000", [bootstrap.Endpoint("a", "10.0.0.1:8000")],
                            steering=bootstrap.Steering([SIDECAR], hash=bootstrap.Hash("MAGLEV", 125)))]
    )  # fmt: skip


def test_duplex_asks_for_trailers_too():
    config = bootstrap.build(
        [steered(body_mode=BodyMode.FULL_DUPLEX_STREAMED, response_body_mode=BodyMode.FULL_DUPLEX_STREAMED)]
    )
    mode = only(config, "processing_mode")
    assert (mode["request_trailer_mode"], mode["response_trailer_mode"]) == ("SEND", "SEND")


def test_the_stream_lives_as_long_as_the_answer_in_every_mode():
    held = {
        mode.name: only(bootstrap.build([steered(body_mode=mode)]), "processing_mode").get(
            "response_trailer_mode"
        )
        for mode in BodyMode
        if mode is not BodyMode.GRPC
    }
    assert held == {
        "NONE": "SEND",
        "STREAMED": "SEND",
        "BUFFERED": None,
        "BUFFERED_PARTIAL": None,
        "FULL_DUPLEX_STREAMED": "SEND",
    }  # Envoy holds it in the buffered modes: tests/envoy/test_gateway.py


def test_a_listener_without_kvring_is_plain_round_robin():
    config = bootstrap.build([bootstrap.Listener("127.0.0.1:0", ENDPOINTS, name="plain")])
    assert only(config, "lb_policy") == "ROUND_ROBIN"
    assert "ext_proc" not in str(config)
    assert "override_host" not in str(config)


def test_two_doors_in_one_envoy_keep_their_endpoints_apart():
    others = [bootstrap.Endpoint("other-0", "10.1.0.1:8000")]
    config = bootstrap.build([steered(), bootstrap.Listener("127.0.0.1:0", others, name="plain")])
    clusters = {each["name"]: each for each in config["static_resources"]["clusters"]}
    assert sorted(clusters) == ["kvring", "llm", "plain"]
    assert list(find(clusters["plain"], "hostname")) == ["other-0"]
    assert list(find(clusters["llm"], "hostname")) == ["replica-0", "replica-1", "replica-2"]


def test_names_resolve_by_dns_and_addresses_do_not():
    by_name = bootstrap.build([steered(endpoints=[bootstrap.Endpoint("a", "vllm.models.svc:8000")])])
    by_address = bootstrap.build([steered(endpoints=[bootstrap.Endpoint("a", "[::1]:8000")])])
    kinds = [
        {each["name"]: each["type"] for each in config["static_resources"]["clusters"]}
        for config in (by_name, by_address)
    ]
    assert kinds == [{"llm": "STRICT_DNS", "kvring": "STATIC"}, {"llm": "STATIC", "kvring": "STATIC"}]


def test_kvring_behind_a_unix_socket_is_health_checked_on_loopback():
    config = bootstrap.build([steered(sidecars=[bootstrap.Sidecar("unix:/run/kvring.sock", 9003)])])
    assert only(config, "pipe") == {"path": "/run/kvring.sock"}
    assert only(config, "health_check_config") == {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 9003}}
    }


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("[::1]:8000", "[::1]:8000"),
        ("vllm-0.vllm.models.svc.cluster.local:80", "vllm-0.vllm.models.svc.cluster.local:80"),
        ("unix:/run/kvring.sock", "unix:/run/kvring.sock"),
    ],
)
def test_an_address_is_written_as_it_was_read(text, written):
    assert str(address.parse(text)) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1",
        ":80",
        "10.0.0.1:",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        "10.0.0.1:80a",
        "10.0.0.1:²",
        "::1:80",
        "[::1]",
        "[10.0.0.1]:80",
        "a b:80",
        "http://a:80",
        "-a:80",
        "unix:relative",
        "unix:/" + "x" * 107,
    ],
)
def test_a_bad_address_is_refused_and_quoted(text):
    with pytest.raises(ValueError, match=r"expected|bracket|neither|socket") as refused:
        address.parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: bootstrap.build([]), "at least one listener"),
        (lambda: bootstrap.build([steered(), steered()]), "'llm' is used twice"),
        (
            lambda: bootstrap.build(
                [steered(), steered(name="b", sidecars=[bootstrap.Sidecar("127.0.0.1:1")])]
            ),
            "'kvring' is used for different",
        ),
        (lambda: steered(endpoints=[]), "at least one endpoint"),
        (lambda: steered(endpoints=[ENDPOINTS[0], ENDPOINTS[0]]), "'replica-0' is given twice"),
        (
            lambda: steered(endpoints=[ENDPOINTS[0], bootstrap.Endpoint("b", ENDPOINTS[0].address)]),
            "'10.0.0.1:8000' is given twice",
        ),
        (lambda: steered(endpoints_path="/x"), "at least one endpoint, or a file"),
        (lambda: steered(sidecars=[]), "at least one kvring"),
        (lambda: bootstrap.Tls(cert_path="/x"), "needs its key"),
        (lambda: bootstrap.Tls(key_path="/x"), "its certificate"),
        (lambda: steered(listen_tls=bootstrap.Tls("/ca.crt")), "clients needs a certificate"),
        (lambda: steered(message_timeout_s=0), r"0 s: expected 0\.001\.\.3600"),
        (lambda: steered(body_bytes_max=1), r"1: expected 65536\.\."),
        (lambda: steered(body_mode=BodyMode.GRPC), "GRPC"),
        (lambda: steered(name="kvring"), "different names"),
        (lambda: bootstrap.Listener("localhost:80", ENDPOINTS), "not names"),
        (lambda: bootstrap.Endpoint("", "10.0.0.1:80"), "needs a name"),
        (lambda: bootstrap.Endpoint("a", "unix:/x"), "not a socket path"),
        (lambda: bootstrap.Sidecar("127.0.0.1:1", health_port=70000), r"expected 0\.\.65535"),
        (lambda: bootstrap.fragments(bootstrap.Listener("127.0.0.1:0", ENDPOINTS)), "nothing to add"),
    ],
)
def test_an_impossible_value_is_refused_with_its_range(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_the_command_prints_what_its_options_say(capsys):
    assert (
        cli.main(
            [
                "envoy-config",
                "--replica",
                "a=10.0.0.1:8000",
                "--replica",
                "10.0.0.2:8000",
                "--kvring",
                "10.0.0.9:9002",
                "--listen",
                "0.0.0.0:80",
                "--body-mode",
                "full_duplex_streamed",
                "--fail-closed",
            ]
        )
        == 0
    )
    config = yaml.safe_load(capsys.readouterr().out)
    assert list(find(config, "hostname")) == ["a", "replica-1"]
    assert only(config, "failure_mode_allow") is False
    assert only(config, "request_body_mode") == "FULL_DUPLEX_STREAMED"
    assert [each["port_value"] for each in find(config, "socket_address")] == [9901, 80, 8000, 8000, 9002]


def test_endpoints_may_come_from_a_file_while_envoy_runs(capsys):
    assert cli.main(["envoy-config", "--endpoints-file", "/etc/envoy/endpoints.yaml"]) == 0
    llm, kvring = yaml.safe_load(capsys.readouterr().out)["static_resources"]["clusters"]
    assert (llm["type"], kvring["type"]) == ("EDS", "STATIC")
    assert "load_assignment" not in llm
    assert only(llm, "path_config_source") == {
        "path": "/etc/envoy/endpoints.yaml",
        "watched_directory": {"path": "/etc/envoy"},
    }


def test_tls_to_kvring_is_checked_by_what_is_given_and_its_health_port_stays_plaintext(capsys):
    words = ["envoy-config", "--replica", "10.0.0.1:8000"]
    assert cli.main([*words, "--kvring-tls"]) == 0
    kvring = yaml.safe_load(capsys.readouterr().out)["static_resources"]["clusters"][1]
    assert list(find(kvring["transport_socket"], "validation_context")) == []
    assert only(kvring["health_checks"], "transport_socket_match_criteria") == {"plaintext": True}
    given = ["--kvring-ca", "/ca.crt", "--kvring-name", "kvring", "--kvring-cert", "/c", "--kvring-key", "/k"]
    assert cli.main([*words, *given, "--listen-cert", "/lc", "--listen-key", "/lk"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    kvring = config["static_resources"]["clusters"][1]
    assert only(kvring, "trusted_ca") == {"filename": "/ca.crt"}
    assert (only(kvring, "sni"), only(kvring, "exact")) == ("kvring", "kvring")
    assert only(kvring, "tls_certificates")[0]["private_key"] == {"filename": "/k"}
    (door,) = config["static_resources"]["listeners"]
    assert only(door, "tls_certificates")[0]["certificate_chain"] == {"filename": "/lc"}


def test_the_command_prints_fragments_for_an_envoy_that_exists(capsys):
    assert cli.main(["envoy-config", "--replica", "a=10.0.0.1:8000", "--fragments"]) == 0
    assert list(yaml.safe_load(capsys.readouterr().out)) == [
        "early_header_mutation_extensions",
        "http_filters",
        "routes",
        "clusters",
    ]


def test_the_command_refuses_a_bad_address_in_one_line(capsys):
    assert cli.main(["envoy-config", "--replica", "a=10.0.0.1"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kvring envoy-config: '10.0.0.1': expected HOST:PORT")
    assert err.count("\n") == 1
