"""The chart: every variant renders with Helm 3 and 4, an API server takes it, and it does what it is for."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import yaml

from extproc import bootstrap, cli, config, traps
from tests.deploy import manifests, shapes, tools
from tests.deploy.test_envoy_files import accepts, load

CHART = Path(__file__).parents[2] / "helm/kvring"
CI = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))
OLDEST = "1.30.0"
"""What Chart.yaml asks for."""


@functools.cache
def _template(variant: str, major: int) -> str:
    values = CHART / f"ci/{variant}-values.yaml"
    done = tools.helm(major, "template", "r", CHART, "--namespace", "llm", "-f", values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(variant: str, major: int = 4) -> list[dict]:
    return manifests.documents(_template(variant, major))


def refused(*settings: str, variant: str = "none") -> str:
    """What Helm says to these values on top of a variant's; "" where it takes them."""
    words = [word for setting in settings for word in ("--set-json", setting)]
    done = tools.helm(4, "template", "r", CHART, "-f", CHART / f"ci/{variant}-values.yaml", *words)
    return done.stderr if done.returncode else ""


def only(documents, kind, name=None):
    return shapes.only(documents, kind, name)


def pod(documents):
    return only(documents, "Deployment")["spec"]["template"]["spec"]


def container(documents, name="kvring"):
    return next(one for one in pod(documents)["containers"] if one["name"] == name)


# ---- every variant ----


@pytest.mark.parametrize("major", [3, 4])
@pytest.mark.parametrize("variant", CI)
def test_a_variant_is_linted_strictly(variant, major):
    done = tools.helm(major, "lint", "--strict", CHART, "-f", CHART / f"ci/{variant}-values.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("variant", CI)
def test_both_helms_render_the_same(variant):
    assert rendered(variant, 3) == rendered(variant, 4)


@pytest.mark.parametrize("variant", CI)
def test_an_api_server_would_take_a_variant(variant):
    for document in rendered(variant):
        found = manifests.check(document)
        assert found.faults == [], (document["kind"], document["metadata"]["name"])
        assert found.unevaluated == []
        if manifests.is_built_in(document):
            assert manifests.check(document, OLDEST).faults == []


@pytest.mark.parametrize("variant", CI)
def test_names_are_unique_and_every_object_is_labelled_as_the_releases(variant):
    documents = rendered(variant)
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in documents]
    assert len(set(names)) == len(names)
    for one in documents:
        if not one["metadata"]["name"].endswith("-extra"):
            assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm", one["kind"]
            assert one["metadata"]["namespace"]


@pytest.mark.parametrize("variant", CI)
def test_the_configuration_arrives_word_for_word_and_kvring_takes_it(variant):
    values = yaml.safe_load((CHART / f"ci/{variant}-values.yaml").read_text())
    text = next(
        one["data"]["kvring.yaml"] for one in rendered(variant)
        if one["kind"] == "ConfigMap" and "kvring.yaml" in one.get("data", {})
    )  # fmt: skip
    assert yaml.safe_load(text) == values["config"]
    assert config.loads(text, {}).pools


@pytest.mark.parametrize("variant", CI)
def test_pods_are_hardened(variant):
    documents = rendered(variant)
    pods = [pod(documents), *(one["spec"] for one in documents if one["kind"] == "Pod")]
    for spec in pods:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 65532
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in spec["containers"] + spec.get("initContainers", []):
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in one["resources"]["limits"]
            assert "cpu" not in one["resources"]["limits"]


@pytest.mark.parametrize("variant", CI)
def test_selectors_find_kvrings_pods_and_no_other(variant):
    documents = rendered(variant)
    labels = only(documents, "Deployment")["spec"]["template"]["metadata"]["labels"]
    others = [one["metadata"]["labels"] for one in documents if one["kind"] == "Pod"]
    selectors = [one["spec"]["selector"] for one in documents if one["kind"] == "Service"]
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector"),
                      ("Deployment", "selector"), ("PodMonitor", "selector")):  # fmt: skip
        selectors += [one["spec"][key]["matchLabels"] for one in documents if one["kind"] == kind]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not any(selector.items() <= other.items() for other in others)


