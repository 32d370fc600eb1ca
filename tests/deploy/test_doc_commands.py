"""Shell commands in the documentation would work: as far as can be seen without a cluster.

    kvring         its options exist, anywhere in a pipeline and behind `kubectl exec ... --`
    helm           the same command rendered, with the values that the page shows or names
    kubectl        files that are applied pass an API server's checks; what is asked of a release is in it
    every program  files of this repository that are named exist; the shell can parse it

Blocks of YAML that are Kubernetes objects or values of the chart are held against the same checks.
"""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests import test_docs
from tests.deploy import manifests, tools

ROOT = test_docs.ROOT
VALUES = set(yaml.safe_load((ROOT / "helm/kvring/values.yaml").read_text()))
OURS = re.compile(r"(envoy|helm|docs|tests|extproc|proto)/[\w./-]+")
SHELL = {"for", "do", "done", "served", "{", "}"}
PROGRAMS = {
    "awk", "curl", "docker", "envoy", "grep", "helm", "istioctl", "kubectl", "kvring", "make", "promtool",
    "sed",
}  # fmt: skip
PAGES = [page for page in test_docs.PAGES if "```sh" in page.read_text()]


def pipelines(text: str) -> Iterator[list[list[str]]]:
    """The commands of each line of a block, in their order, as words; redirections are left out."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        found: list[list[str]] = [[]]
        into_file = False
        for word in lexer:
            if set(word) <= set("|;&()"):
                found.append([])
            elif set(word) <= set("<>"):
                into_file = True
            elif into_file:
                into_file = False
            else:
                found[-1].append(word)
        yield [words for words in found if words]


@dataclass
class Reader:
    """Goes through a page, block by block. `objects`: what its commands have applied or installed so far."""

    page: Path
    objects: list[dict] = field(default_factory=list)
    seen: int = 0

    def read(self, folder: Path) -> None:
        blocks = test_docs.scripts(self.page)
        for kind, text in blocks:
            if kind == "yaml":
                self._yaml(text, folder)
        for kind, text in blocks:
            if kind == "sh":
                done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{self.page.name}: {done.stderr}"
                for commands in pipelines(text):
                    for at, words in enumerate(commands):
                        self._command(words, commands[at - 1] if at else [], folder)

    def _yaml(self, text: str, folder: Path) -> None:
        for one in manifests.documents(text):
            if isinstance(one, dict) and "kind" in one:
                assert manifests.check(one).faults == [], self.page.name
            elif isinstance(one, dict) and "config" in one and set(one) <= VALUES:
                (folder / "my-values.yaml").write_text(text)
                self._helm(["helm", "install", "kvring", "helm/kvring", "-f", "my-values.yaml"], folder)

    def _command(self, words: list[str], before: list[str], folder: Path) -> None:
        where = f"{self.page.name}: {shlex.join(words)}"
        program = Path(words[0]).name
        assert program in PROGRAMS | SHELL, f"{where}: what is {program}?"
        for word in words[1:]:
            for part in word.split(":"):
                assert not OURS.fullmatch(part) or (ROOT / part).exists(), f"{where}: no {part}"
        self.seen += 1
        if program == "kvring":
            test_docs._assert_parses(words[1], words[2:], where)
        elif program == "helm":
            self._helm(words, folder)
        elif program == "kubectl":
            self._kubectl(words, before, where)

    def _helm(self, words: list[str], folder: Path) -> None:
        verb, name, *rest = words[1:]
        if verb != "install":
            known = tools.helm(4, verb, "--help").stdout
            assert all(word in known for word in rest if word.startswith("--")), shlex.join(words)
            return
        there = [str(folder / word) if (folder / word).is_file() else word for word in rest]
        there = [str(ROOT / word) if OURS.fullmatch(word) else word for word in there]
        namespace = [] if {"-n", "--namespace"} & set(rest) else ["-n", "llm"]
        done = tools.helm(4, "template", name, *there, *namespace)
        assert done.returncode == 0, f"{self.page.name}: {shlex.join(words)}: {done.stderr}"
        self.objects += manifests.documents(done.stdout)

    def _kubectl(self, words: list[str], before: list[str], where: str) -> None:
        if "--" in words:
            at = words.index("--")
            if words[at + 1] == "kvring":
                test_docs._assert_parses(words[at + 2], words[at + 3 :], where)
            words = words[:at]
        for option, name in itertools.pairwise(words):
            if option == "-f":
                self._apply(name, before, where)
        if "get" in words and "-o" in words and "-l" not in words:
            kinds, name = words[words.index("get") + 1 :][:2]
            made = {(one["kind"].lower(), one["metadata"]["name"]) for one in self.objects}
            assert {(kind, name) for kind in kinds.split(",")} <= made, where
        for deployment in (word for word in words if word == "deploy/kvring"):
            self._deployed(deployment.partition("/")[2], words, where)

    def _apply(self, name: str, before: list[str], where: str) -> None:
        if name == "-":
            assert before[0] == "sed", where
            done = subprocess.run(before, cwd=ROOT, capture_output=True, text=True, check=True)
            assert done.stdout != (ROOT / before[-1]).read_text(), f"{where}: it changes nothing"
            text = done.stdout
        else:
            text = (ROOT / name).read_text()
        for one in manifests.documents(text):
            if not one["apiVersion"].startswith("networking.gke.io/"):
                assert manifests.check(one).faults == [], where
            self.objects.append(one)

    def _deployed(self, name: str, words: list[str], where: str) -> None:
        objects = self.objects or chart()
        found = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Deployment", name)]
        containers = [one for each in found for one in each["spec"]["template"]["spec"]["containers"]]
        assert containers, f"{where}: no Deployment {name}"
        if "-c" in words:
            assert words[words.index("-c") + 1] in {one["name"] for one in containers}, where
        ports = {port["containerPort"] for one in containers for port in one["ports"]}
        if "port-forward" in words:
            assert {int(word) for word in words if word.isdigit()} <= ports, where


def chart() -> list[dict]:
    done = tools.helm(
        4, "template", "kvring", ROOT / "helm/kvring", "-f", ROOT / "helm/kvring/ci/none-values.yaml"
    )
    assert done.returncode == 0, done.stderr
    return manifests.documents(done.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_would_work(page, tmp_path):
    reader = Reader(page)
    reader.read(tmp_path)
    assert reader.seen


@pytest.mark.parametrize(
    ("page", "good", "bad"),
    [
        ("istio.md", "| kvring check --envoy -", "| kvring check --envoys -"),
        ("inferencepool.md", "-- kvring state", "-- kvring states"),
        ("istio.md", "envoy/istio/gateway.yaml", "envoy/istio/gateways.yaml"),
        ("ai-gateway.md", "inferencePool.create=false", "inferencePool.creates=false"),
        ("ai-gateway.md", "number: 9002/", "number: 9001/"),
        ("envoy-gateway.md", "backendtrafficpolicy,clienttrafficpolicy kvring", "trafficpolicy kvring"),
        ("README.md", "deploy/kvring -c kvring", "deploy/kvring -c kvrings"),
        ("README.md", "deploy/kvring 9090", "deploy/kvring 9091"),
        ("envoy.md", "curl -s", "wgot -s"),
        ("README.md", "-o name); do echo", "-o name); echo"),
    ],
)
def test_a_mistake_in_a_command_is_found(page, good, bad, tmp_path):
    text = (ROOT / "docs/gateways" / page).read_text()
    assert good in text
    spoilt = tmp_path / page
    spoilt.write_text(text.replace(good, bad))
    with pytest.raises((AssertionError, KeyError, FileNotFoundError)):
        Reader(spoilt).read(tmp_path)
