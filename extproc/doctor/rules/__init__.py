"""Rules: from a case to findings, the most pressing first.

A rule is a pure function from a case to a finding, or None. Findings are ordered by verdict, then as the
rules stand here: what users feel as errors, what switches everything else off, what is out of balance, then
caches and load.

Called by: diagnosis. Source of the thresholds: docs/doctor.md says for each where it comes from.
"""

from __future__ import annotations

from collections.abc import Callable

from extproc.doctor.case import Case
from extproc.doctor.finding import Finding, Kind, Verdict
from extproc.doctor.rules import caches, memory, serving, sharing

__all__ = ["RULES", "conclude"]

Rule = Callable[[Case], Finding | None]

RULES: tuple[Rule, ...] = (
    sharing.quiet,
    serving.asleep,
    serving.refused,
    serving.faults,
    caches.caching_off,
    memory.restarts,
    sharing.imbalance,
    memory.cache_too_small,
    caches.scattered,
    memory.host_too_small,
    memory.kv_pressure,
    serving.queueing,
    caches.nothing_shared,
    serving.tail,
    caches.nothing_to_win,
    sharing.unlike,
)


def conclude(case: Case) -> tuple[Finding, ...]:
    """All that is found, at least one finding: where nothing is wrong, that comes first."""
    found = [finding for rule in RULES if (finding := rule(case)) is not None]
    found.sort(key=lambda finding: finding.verdict.value)
    if any(finding.verdict in (Verdict.ACT, Verdict.CONSIDER) for finding in found):
        return tuple(one for one in found if one.verdict is not Verdict.WELL and one.kind is not Kind.TAIL)
    if sharing.is_quiet(case):
        return tuple(found)
    well = [one for one in found if one.verdict is Verdict.WELL] or [caches.healthy(case)]
    return (*well, *(one for one in found if one.verdict is Verdict.NOTE))
