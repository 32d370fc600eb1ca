"""Catalogue: all checks, in the order of the report.

Called by: run, cli, docs/generate.py.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from extproc.conformance.check import Check
from extproc.conformance.checks import bodies, duplex, health, hooks, life, modes, pick, response, subset

__all__ = ["ALL", "only"]

ALL: tuple[Check, ...] = (
    *pick.CHECKS,
    *duplex.CHECKS,
    *modes.CHECKS,
    *subset.CHECKS,
    *response.CHECKS,
    *bodies.CHECKS,
    *life.CHECKS,
    *hooks.CHECKS,
    *health.CHECKS,
)


def only(patterns: Sequence[str]) -> tuple[Check, ...]:
    """The checks whose id is one of `patterns`, "*" standing for anything.

    Raises: ValueError for a pattern that fits none.
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(check.id, pattern) for check in ALL):
            raise ValueError(f"{pattern!r} is no check; --list shows them")
    return tuple(
        check for check in ALL if any(fnmatch.fnmatchcase(check.id, pattern) for pattern in patterns)
    )
