"""Worth: what the choices of one pool saved and added, counted.

Called by: metrics. Source: docs/decisions/0055-worth-of-a-choice.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import Counter

from extproc import choice

__all__ = ["Worth"]


@dataclass(frozen=True, slots=True)
class Worth:
    """Counters of one pool; `gpus`: behind each of its endpoints [> 0]."""

    gpus: float
    saved_tokens: Counter
    saved_s: Counter
    added_tokens: Counter
    added_s: Counter

    def count(self, made: choice.Choice) -> None:
        """Count one choice."""
        saved = made.saved_tokens
        seconds = abs(saved) / made.prefill_tokens_per_s * self.gpus
        if saved > 0:
            self.saved_tokens.inc(saved)
            self.saved_s.inc(seconds)
        elif saved < 0:
            self.added_tokens.inc(-saved)
            self.added_s.inc(seconds)
