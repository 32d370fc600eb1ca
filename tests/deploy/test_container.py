"""The container: its Dockerfile, what it locks, its steps run here, and the compose file around it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from extproc import __version__, cli, config, traps
from tests.deploy import manifests, tools
from tests.deploy.test_envoy_files import accepts

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = ROOT / "envoy/compose"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOT_IN_THE_IMAGE = {"envoy", "sim"}  # a gateway on one machine, and pictures


def steps(instruction: str) -> list[str]:
    """The arguments of every such instruction of the Dockerfile, lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    return re.findall(rf"^{instruction} (.*)$", text, re.MULTILINE)


# ---- Dockerfile ----


def test_hadolint_has_nothing_to_say():
    done = tools.hadolint(DOCKERFILE)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("USER 65532:65532\n", "USER root\n"),
        ("--no-cache-dir ", ""),
        ('ENTRYPOINT ["kvring"]', "ENTRYPOINT kvring"),
    ],
)
def test_hadolint_finds_a_mistake(good, bad, tmp_path):
    text = DOCKERFILE.read_text()
    assert good in text
    path = tmp_path / "Dockerfile"
    path.write_text(text.replace(good, bad))
    assert tools.hadolint(path).returncode != 0


def test_the_image_is_not_root_and_is_stopped_by_a_signal_that_kvring_gets():
    assert steps("USER") == ["65532:65532"]
    assert steps("ENTRYPOINT") == ['["kvring"]']
    assert len(steps("FROM")) == 2
    labels = " ".join(steps("LABEL"))
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels


def test_what_the_image_runs_are_commands_of_kvring(capsys):
    (command,), (health,) = steps("CMD")[-1:], steps(r"HEALTHCHECK .*? CMD")
    for words in (yaml.safe_load(command), yaml.safe_load(health)[1:]):
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "--help"])
        assert ended.value.code == 0
        known = capsys.readouterr().out
        assert all(word.partition("=")[0] in known for word in words[1:])


def test_everything_that_is_copied_gets_into_the_build():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for step in steps("COPY") if "--from" not in step for name in step.split()[:-1]}
    locks = {"requirements-build.lock", "requirements.lock"}
    assert copied == {*locks, "pyproject.toml", "README.md", "LICENSE", "extproc"}
    assert all(any(Path(name).match(pattern) for pattern in kept) for name in copied)
    assert all((ROOT / name).exists() for name in copied)


# ---- locks ----


def locked(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    return dict(re.match(r"([a-z0-9-]+)==([^ ;]+)", line).groups() for line in lines if line[:1].isalnum())


def wanted() -> list[str]:
    extras = PROJECT["project"]["optional-dependencies"]
    chosen = [each for name, each in extras.items() if name not in NOT_IN_THE_IMAGE]
    return PROJECT["project"]["dependencies"] + [one for each in chosen for one in each]


@pytest.mark.parametrize(
    ("file", "requirements"),
    [
        ("requirements.lock", wanted()),
        ("requirements-build.lock", PROJECT["dependency-groups"]["image"]),
    ],
)
def test_every_dependency_is_locked_at_a_version_that_it_allows(file, requirements):
    found = locked(file)
    for text in requirements:
        asked = Requirement(text)
        assert asked.name.lower() in found, f"{asked.name}: run make lock"
        assert asked.specifier.contains(found[asked.name.lower()]), f"{asked.name}: run make lock"


def test_every_locked_package_has_hashes_and_none_names_a_registry():
    for name in ("requirements.lock", "requirements-build.lock"):
        text = (ROOT / name).read_text()
        assert "://" not in text
        for entry in re.split(r"\n(?=[a-z])", text.strip()):
            assert "--hash=sha256:" in entry


@pytest.mark.heavy
def test_the_steps_of_the_dockerfile_make_an_environment_in_which_kvring_runs(tmp_path):
    """Each RUN of the Dockerfile in a copy of the build's files; a clean venv stands for the base image."""
    source, base, target = tmp_path / "src", tmp_path / "base", tmp_path / "opt"
    source.mkdir()
    for step in steps("COPY"):
        for name in step.split()[:-1] if "--from" not in step else ():
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "venv", base], check=True, timeout=120)
    environment = {
        "PATH": f"{base}/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        **{key: value for key, value in os.environ.items() if key.startswith(("PIP_", "UV_", "SSL_"))},
        **dict(pair.split("=", 1) for line in steps("ENV")[:1] for pair in line.split()),
    }
    for name in (
        "/etc/pip.conf",
        str(Path.home() / ".config/pip/pip.conf"),
        str(Path.home() / ".pip/pip.conf"),
    ):
        if Path(name).exists():
            environment.setdefault("PIP_CONFIG_FILE", name)
    for step in steps("RUN"):
        line = step.replace("/opt/kvring", str(target)).replace("/src", str(source))
        done = subprocess.run(
            ["/bin/sh", "-euc", line], cwd=source, env=environment, capture_output=True, text=True,
            check=False, timeout=600,
        )  # fmt: skip
        if done.returncode and "pip install" in step and "No matching distribution" in done.stderr:
            pytest.skip("no package registry here")
        assert done.returncode == 0, done.stdout + done.stderr
    kvring = target / "bin/kvring"
    said = subprocess.run([kvring, "--version"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert said.stdout == f"kvring {__version__}\n"
    checked = subprocess.run(
        [kvring, "check", "--config", COMPOSE / "kvring.yaml"], capture_output=True, text=True, check=True,
        cwd=tmp_path,
    )  # fmt: skip
    assert "good" in checked.stdout
    assert list(target.glob("lib/*/site-packages/extproc/__pycache__/*.pyc")), "compiled in advance"


# ---- compose ----


def services() -> dict:
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]


def test_composes_files_are_good_and_belong_together(tmp_path, capsys):
    settings = config.loads((COMPOSE / "kvring.yaml").read_text(), {})
    addresses = {one.address.rpartition(":")[0] for one in settings.pools[0].endpoints}
    given = {name: one["networks"]["kvring"]["ipv4_address"] for name, one in services().items()}
    assert addresses == {given[name] for name in given if name.startswith("replica-")}
    words = ["envoy-config", "--config", str(COMPOSE / "kvring.yaml"), "--kvring", f"{given['kvring']}:9002"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert (COMPOSE / "envoy.yaml").read_text() == printed
    assert traps.find(yaml.safe_load(printed)) == []
    assert services()["kvring"]["stop_grace_period"] == "20s"
    assert settings.drain_notice_s + settings.drain_timeout_s < 20


@pytest.mark.envoy
def test_envoy_takes_composes_bootstrap():
    accepted, said = accepts(COMPOSE / "envoy.yaml")
    assert accepted, said


def test_every_service_is_hardened_and_its_command_exists(capsys):
    for name, one in services().items():
        assert one["read_only"] is True, name
        assert all(port.startswith("127.0.0.1:") for port in one.get("ports", [])), name
        assert all((COMPOSE / volume.split(":")[0]).is_file() for volume in one.get("volumes", [])), name
        if one["image"] == "kvring" and "command" in one:
            with pytest.raises(SystemExit) as ended:
                cli.main([*one["command"], "--help"])
            assert ended.value.code == 0
            known = capsys.readouterr().out
            assert all(word.partition("=")[0] in known for word in one["command"][1:])


def test_the_chart_and_compose_run_the_same_envoy():
    values = manifests.documents((ROOT / "helm/kvring/values.yaml").read_text())[0]["envoy"]["image"]
    assert services()["envoy"]["image"] == f"{values['repository']}:{values['tag']}"
