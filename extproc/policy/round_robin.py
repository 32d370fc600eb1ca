"""Round robin: candidates in turn, whatever they hold or do. A baseline."""

from __future__ import annotations

from extproc.policy import question

__all__ = ["pick"]


def pick(asked: question.Question) -> question.Pick:
    """The candidate whose turn it is."""
    return question.Pick(asked.turn % len(asked.work), question.Reason.TURN)
