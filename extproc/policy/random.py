"""Random: any candidate, all alike. A baseline; the chance is handed in."""

from __future__ import annotations

from extproc.policy import question

__all__ = ["pick"]


def pick(asked: question.Question) -> question.Pick:
    """The candidate at `chance` of the way through the list."""
    return question.Pick(int(asked.chance * len(asked.work)), question.Reason.TURN)
