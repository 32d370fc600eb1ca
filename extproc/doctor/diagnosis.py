"""Diagnosis: samples in, for each model a fleet with its figures and findings out.

Replicas that serve the same model are one fleet: they can stand in for each other. Whether a change is worth
simulating is decided here: only where prompts miss and it costs.

Called by: cli.doctor, tests. Pure, though a simulation takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from extproc.doctor import figures, gain, rules, sample, stay, traffic
from extproc.doctor.case import Case
from extproc.doctor.finding import Finding, Verdict
from extproc.doctor.rules import caches
from extproc.signals import Engine

__all__ = ["Fleet", "Question", "diagnose"]

_PIECE = re.compile(r"(\d{1,18})|(\D+)")


@dataclass(frozen=True, slots=True)
class Question:
    """What else is known, and asked. `routed`: requests go by prefix already. `think_s`: from an answer to
    its reader's next request [s]. `simulate`: whether gains are estimated.
    """

    routed: bool = False
    think_s: float = 1.0
    simulate: bool = True
    price: gain.Price = field(default_factory=gain.Price)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas of one model. `each`: figures by replica, in order of their names; `findings`: the most
    pressing first.
    """

    model: str
    case: Case
    each: dict[str, figures.Figures]
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """That of its first finding."""
        return self.findings[0].verdict


def diagnose(
    samples: Iterable[sample.Sample],
    question: Question | None = None,
    progress: Callable[[float], None] | None = None,
) -> list[Fleet]:
    """A fleet for each model, by name. Samples in which no engine speaks are passed over.

    Args: samples: of any replicas, of each in the order of time.
    """
    asked = question or Question()
    by_replica: dict[str, list[sample.Sample]] = {}
    for one in samples:
        if one.engine is not Engine.UNKNOWN:
            by_replica.setdefault(one.replica, []).append(one)
    by_model: dict[str, list[stay.Stay]] = {}
    for name in sorted(by_replica, key=_natural):
        seen = stay.watched(by_replica[name])
        by_model.setdefault(seen.model, []).append(seen)
    return [_fleet(model, stays, asked, progress) for model, stays in sorted(by_model.items())]


def _fleet(
    model: str, stays: Sequence[stay.Stay], asked: Question, progress: Callable[[float], None] | None
) -> Fleet:
    whole = stay.together(model, stays)
    told = figures.figures(whole)
    case = Case(
        stays=tuple(stays),
        whole=whole,
        told=told,
        spread=figures.spread(stays),
        load=traffic.infer(whole, told, routed=asked.routed),
        routed=asked.routed,
        price=asked.price,
    )
    if asked.simulate and case.load is not None and caches.misses(case):
        made = gain.estimate(
            whole,
            told,
            case.load,
            routed=asked.routed,
            think_s=asked.think_s,
            price=asked.price,
            progress=progress,
        )
        case = replace(case, estimate=made)
    each = {one.name: figures.figures(one) for one in stays}
    return Fleet(model, case, each, rules.conclude(case))


def _natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A key by which replica-10 comes after replica-9."""
    parts: list[tuple[int, int | str]] = []
    for digits, rest in _PIECE.findall(name):
        parts.append((0, int(digits)) if digits else (1, rest))
    return tuple(parts)
