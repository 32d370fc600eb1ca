"""Least load: the candidate with the least work; what a request without a chain gets.

Ties go round by turn, so that an idle pool spreads and no endpoint is the default victim.
"""

from __future__ import annotations

from extproc.policy import question

__all__ = ["pick"]


def pick(asked: question.Question) -> question.Pick:
    """One of the least loaded, the next one each turn."""
    least = min(asked.work)
    tied = [index for index, work in enumerate(asked.work) if work == least]
    return question.Pick(tied[asked.turn % len(tied)], question.Reason.LEAST_LOAD)
