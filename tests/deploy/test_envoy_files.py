"""Every file in envoy/ is what it says: printed by its command, taken by Envoy, free of known traps."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from extproc import bootstrap, cli, gateway, traps
from tests.deploy import manifests, pool_shapes, shapes

ENVOY = Path(__file__).parents[2] / "envoy"
COMMANDS = {
    words[-1]: words[1:-2]
    for words in map(shlex.split, (ENVOY / "README.md").read_text().splitlines())
    if words[:2] == ["kvring", "envoy-config"]
}
BARE = sorted(COMMANDS)
KUBERNETES = sorted(
    path.relative_to(ENVOY).as_posix() for path in ENVOY.glob("*/*.yaml") if path.parent.name != "compose"
)
FLEET = shapes.Fleet(["127.0.0.1:8000", "127.0.0.1:8001"], ["127.0.0.1:9002"])
pytestmark = pytest.mark.envoy


def load(*names):
    return [one for name in names for one in manifests.documents((ENVOY / name).read_text())]


def pool(name):
    return load("inferencepool/pool.yaml", f"inferencepool/{name}")


SHAPES = {
    "istio/gateway.yaml": lambda: shapes.istio(load("istio/gateway.yaml"), FLEET),
    "istio/sidecar.yaml": lambda: shapes.istio(load("istio/sidecar.yaml"), FLEET),
    "envoy-gateway/by-header.yaml": lambda: shapes.envoy_gateway(load("envoy-gateway/by-header.yaml"), FLEET),
    "envoy-gateway/by-metadata.yaml": lambda: shapes.envoy_gateway(
        load("envoy-gateway/by-header.yaml", "envoy-gateway/by-metadata.yaml"), FLEET
    ),
    "inferencepool/istio.yaml": lambda: pool_shapes.istio(pool("istio.yaml"), FLEET),
    "inferencepool/ai-gateway.yaml": lambda: pool_shapes.ai_gateway(pool("ai-gateway.yaml"), FLEET),
    "inferencepool/agentgateway.yaml": lambda: pool_shapes.agentgateway(pool("agentgateway.yaml"), FLEET),
}


def accepts(config_path):
    """(whether a real Envoy would start with it, what it says)."""
    done = subprocess.run(
        [gateway.find_envoy(), "--mode", "validate", "-l", "error", "-c", str(config_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Puts the files that a bootstrap names, which must exist, in a folder of the test."""
    folder = tmp_path_factory.mktemp("etc")
    certificate(folder / "tls.crt", folder / "tls.key")
    (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())
    (folder / "endpoints.yaml").write_bytes((ENVOY / "endpoints.yaml").read_bytes())
    return lambda text: re.sub(r"/etc/envoy(/[a-z]+)?(?=[/\n])", str(folder), text)


def certificate(cert_path, key_path):
    """A self-signed certificate, by the openssl on PATH."""
    done = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key_path, "-out", cert_path, "-days", "2", "-subj", "/CN=kvring",
         "-addext", "subjectAltName=DNS:kvring"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# ---- bare Envoy ----


def test_the_commands_in_the_readme_are_all_the_files_there_are():
    assert sorted(path.name for path in ENVOY.glob("*.yaml")) == sorted([*BARE, "endpoints.yaml"])
    table = (ENVOY / "README.md").read_text()
    assert all(f"]({name})" in table for name in BARE)


@pytest.mark.parametrize("name", BARE)
def test_a_bare_file_is_what_its_command_prints(name, capsys):
    assert cli.main(COMMANDS[name]) == 0
    assert (ENVOY / name).read_text() == capsys.readouterr().out


@pytest.mark.parametrize("name", BARE)
def test_envoy_takes_a_bare_file(name, elsewhere, tmp_path):
    path = tmp_path / "envoy.yaml"
    path.write_text(elsewhere((ENVOY / name).read_text()))
    accepted, said = accepts(path)
    assert accepted, said


@pytest.mark.parametrize("name", BARE)
def test_a_bare_file_holds_no_trap_but_the_one_it_is_named_after(name):
    expected = {"fail-closed.yaml": ["fail-closed"], "duplex.yaml": ["duplex-open"]}
    found = traps.find(yaml.safe_load((ENVOY / name).read_text()))
    assert [one.trap for one in found] == expected.get(name, [])


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("static.yaml", "override_host_sources:", "override_host_source:"),
        ("tls.yaml", "validation_context:", "validation_contexts:"),
        ("tls.yaml", "/tls.key", "/tls.kex"),
        ("eds.yaml", "path_config_source:", "path_config_sauce:"),
        ("duplex.yaml", "FULL_DUPLEX_STREAMED", "FULL_DUPLEX"),
        ("unix-socket.yaml", "path: /run", "paths: /run"),
    ],
)
def test_envoy_refuses_a_mistake_in_a_bare_file(name, good, bad, elsewhere, tmp_path):
    path = tmp_path / "envoy.yaml"
    text = elsewhere((ENVOY / name).read_text())
    assert good in text
    path.write_text(text.replace(good, bad))
    assert not accepts(path)[0]


# ---- Kubernetes ----


