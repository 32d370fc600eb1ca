"""Check: one thing that the contract asks of a picker, and how one looked at it.

A check says in one sentence what is asked, in another what an operator sees where it is not so, and where
that is written. `must`: a gateway that follows the contract loses requests, or the choice, without it.
`should`: some gateways need it, or body modes that the contract leaves open, or safety does.

Called by: every module of conformance.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from extproc.conformance import target

__all__ = ["Check", "FailedError", "Outcome", "Result", "Severity", "SkippedError", "plain"]

_WORDS_MAX = 300


class Severity(enum.Enum):
    """How bad it is not to do it."""

    MUST = "must"
    SHOULD = "should"


class Result(enum.Enum):
    """What came of a check."""

    PASS = "pass"  # noqa: S105  (no password)
    FAIL = "fail"
    SKIP = "skip"


class FailedError(Exception):
    """The picker does not do what is asked; the text says what it did."""


class SkippedError(Exception):
    """It can't be told here; the text says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """`look` returns, perhaps with a remark, or raises FailedError or SkippedError."""

    id: str
    severity: Severity
    asks: str
    shows: str
    source: str
    look: Callable[[target.Target], Awaitable[str | None]]

    @property
    def group(self) -> str:
        """What it is about: the first word of the id."""
        return self.id.partition("-")[0]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`words`: a remark, what went wrong, or why it was skipped. `took_s`: how long it took [s]."""

    check: Check
    result: Result
    words: str
    took_s: float


def plain(text: str) -> str:
    """`text` in one line of printable characters: pickers may say anything, and terminals obey much of it."""
    line = " ".join(text.split())
    line = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)
    return line if len(line) <= _WORDS_MAX else line[: _WORDS_MAX - 3] + "..."
