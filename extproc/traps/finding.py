"""Finding: a trap that a configuration holds, and where. Called by: the rules, `kvring check --envoy`."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.traps.catalogue import TRAPS, Severity

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The trap named `trap` at `where`; `seen`: the value that makes it one, "" where it is an absence."""

    trap: str
    where: str
    seen: str = ""

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return TRAPS[self.trap].severity
