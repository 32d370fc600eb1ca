"""Observed: an engine's speed and limits as its own `/metrics` tell them, to simulate one's own fleet.

    token_s   = prefill seconds / prompt tokens computed     all requests since the process began
    weights_s = mean time between tokens - overhead          a decode step reads all weights

A request's prefill time counts the steps it shared with others, so on a busy engine the rate comes out too
low, never too high. What the engine does not tell stays as in the preset, and is named.

Never: an exception, whatever the text is. Called by: cli.simulate.
Source: vLLM's `cache_config_info`, `request_prefill_time_seconds`, `inter_token_latency_seconds` (before 0.11
`time_per_output_token_seconds`).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

from extproc.signals import Reader, Reading, text
from extproc.sim import performance

__all__ = ["Observed", "observe"]

_BETWEEN_TOKENS = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
_TOKENS_MIN = 10_000  # computed before their rate is believed
_STEPS_MIN = 100
_RATE_MIN, _RATE_MAX = 10.0, 10_000_000.0  # tokens/s
_STEP_MAX_S = 10.0


@dataclass(frozen=True, slots=True)
class Observed:
    """`model`: the preset with what was observed. `told`: what that was, in phrases; `untold`: what not."""

    model: performance.Performance
    told: tuple[str, ...]
    untold: tuple[str, ...]


def observe(exposition: bytes, preset: performance.Performance) -> Observed:
    """What an exposition says of the engine behind it."""
    reading = Reader().read(exposition)
    changes: dict[str, float | int] = {}
    told, untold = [], []
    if reading.kv_tokens:
        changes["kv_tokens"] = max(reading.kv_tokens, preset.block_tokens)
        told.append(f"KV cache of {reading.kv_tokens:,} tokens")
    else:
        untold.append(f"KV cache (kept at {preset.kv_tokens:,} tokens)")
    if reading.host_kv_tokens:
        changes["host_kv_tokens"] = reading.host_kv_tokens
        told.append(f"CPU tier of {reading.host_kv_tokens:,} tokens")
    rate = _prefill_rate(reading)
    if rate is not None:
        changes["token_s"] = 1 / rate
        told.append(f"prefill of {rate:,.0f} tokens/s")
    else:
        untold.append("prefill rate (kept at " + _rate(preset) + ")")
    step_s = _step_s(exposition)
    if step_s is not None and step_s > preset.overhead_s:
        changes["weights_s"] = step_s - preset.overhead_s
        told.append(f"{step_s * 1000:,.1f} ms between tokens")
    else:
        untold.append(
            f"time between tokens (kept at {(preset.weights_s + preset.overhead_s) * 1000:,.1f} ms)"
        )
    return Observed(replace(preset, **changes), tuple(told), tuple(untold))  # type: ignore[arg-type]  # by name


def _prefill_rate(reading: Reading) -> float | None:
    """Prompt tokens computed per second [tokens/s], None while too few were."""
    if not reading.computed or not reading.prefill_s or reading.computed < _TOKENS_MIN:
        return None
    return min(max(reading.computed / reading.prefill_s, _RATE_MIN), _RATE_MAX)


def _step_s(exposition: bytes) -> float | None:
    """Mean time between two tokens of an answer [s], None while too few were seen."""
    finder = text.Finder()
    for name in _BETWEEN_TOKENS:
        total = finder.total(exposition, text.Name(f"{name}_sum"), operator.add)
        count = finder.total(exposition, text.Name(f"{name}_count"), operator.add)
        if total and count and count >= _STEPS_MIN and total / count <= _STEP_MAX_S:
            return total / count
    return None


def _rate(preset: performance.Performance) -> str:
    return f"{1 / preset.token_s:,.0f} tokens/s" if preset.token_s else "infinity"
