"""Refusals: an endpoint whose health check is well and which answers 5xx all the same.

    faults = answers with 5xx - rejections by a full queue
    failing: faults >= 3 and >= half of the answers, both counted with a half-life of 5 s
    full: a full queue rejected something since the last reading

A draining vLLM answers new requests with 500, an overloaded one with 503 (or, streaming, with 200 and an
error event), while `/health` says 200. Its own counters tell; answers that kvring sees itself count too.

Called by: endpoints.fleet. Source: measured on vLLM 0.32.
"""

from __future__ import annotations

from extproc import signals

__all__ = ["Refusals"]

FAULTS_LEAST = 3
FAULTS_SHARE = 0.5
_HALF_LIFE_S = 5.0


class Refusals:
    """One endpoint's answers."""

    __slots__ = ("_answers", "_at_s", "_faults", "_last", "full")

    def __init__(self) -> None:
        """Nothing was answered yet."""
        self._last: signals.Reading | None = None
        self._at_s = 0.0
        self._answers = 0.0
        self._faults = 0.0
        self.full = False

    def read(self, reading: signals.Reading, now: float) -> bool:
        """Whether it is failing, by its own counters."""
        last, self._last = self._last, reading
        self.full = False
        if last is None or reading.started_s != last.started_s:
            return False
        rejections = _rise(last.rejections, reading.rejections)
        self.full = rejections > 0
        faults = max(0.0, _rise(last.faults, reading.faults) - rejections)
        return self._count(_rise(last.answers, reading.answers), faults, now)

    def answered(self, *, good: bool, now: float) -> bool:
        """Whether it is failing, by an answer that was seen on its way to the client."""
        return self._count(1.0, 0.0 if good else 1.0, now)

    @property
    def well(self) -> bool:
        """Whether it was seen to answer lately, and mostly well."""
        return self._answers >= FAULTS_LEAST and self._faults < FAULTS_SHARE * self._answers

    def forgive(self) -> None:
        """Start afresh: it was kept out for a while."""
        self._answers = self._faults = 0.0

    def _count(self, answers: float, faults: float, now: float) -> bool:
        kept = 0.5 ** (max(0.0, now - self._at_s) / _HALF_LIFE_S)
        self._at_s = now
        self._answers = self._answers * kept + max(answers, faults)
        self._faults = self._faults * kept + faults
        enough = self._faults >= FAULTS_LEAST - 0.5  # which have decayed a little meanwhile
        return enough and self._faults >= FAULTS_SHARE * self._answers


def _rise(before: float | None, after: float | None) -> float:
    return max(0.0, after - before) if before is not None and after is not None else 0.0