@pytest.mark.parametrize("variant", CI)
def test_every_port_that_is_named_exists(variant):
    documents = rendered(variant)
    named = {port["name"] for one in pod(documents)["containers"] for port in one.get("ports", [])}
    for one in documents:
        if one["kind"] == "Service":
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= named
        if one["kind"] == "NetworkPolicy":
            assert {port["port"] for rule in one["spec"]["ingress"] for port in rule["ports"]} <= named


@pytest.mark.parametrize("variant", CI)
def test_what_containers_are_told_to_run_is_a_command_with_these_options(variant, capsys):
    documents = rendered(variant)
    pods = [pod(documents), *(one["spec"] for one in documents if one["kind"] == "Pod")]
    for spec in pods:
        for one in spec["containers"] + spec.get("initContainers", []):
            if one["name"] != "envoy":
                with pytest.raises(SystemExit) as ended:
                    cli.main([*one["args"], "--help"])
                assert ended.value.code == 0
                known = capsys.readouterr().out
                for word in one["args"][1:]:
                    assert not word.startswith("--") or word.partition("=")[0] in known


# ---- rights ----


def test_a_configuration_that_reads_no_api_gets_no_role_and_no_token():
    documents = rendered("none")
    assert not [one for one in documents if one["kind"] in {"Role", "RoleBinding"}]
    assert pod(documents)["automountServiceAccountToken"] is False


def test_a_role_allows_reading_what_the_sources_read_where_they_read_it():
    (role,) = [one for one in rendered("istio") if one["kind"] == "Role"]
    assert role["metadata"]["namespace"] == "llm"
    assert role["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    ]
    documents = rendered("full")
    (role,) = [one for one in documents if one["kind"] == "Role"]
    assert role["metadata"]["namespace"] == "code"
    assert role["rules"][0]["resourceNames"] == ["coder", "more"]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch"}
    (binding,) = [one for one in documents if one["kind"] == "RoleBinding"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "kvring-picker", "namespace": "llm"}]
    assert pod(documents)["serviceAccountName"] == "kvring-picker"
    assert pod(documents)["automountServiceAccountToken"] is True
    assert not [one for one in documents if one["kind"].startswith("Cluster")]


# ---- reaching kvring ----


@pytest.mark.parametrize("variant", ["istio", "istio-sidecar", "inferencepool", "none"])
def test_in_a_mesh_the_gateway_speaks_http2_to_ext_proc_and_no_sidecar_parses_it_again(variant):
    """D05."""
    documents = rendered(variant)
    for service in (one for one in documents if one["kind"] == "Service"):
        (port,) = [one for one in service["spec"]["ports"] if one["targetPort"] == "ext-proc"]
        assert port["appProtocol"] == "kubernetes.io/h2c"
        assert port["name"].startswith("grpc-")
    assert not [
        one["name"] for one in container(documents)["ports"] if one["name"].startswith(("grpc", "http"))
    ]
    injected = only(documents, "Deployment")["spec"]["template"]["metadata"]["labels"][
        "sidecar.istio.io/inject"
    ]
    rules = [
        one for one in documents if one["kind"] == "DestinationRule" and one["metadata"]["name"] == "kvring"
    ]
    for rule in rules:  # plaintext to a pod without a sidecar, mTLS to one with
        mode = rule["spec"]["trafficPolicy"]["tls"]["mode"]
        assert mode == {"false": "DISABLE", "true": "ISTIO_MUTUAL"}[injected]


def test_a_headless_service_shows_an_envoy_every_pod():
    """D06; that streams are then spread is tests/envoy/test_shipped.py."""
    service = only(rendered("istio"), "Service", "kvring-headless")
    assert service["spec"]["clusterIP"] == "None"
    assert not [one for one in rendered("service-monitor") if one["metadata"]["name"].endswith("headless")]


