"""The recorded requests of tests/data/sdk_bodies, see tests/record_sdk_bodies.py."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RECORDED", "SDKS", "Recorded", "recorded"]

_DIRECTORY = Path(__file__).parent / "data" / "sdk_bodies"


@dataclass(frozen=True)
class Recorded:
    """One request as an SDK sent it."""

    sdk: str
    name: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def __str__(self) -> str:
        return f"{self.sdk}/{self.name}"


@functools.cache
def _load() -> dict[str, dict[str, Recorded]]:
    found: dict[str, dict[str, Recorded]] = {}
    for index in sorted(_DIRECTORY.glob("*/index.json")):
        sdk = index.parent.name
        found[sdk] = {
            name: Recorded(
                sdk,
                name,
                kept["path"],
                tuple(kept["headers"].items()),
                (index.parent / f"{name}.json").read_bytes(),
            )
            for name, kept in json.loads(index.read_text()).items()
        }
    return found


def recorded(sdk: str, name: str) -> Recorded:
    return _load()[sdk][name]


SDKS = sorted(_load())
RECORDED = [one for of in _load().values() for one in of.values()]
