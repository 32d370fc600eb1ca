"""Telling: what becomes of a decision beside its answer: counted, kept, logged if asked, traced if asked.

One record, four readers: metrics, journal, log, trace. A choice is logged at `debug`, and a share of them,
drawn by chance, at `info` (`log_choices`): key hashes, never a prompt, a header or a key.

Never: decides anything. Called by: server (tells), app (makes).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from extproc import choice, journal, metrics

__all__ = ["Decided", "Teller", "Tracer"]

_log = logging.getLogger("kvring")


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision: at `now` [s, monotonic], after `spent_s` of reading and choosing, `waited_s` after the
    request's headers came. `parents`: contexts of its trace, as `traceparent` has them, the nearest first.
    """

    result: choice.Choice | choice.Hashed | choice.NoEndpoint
    limit: choice.Limit | None
    now: float
    spent_s: float
    waited_s: float
    parents: tuple[str, ...] = ()


class Tracer(Protocol):
    """Where spans go."""

    def trace(self, decided: Decided) -> None:
        """Make a span of `decided`; must not wait for anybody."""
        ...


class Teller:
    """Tells everybody who wants to know."""

    def __init__(
        self,
        counted: metrics.Metrics,
        latest: journal.Journal | None = None,
        *,
        log_share: float = 0.0,
        chance: Callable[[], float] = lambda: 1.0,
        tracer: Tracer | None = None,
    ) -> None:
        """Args: log_share: of choices that are logged [0..1]; chance: uniform in [0, 1)."""
        self._metrics = counted
        self._latest = latest
        self._log_share = log_share
        self._chance = chance
        self._tracer = tracer

    @property
    def traces(self) -> bool:
        """Whether anybody wants a request's trace context."""
        return self._tracer is not None

    def tell(self, decided: Decided) -> None:
        """Of one decision."""
        result = decided.result
        self._metrics.decision_s.observe(decided.spent_s)
        self._metrics.record(result)
        if decided.limit is not None:
            self._metrics.limited(decided.limit)
        if not isinstance(result, choice.NoEndpoint):
            if self._latest is not None:
                self._latest.note(result, decided.now, decided.spent_s)
            self._log_choice(result, decided.spent_s)
        if self._tracer is not None:
            self._tracer.trace(decided)

    def _log_choice(self, made: choice.Choice | choice.Hashed, spent_s: float) -> None:
        drawn = self._log_share > 0 and self._chance() < self._log_share
        level = logging.INFO if drawn else logging.DEBUG
        if _log.isEnabledFor(level):
            _log.log(level, "choice", extra={**journal.told(made), "spent_us": round(spent_s * 1e6)})
