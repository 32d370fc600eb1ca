"""Learned: how fast a pool's engines prefill, and how many bytes of prompt make a token, by their counters.

    prefill rate    prompt tokens computed / seconds spent prefilling, between two readings of an endpoint
    bytes a token   bytes of prompt sent / prompt tokens of the engine, per request on both sides

The first is a lower bound of what an idle engine does (prompts that are prefilled together count their
seconds twice), so the estimate goes up fast (0.3 of the difference) and down slowly (0.02). The second is
taken only while both sides count the same requests: with other traffic on the engine the means differ.

Bounded: 100 to 1,000,000 tokens/s; 1 to 16 bytes. Never: a value from fewer than 2,000 tokens, 0.2 s, or 20
requests. Called by: endpoints.fleet.
"""

from __future__ import annotations

from extproc import sent as _sent
from extproc import signals

__all__ = ["Learned", "Window"]

_PREFILL_TOKENS = 2_000
_PREFILL_S = 0.2
_PREFILL_RANGE = (100.0, 1_000_000.0)
_UP, _DOWN = 0.3, 0.02
_REQUESTS = 20
_REQUESTS_DIFFER = 0.1
_BYTES_RANGE = (1.0, 16.0)
_BYTES_STEP = 0.2


class Window:
    """Where one endpoint's counters stood when something was last learned from them."""

    __slots__ = ("prefill", "prompts", "sent")

    def __init__(self) -> None:
        """Nothing was read yet."""
        self.prefill: signals.Reading | None = None
        self.prompts: signals.Reading | None = None
        self.sent = _sent.Sent()


class Learned:
    """One pool's figures; None until something was learned."""

    __slots__ = ("bytes_per_token", "prefill_tokens_per_s")

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.prefill_tokens_per_s: float | None = None
        self.bytes_per_token: float | None = None

    def read(self, window: Window, reading: signals.Reading, sent: _sent.Sent) -> None:
        """Learn from one endpoint's reading; `window` is that endpoint's own."""
        if not reading.whole:
            return
        if window.prefill is None or _restarted(window.prefill, reading):
            window.prefill = reading
        if window.prompts is None or _restarted(window.prompts, reading):
            window.prompts, window.sent = reading, sent.copy()
        tokens = _rise(window.prefill.computed, reading.computed)
        seconds = _rise(window.prefill.prefill_s, reading.prefill_s)
        if tokens >= _PREFILL_TOKENS and seconds >= _PREFILL_S:
            window.prefill = reading
            self._learn_rate(_within(tokens / seconds, _PREFILL_RANGE))
        requests = _rise(window.prompts.requests, reading.requests)
        ours = sent.requests - window.sent.requests
        if max(requests, ours) >= _REQUESTS:
            self._learn_bytes(window, reading, sent)
            window.prompts, window.sent = reading, sent.copy()

    def _learn_rate(self, rate: float) -> None:
        known = self.prefill_tokens_per_s
        if known is None:
            self.prefill_tokens_per_s = rate
        else:
            self.prefill_tokens_per_s = known + (_UP if rate > known else _DOWN) * (rate - known)

    def _learn_bytes(self, window: Window, reading: signals.Reading, sent: _sent.Sent) -> None:
        if window.prompts is None:
            return
        requests = _rise(window.prompts.requests, reading.requests)
        tokens = _rise(window.prompts.prompt_tokens, reading.prompt_tokens)
        ours = sent.requests - window.sent.requests
        same = abs(requests - ours) <= _REQUESTS_DIFFER * max(requests, ours)
        if not same or sent.keyed - window.sent.keyed < ours or tokens <= 0 or not ours:
            return
        mean_bytes = (sent.prompt_bytes - window.sent.prompt_bytes) / ours
        found = _within(mean_bytes * requests / tokens, _BYTES_RANGE)
        known = self.bytes_per_token
        self.bytes_per_token = found if known is None else known + _BYTES_STEP * (found - known)


def _restarted(before: signals.Reading, after: signals.Reading) -> bool:
    return after.started_s != before.started_s or any(
        (getattr(after, name) or 0.0) < (getattr(before, name) or 0.0)
        for name in ("computed", "prefill_s", "requests", "prompt_tokens")
    )


def _rise(before: float | None, after: float | None) -> float:
    return max(0.0, after - before) if before is not None and after is not None else 0.0


def _within(value: float, allowed: tuple[float, float]) -> float:
    return min(max(value, allowed[0]), allowed[1])
