"""Prometheus's promtool: the one on PATH, else from Debian's package, kept in .cache; None if neither.

No root: `apt-get download` and `dpkg -x` only unpack.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

__all__ = ["find", "run"]

_CACHED = Path(__file__).parents[1] / ".cache" / "promtool" / "promtool"
_DOWNLOAD_S = 60


@functools.cache
def find() -> str | None:
    """Where promtool is."""
    found = shutil.which("promtool")
    if found:
        return found
    if not _CACHED.exists():
        _unpack()
    return str(_CACHED) if _CACHED.exists() else None


def run(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """promtool with these arguments; skips the test where there is none."""
    tool = find()
    if tool is None:
        pytest.skip("promtool is neither on PATH nor to be had from Debian's package prometheus")
    return subprocess.run(
        [tool, *map(str, arguments)], input=stdin, capture_output=True, text=True, check=False, timeout=60
    )


def _unpack() -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return
    with tempfile.TemporaryDirectory() as scratch:
        try:
            subprocess.run(
                ["apt-get", "download", "prometheus"],
                cwd=scratch,
                capture_output=True,
                check=True,
                timeout=_DOWNLOAD_S,
            )
            (package,) = Path(scratch).glob("prometheus_*.deb")
            subprocess.run(
                ["dpkg", "-x", package, scratch], capture_output=True, check=True, timeout=_DOWNLOAD_S
            )
        except (subprocess.SubprocessError, OSError, ValueError):
            return
        _CACHED.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHED.parent) as beside:  # whole or not there: others look too
            shutil.copy(Path(scratch) / "usr/bin/promtool", beside)
            (Path(beside) / "promtool").replace(_CACHED)