@pytest.mark.parametrize("name", KUBERNETES)
def test_an_api_server_would_take_a_kubernetes_file(name):
    for document in load(name):
        found = manifests.check(document)
        if document["apiVersion"].startswith("networking.gke.io/"):
            assert found.faults == [f"no CRD for networking.gke.io/v1 {document['kind']}"]
            continue
        assert found.faults == [], document["kind"]
        assert found.unevaluated == []


MISTAKES = [
    ("istio/gateway.yaml", "EnvoyFilter", lambda d: d["spec"].update(configPatch=[])),
    ("istio/gateway.yaml", "EnvoyFilter", lambda d: d["spec"]["configPatches"][0].update(applyTo="FILTERS")),
    ("istio/gateway.yaml", "VirtualService", lambda d: d["spec"]["http"][0].update(timeout="0s")),
    ("istio/gateway.yaml", "DestinationRule", lambda d: d["spec"]["trafficPolicy"].update(tls={"mode": 1})),
    ("envoy-gateway/by-header.yaml", "HTTPRoute", lambda d: d["spec"]["rules"][0].update(backendRef=[])),
    ("envoy-gateway/by-header.yaml", "EnvoyExtensionPolicy", lambda d: d["spec"]["extProc"][0][
        "processingMode"]["request"].update(body="FullDuplexStreamed")),
    ("envoy-gateway/by-header.yaml", "BackendTrafficPolicy", lambda d: d["spec"]["loadBalancer"].pop("type")),
    ("envoy-gateway/by-header.yaml", "ClientTrafficPolicy", lambda d: d["spec"]["connection"].update(
        bufferLimit="a lot")),
    ("envoy-gateway/by-metadata.yaml", "EnvoyPatchPolicy", lambda d: d["spec"].update(type="Merge")),
    ("inferencepool/pool.yaml", "InferencePool", lambda d: d["spec"]["endpointPickerRef"].pop("port")),
    ("inferencepool/pool.yaml", "InferencePool", lambda d: d["spec"].update(
        targetPorts=[{"number": 8000}, {"number": 8000}])),
    ("inferencepool/istio.yaml", "Gateway", lambda d: d["spec"]["listeners"][0].update(port=0)),
    ("inferencepool/ai-gateway.yaml", "GatewayClass", lambda d: d["spec"].pop("controllerName")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "spoil"), MISTAKES, ids=lambda one: one if str(one) == one else "")
def test_an_api_server_would_refuse_a_mistake_in_a_kubernetes_file(name, kind, spoil):
    document = next(one for one in load(name) if one["kind"] == kind)
    assert manifests.check(document).faults == []
    spoil(document)
    assert manifests.check(document).faults


def test_a_mistake_is_tried_in_every_kind_that_can_be_checked():
    kinds = {one["kind"] for name in KUBERNETES for one in load(name)}
    assert {kind for _, kind, _ in MISTAKES} == kinds - {"HealthCheckPolicy", "GCPBackendPolicy"}


def test_a_key_that_stands_twice_is_refused():
    with pytest.raises(yaml.YAMLError, match="twice"):
        manifests.documents("a: 1\na: 2")


# ---- the same, as Envoy gets it ----


@pytest.mark.parametrize("name", SHAPES)
def test_envoy_takes_what_a_control_plane_would_make_of_a_file(name, tmp_path):
    path = tmp_path / "envoy.yaml"
    path.write_text(bootstrap.to_yaml(SHAPES[name]()))
    accepted, said = accepts(path)
    assert accepted, said


TRAPS = {  # the gateway's own, which no file can mend; their pages name them
    "inferencepool/ai-gateway.yaml": {"fail-closed", "original-dst", "breaker-kvring", "breaker-endpoints"},
    "inferencepool/agentgateway.yaml": {"spoof"},
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_control_plane_would_make_of_a_file_holds_no_error(name):
    # "unchecked": none can be told to probe kvring at another port than the one it serves on
    found = {one.trap for one in traps.find(SHAPES[name]()) if one.severity != "note"}
    assert found == {"unchecked"} | TRAPS.get(name, set())


@pytest.mark.parametrize(
    ("name", "kind", "spoil"),
    [
        ("istio/gateway.yaml", "DestinationRule", lambda d: d["spec"]["trafficPolicy"]["loadBalancer"].pop(
            "localityLbSetting", None)),
        ("istio/sidecar.yaml", "EnvoyFilter", lambda d: d["spec"]["configPatches"][0]["patch"]["value"][
            "typed_config"].update(failure_mode_allows=True)),
        ("istio/gateway.yaml", "EnvoyFilter", lambda d: d["spec"]["configPatches"][1]["patch"][
            "value"].update(request_body_buffer_limits=1)),
    ],
    ids=["locality", "filter", "route"],
)  # fmt: skip
def test_envoy_refuses_a_mistake_in_what_the_patches_hold(name, kind, spoil, tmp_path):
    documents = load(name)
    spoil(next(one for one in documents if one["kind"] == kind))
    path = tmp_path / "envoy.yaml"
    path.write_text(bootstrap.to_yaml(shapes.istio(documents, FLEET)))
    assert not accepts(path)[0]
