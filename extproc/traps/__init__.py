"""Traps: what in a user's own Envoy configuration is known to go wrong with kvring. Pure values.

    parsed bootstrap, pieces or config dump -> findings, the worst first

    from extproc import traps
    for found in traps.find(yaml.safe_load(text)):
        print(found.where, traps.TRAPS[found.trap].mend)

Invariant: the bootstrap that `kvring envoy-config` prints holds no error and no warning in any fail-open mode
(tests/unit/test_traps.py); any JSON value can be asked about. Called by: `kvring check --envoy`.
"""

from __future__ import annotations

from typing import Any

from extproc.traps import asked, asking, reading, serving
from extproc.traps.catalogue import TRAPS, Severity, Trap
from extproc.traps.finding import Finding

__all__ = ["TRAPS", "Finding", "Severity", "Trap", "find"]

_ORDER = ("error", "warning", "note")


def find(document: Any) -> list[Finding]:
    """Every trap in `document`, each once, errors first, then in the order of the file."""
    setup = reading.read(document)
    found = [*asking.findings(setup), *asked.findings(setup), *serving.findings(setup)]
    return sorted(dict.fromkeys(found), key=lambda one: _ORDER.index(one.severity))