def test_a_tls_port_is_opened_mounted_let_in_and_dialled():
    documents = rendered("istio-tls")
    ports = {one["name"]: one["containerPort"] for one in container(documents)["ports"]}
    assert ports == {"ext-proc": 9002, "ext-proc-tls": 9005, "health": 9003, "admin": 9090}
    for name in ("kvring", "kvring-headless"):
        found = {one["name"]: one for one in only(documents, "Service", name)["spec"]["ports"]}
        assert found["grpc-ext-proc-tls"]["port"] == 9443
        assert found["grpc-ext-proc-tls"]["targetPort"] == "ext-proc-tls"
        assert "appProtocol" not in found["grpc-ext-proc-tls"], "h2c is plaintext"
    assert {"port": "ext-proc-tls"} in only(documents, "NetworkPolicy")["spec"]["ingress"][0]["ports"]
    (mount,) = [one for one in container(documents)["volumeMounts"] if one["name"] == "tls"]
    assert (mount["mountPath"], mount["readOnly"], mount.get("subPath")) == ("/etc/kvring-tls", True, None)
    volumes = {one["name"]: one for one in pod(documents)["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == "kvring-tls"
    assert pod(documents)["securityContext"]["fsGroup"] == 65532, "or mode 0440 would keep it from kvring"

    policy = only(documents, "DestinationRule", "kvring")["spec"]["trafficPolicy"]
    assert policy["tls"] == {"mode": "DISABLE"}, "the plaintext ports stay so"
    (there,) = policy["portLevelSettings"]
    assert there["port"] == {"number": 9443}
    name = "kvring.llm.svc.cluster.local"
    assert there["tls"] == {
        "mode": "MUTUAL", "credentialName": "kvring-ca", "sni": name, "subjectAltNames": [name],
    }  # fmt: skip
    assert there["connectionPool"] == policy["connectionPool"]
    (asking,) = [
        one["patch"]["value"]["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"]
        for one in only(documents, "EnvoyFilter")["spec"]["configPatches"]
        if one["applyTo"] == "HTTP_FILTER"
    ]
    assert asking == f"outbound|9443||{name}"


def test_without_a_tls_port_nothing_speaks_of_tls():
    for variant in ("istio", "inferencepool", "envoy-gateway"):
        documents = rendered(variant)
        assert "ext-proc-tls" not in str(documents)
        assert "portLevelSettings" not in str(documents)
        assert "BackendTLSPolicy" not in {one["kind"] for one in documents}


def test_gateways_that_dial_tls_are_told_the_tls_port():
    pool = only(rendered("inferencepool-tls"), "InferencePool")["spec"]
    assert pool["endpointPickerRef"]["port"] == {"number": 9004}
    documents = rendered("envoy-gateway-tls")
    (asked,) = only(documents, "EnvoyExtensionPolicy")["spec"]["extProc"][0]["backendRefs"]
    policy = only(documents, "BackendTLSPolicy")["spec"]
    (target,) = policy["targetRefs"]
    assert (target["name"], target["sectionName"]) == (asked["name"], "grpc-ext-proc-tls")
    service = only(documents, "Service", asked["name"])
    named = {one["name"]: one["port"] for one in service["spec"]["ports"]}
    assert asked["port"] == named["grpc-ext-proc-tls"] == 9004
    assert policy["validation"]["hostname"] == "kvring.llm"


def test_ports_of_the_configuration_are_those_of_the_pod():
    ports = {one["name"]: one["containerPort"] for one in container(rendered("full"))["ports"]}
    assert ports == {"ext-proc": 19002, "health": 19003, "admin": 19090}
    assert container(rendered("full"))["readinessProbe"]["grpc"]["port"] == 19003


def test_a_pod_has_time_for_its_sleep_and_both_drains():
    assert pod(rendered("none"))["terminationGracePeriodSeconds"] == 5 + 3 + 10 + 10
    assert pod(rendered("gateway"))["terminationGracePeriodSeconds"] == 5 + 5 + 60 + 10


def test_a_changed_configuration_makes_new_pods():
    sums = {
        only(rendered(variant), "Deployment")["spec"]["template"]["metadata"]["annotations"][
            "checksum/config"
        ]
        for variant in CI
    }
    assert len(sums) > len(CI) - 2  # two variants share a configuration


# ---- integrations: the same as the files in envoy/ ----


def _specs(documents, *kinds):
    return {one["kind"]: one["spec"] for one in documents if one["kind"] in kinds}


def test_istio_renders_the_shipped_files():
    for variant, name in (("istio", "istio/gateway.yaml"), ("istio-sidecar", "istio/sidecar.yaml")):
        files, chart = load(name), rendered(variant)
        assert _specs(files, "EnvoyFilter") == _specs(chart, "EnvoyFilter")
        assert (
            only(files, "EnvoyFilter")["metadata"]["namespace"]
            == (only(chart, "EnvoyFilter")["metadata"]["namespace"])
        )
        for theirs, ours in (("vllm", "kvring-target"), ("kvring", "kvring")):
            expected = only(files, "DestinationRule", theirs)["spec"]
            found = only(chart, "DestinationRule", ours)["spec"]
            if (variant, ours) == ("istio-sidecar", "kvring"):
                expected["trafficPolicy"]["tls"] = {"mode": "ISTIO_MUTUAL"}
            assert found == expected


def test_envoy_gateway_renders_the_shipped_files():
    kinds = ("EnvoyExtensionPolicy", "BackendTrafficPolicy", "ClientTrafficPolicy")
    expected = _specs(load("envoy-gateway/by-header.yaml"), *kinds)
    # the file names the Service that anybody has; the chart has a headless one
    expected["EnvoyExtensionPolicy"]["extProc"][0]["backendRefs"][0]["name"] = "kvring-headless"
    assert _specs(rendered("envoy-gateway"), *kinds) == expected
    patch = _specs(rendered("envoy-gateway-metadata"), "EnvoyPatchPolicy")
    assert patch == _specs(load("envoy-gateway/by-metadata.yaml"), "EnvoyPatchPolicy")
    assert "ClientTrafficPolicy" not in {one["kind"] for one in rendered("envoy-gateway-metadata")}


def test_inferencepool_renders_the_shipped_file():
    pool = only(rendered("inferencepool"), "InferencePool")["spec"]
    assert pool.pop("targetPorts") == [{"number": 8000}, {"number": 8001}]
    expected = only(load("inferencepool/pool.yaml"), "InferencePool")["spec"]
    del expected["targetPorts"]
    assert pool == expected


@pytest.mark.envoy
def test_envoy_takes_the_bootstrap_that_the_pod_makes_for_itself(tmp_path):
    documents = rendered("gateway")
    (init,) = pod(documents)["initContainers"]
    path = tmp_path / "envoy.yaml"
    *words, output = init["args"]
    assert output == "--output=/run/kvring/envoy.yaml"
    assert container(documents, "envoy")["args"][1] == "/run/kvring/envoy.yaml"
    assert cli.main([*words, f"--output={path}"]) == 0
    accepted, said = accepts(path)
    assert accepted, said
    made = yaml.safe_load(path.read_text())
    assert traps.find(made) == []
    sockets = [
        one["endpoint"]["address"]["pipe"]["path"]
        for one in made["static_resources"]["clusters"][1]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    environment = {one["name"]: one["value"] for one in container(documents)["env"]}
    assert environment == {"KVRING_GRPC_LISTEN": f"unix:{sockets[0]}"}
    for each in (init, container(documents), container(documents, "envoy")):
        assert {"name": "run", "mountPath": "/run/kvring"} in each["volumeMounts"]
    path.write_text(bootstrap.to_yaml(made).replace("pipe:", "pip:"))
    assert not accepts(path)[0]


# ---- monitoring: what lies in files/ ----


def test_every_rule_file_and_dashboard_is_shipped_as_it_is():
    documents = rendered("full")
    groups = only(documents, "PrometheusRule")["spec"]["groups"]
    text = "".join(path.read_text() for path in sorted((CHART / "files/rules").glob("*.yaml")))
    expected = [
        group
        for path in sorted((CHART / "files/rules").glob("*.yaml"))
        for group in yaml.safe_load(
            path.read_text().replace("docs/runbooks/", "https://runbooks.example.com/"))["groups"]
    ]  # fmt: skip
    assert groups == expected
    assert ("docs/runbooks/" in text) == ("https://runbooks.example.com/" in str(groups))
    board = only(documents, "ConfigMap", "kvring-dashboards")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    shipped = {
        path.name: json.loads(path.read_text()) for path in (CHART / "files/dashboards").glob("*.json")
    }
    assert {name: json.loads(one) for name, one in board["data"].items()} == shipped


# ---- values ----


def test_every_value_is_documented():
    documented = {key for key, _, _ in chart_rows()}

    def undocumented(block, prefix=""):
        for key, value in block.items():
            name = prefix + key
            if name in documented:
                continue
            if isinstance(value, dict) and value:
                yield from undocumented(value, f"{name}.")
            else:
                yield name

    assert list(undocumented(yaml.safe_load((CHART / "values.yaml").read_text()))) == []


def chart_rows():
    """The rows that docs/chart.py makes a table of."""
    spec = importlib.util.spec_from_file_location("chart", CHART.parents[1] / "docs/chart.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.rows()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["replicaCounts=2"], "replicaCounts"),
        (["image.tags=1"], "tags"),
        (['integration="nginx"'], "integration"),
        (['service.port="x"'], "port"),
        (['inferencePool.failureMode="Open"'], "failureMode"),
        (['image.digest="sha256:1"'], "digest"),
        (["config.streams_max=0"], "streams_max"),
        (['config.pools=[{"policy":"rings"}]'], "policy"),
        (["config.polls=[]"], "polls"),
        (["config=null"], "config"),
        (["config.pools=[]"], "pools"),
        (["metrics.serviceMonitor.enabled=true", "metrics.podMonitor.enabled=true"], "twice"),
        (["envoy.enabled=true", 'integration="istio"'], "needs integration: none"),
        (['config.grpc_listen="unix:/x"', 'integration="istio"'], "Unix socket"),
        (["tls.dial=true"], "opens no TLS port"),
        (["tls.dial=true", "config.tls={}", 'integration="envoy-gateway"'], "tls.ca"),
        (
            ["tls.dial=true", 'config.tls={"client_ca_file":"/ca.crt"}', 'integration="istio"'],
            "wants a certificate",
        ),
        (['tls.secret="kvring-tls"', "config.tls={}"], "names no file there"),
        (
            ['config.tls={"certificate_file":"/etc/kvring-tls/tls.crt","key_file":"/x"}'],
            "set tls.secret",
        ),
        (['istio.tls="SIMPLE"'], "tls"),
        (["autoscaling.enabled=true", "autoscaling.minReplicas=9"], "above maxReplicas"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_value_that_cannot_be_is_refused_by_name(settings, said):
    assert said in refused(*settings)


def test_values_that_can_be_are_taken():
    assert refused("replicaCount=3", 'config.log_level="debug"', "config.streams_max=1") == ""
    assert refused("global.anything=1") == ""


def test_the_schema_knows_every_setting_of_kvring():
    found = json.loads((CHART / "values.schema.json").read_text())["$defs"]
    assert set(found["Config"]["properties"]) == set(config.Config.__struct_fields__)
    assert found["Config"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("file", "variant", "good", "bad"),
    [
        ("deployment.yaml", "full", "serviceAccountName:", "serviceAccountNames:"),
        ("service.yaml", "full", "clusterIP: None", "clusterIP: [None]"),
        ("rbac.yaml", "full", "verbs: [list, watch]", "verb: [list, watch]"),
        ("istio.yaml", "istio", "applyTo: CLUSTER", "applyTo: CLUSTERS"),
        ("monitoring.yaml", "full", "podMetricsEndpoints:", "podMetricEndpoints:"),
        ("networkpolicy.yaml", "full", "policyTypes:", "policyType:"),
        ("scaling.yaml", "full", "scaleTargetRef:", "scaleTarget:"),
        ("inferencepool.yaml", "inferencepool", "failureMode:", "failMode:"),
        ("envoy-gateway.yaml", "envoy-gateway", "failOpen:", "failsOpen:"),
        ("envoy-gateway.yaml", "envoy-gateway-tls", "caCertificateRefs:", "caCertificateRef:"),
        ("istio.yaml", "istio-tls", "portLevelSettings:", "portSettings:"),
        ("configmap.yaml", "full", "data:", "datum:"),
        ("tests/probe.yaml", "full", "restartPolicy: Never", "restartPolicies: Never"),
        ("serviceaccount.yaml", "full", "automountServiceAccountToken: false", "automount: false"),
    ],
)
def test_a_mistake_in_a_template_is_found(file, variant, good, bad, tmp_path):
    shutil.copytree(CHART, tmp_path / "kvring")
    template = tmp_path / "kvring/templates" / file
    assert good in template.read_text()
    template.write_text(template.read_text().replace(good, bad))
    values, shown = CHART / f"ci/{variant}-values.yaml", f"templates/{file}"
    words = ["template", "r", tmp_path / "kvring", "-n", "llm", "-f", values, "--show-only", shown]
    done = tools.helm(4, *words)
    assert done.returncode == 0, done.stderr
    assert [fault for one in manifests.documents(done.stdout) for fault in manifests.check(one).faults]
