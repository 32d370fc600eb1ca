"""Truth: how much of what we thought an endpoint held it did hold, and what follows from the difference.

    predicted = tokens thought cached / prompt tokens sent,  true = hits / tokens looked up by the engine

Compared over windows of at least 20,000 tokens, 10 requests and 10 s; shares and not amounts, since others
may use the engine too. The estimate of what an endpoint holds is its capacity times `scale`:

    predicted - true > 0.10   scale *= max(0.7, true / predicted)   it evicts more than we thought
    predicted - true < 0.05   scale *= 1.1                          until it is 1 again

If nearly nothing of much is found in any tier (predicted >= 0.5, found <= a tenth of that, over 4,096 tokens
and 3 requests), the cache is gone: a reset without a restart, which engines do not tell.

Bounded: 0.05 <= scale <= 1, one step a window. Never: a step while the engine does not tell its hits.
Called by: endpoints.fleet. Figures: docs/fleet.md.
"""

from __future__ import annotations

from extproc import sent as _sent
from extproc import signals

__all__ = ["SCALE_LEAST", "Truth"]

SCALE_LEAST = 0.05
_WINDOW_TOKENS = 20_000
_WINDOW_REQUESTS = 10
_WINDOW_S = 10.0
_GAP_SHRINKS = 0.10
_GAP_GROWS = 0.05
_SHRINK_LEAST = 0.7
_GROWTH = 1.1
_LOST_TOKENS = 4096
_LOST_REQUESTS = 3
_LOST_PREDICTED = 0.5
_LOST_FOUND = 0.1


class Truth:
    """One endpoint's predictions beside its hits.

    `scale`: of its capacity, how much we count on [SCALE_LEAST..1]. `predicted`, `true`: shares in the last
    window; None before the first.
    """

    __slots__ = ("_long", "_short", "predicted", "scale", "true")

    def __init__(self) -> None:
        """Trust it at first."""
        self.scale = 1.0
        self.predicted: float | None = None
        self.true: float | None = None
        self._long: _Start | None = None
        self._short: _Start | None = None

    @property
    def gap(self) -> float | None:
        """Predicted less true share in the last window [-1..1]."""
        if self.predicted is None or self.true is None:
            return None
        return self.predicted - self.true

    def restart(self) -> None:
        """Another process: its counters have nothing to do with those before."""
        self._long = self._short = None

    def read(self, reading: signals.Reading, sent: _sent.Sent, now: float) -> bool:
        """Whether its cache is gone. Moves `scale` when a window is full.

        Args: sent: what we had sent there when the reading was asked for, a copy that is kept; now [s].
        """
        if reading.queries is None or reading.hits is None:
            return False
        if self._long is None or self._short is None:
            self._long = self._short = _Start(reading, sent, now)
            return False
        if sent.requests - self._short.sent.requests < _LOST_REQUESTS:
            return False
        here = _Start(reading, sent, now)
        short = _Window(self._short, here)
        if short.requests >= _LOST_REQUESTS and short.tokens >= _LOST_TOKENS:
            self._short = here
            if short.predicted >= _LOST_PREDICTED and short.found <= _LOST_FOUND * short.predicted:
                self._long = here
                self.predicted, self.true = short.predicted, short.true
                return True
        full = _Window(self._long, here)
        if full.requests >= _WINDOW_REQUESTS and full.tokens >= _WINDOW_TOKENS and full.seconds >= _WINDOW_S:
            self._long = here
            self.predicted, self.true = full.predicted, full.true
            self._step(full.predicted, full.true)
        return False

    def _step(self, predicted: float, true: float) -> None:
        if predicted - true > _GAP_SHRINKS:
            self.scale = max(SCALE_LEAST, self.scale * max(_SHRINK_LEAST, true / predicted))
        elif predicted - true < _GAP_GROWS:
            self.scale = min(1.0, self.scale * _GROWTH)


class _Start:
    """Both sides' counters at one moment."""

    __slots__ = ("at_s", "found", "hits", "queries", "sent")

    def __init__(self, reading: signals.Reading, sent: _sent.Sent, at_s: float) -> None:
        self.queries = reading.queries or 0.0
        self.hits = reading.hits or 0.0  # on the GPU
        self.found = self.hits + (reading.cold_hits or 0.0)  # in any tier
        self.sent = sent
        self.at_s = at_s


class _Window:
    """What happened between two moments; `tokens`: on the side that saw fewer."""

    __slots__ = ("found", "predicted", "requests", "seconds", "tokens", "true")

    def __init__(self, start: _Start, end: _Start) -> None:
        sent = end.sent.prompt_tokens - start.sent.prompt_tokens
        looked_up = end.queries - start.queries
        self.seconds = end.at_s - start.at_s
        self.requests = end.sent.requests - start.sent.requests
        self.tokens = min(sent, looked_up)
        self.predicted = (end.sent.gpu_tokens - start.sent.gpu_tokens) / sent if sent > 0 else 0.0
        self.true = (end.hits - start.hits) / looked_up if looked_up > 0 else 0.0
        self.found = (end.found - start.found) / looked_up if looked_up > 0 else 0.0
