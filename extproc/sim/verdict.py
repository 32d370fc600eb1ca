"""Verdict: whether routing by prefix pays on a load, said plainly, and if not, why.

It pays where kvring's default policy answers sooner than the baseline, mean TTFT at least 10 % and 20 ms
less, or serves at least 3 % more requests. It harms where mean TTFT is more than 5 % and 5 ms worse, or
throughput more than 3 % less. Between the two it does neither: then the likeliest cause is named.

Invariant: no word that the figures do not bear out. Called by: cli.simulate, comparison_page.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from extproc.sim import comparison, figures, policies

__all__ = ["Pays", "Verdict", "judge"]

_GAIN, _GAIN_MS, _MORE_WORK = 0.10, 20.0, 0.03
_HARM, _HARM_MS = 0.05, 5.0
_SHORT_TOKENS = 1000.0
_NOTHING_SHARED = 0.10
_ALIKE = 0.05


class Pays(enum.StrEnum):
    """Whether it does."""

    YES = "yes"
    NO = "no"
    HARMS = "harms"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`text`: one or two sentences with the figures."""

    pays: Pays
    text: str


def judge(made: comparison.Comparison) -> Verdict | None:
    """The verdict on kvring's default policy; None where it or something to compare it with did not run."""
    spreads = made.spreads()
    if policies.OWN not in spreads or made.baseline == policies.OWN:
        return None
    base, own = spreads[made.baseline], spreads[policies.OWN]
    before, after = base["ttft_mean_ms"].mean, own["ttft_mean_ms"].mean
    if before is None or after is None:
        return None
    more = _ratio(own, base, "requests_per_s") - 1
    told = (
        f"TTFT mean {before:,.0f} -> {after:,.0f} ms, P99 {_shown(base)} -> {_shown(own)} ms, "
        f"requests/s {more:+.1%}"
    )
    if (after <= before * (1 - _GAIN) and after <= before - _GAIN_MS) or more >= _MORE_WORK:
        return Verdict(Pays.YES, f"Prefix routing pays here: {told}.")
    if (after > before * (1 + _HARM) and after > before + _HARM_MS) or more < -_MORE_WORK:
        return Verdict(Pays.HARMS, f"Prefix routing does harm here: {told}. Do not use it for this load.")
    return Verdict(Pays.NO, f"Prefix routing does not pay here: {told}. {_cause(made, base, own)}")


def _cause(
    made: comparison.Comparison, base: dict[str, figures.Spread], own: dict[str, figures.Spread]
) -> str:
    """Why there is nothing to gain: the first of the usual causes that the figures show."""
    tokens, miss_s = _mean(own, "prompt_tokens_mean"), made.asked.models[0].token_s
    hit, other = _mean(own, "engine_hit"), _mean(base, "engine_hit")
    if hit < _NOTHING_SHARED:
        return f"Prompts share next to nothing: at most {hit:.0%} of their tokens were found in a cache."
    if tokens < _SHORT_TOKENS:
        return (
            f"Prompts are short, {tokens:,.0f} tokens on average: a whole miss costs "
            f"{tokens * miss_s * 1000:,.0f} ms."
        )
    if hit - other < _ALIKE:
        return (
            f"The caches hold what is shared on every replica: {made.baseline} finds {other:.0%} of prompt "
            f"tokens as well."
        )
    return (
        f"{hit - other:.0%} more prompt tokens were found in a cache, but this model computes them in "
        f"{tokens * (hit - other) * miss_s * 1000:,.0f} ms, and nothing waits for that."
    )


def _ratio(own: dict[str, figures.Spread], base: dict[str, figures.Spread], figure: str) -> float:
    other = _mean(base, figure)
    return _mean(own, figure) / other if other else 1.0


def _mean(spreads: dict[str, figures.Spread], figure: str) -> float:
    return spreads[figure].mean or 0.0


def _shown(spreads: dict[str, figures.Spread]) -> str:
    return f"{_mean(spreads, 'ttft_p99_ms'):,.0f}"
