"""Data too large for the repository: `$KVRING_DATA`, by default the folder `shared` beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["path"]

_DEFAULT = Path(__file__).parents[2] / "shared"


def path(name: str) -> Path:
    """The file `name` there; skips the test if it is absent."""
    found = Path(os.environ.get("KVRING_DATA") or _DEFAULT) / name
    if not found.exists():
        pytest.skip(f"no {name} in KVRING_DATA ({found.parent})")
    return found
