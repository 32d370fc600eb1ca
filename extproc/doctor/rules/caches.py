"""Whether prompts find their KV cache, and whether it would matter.

Called by: rules.
"""

from __future__ import annotations

from extproc.doctor import figures, gain, sample, traffic, words
from extproc.doctor.case import Case
from extproc.doctor.finding import Finding, Kind, Verdict
from extproc.doctor.rules import sharing

__all__ = [
    "caching_off",
    "expected",
    "healthy",
    "is_cheap",
    "misses",
    "nothing_shared",
    "nothing_to_win",
    "scattered",
]

_PROMPT_MIN = 500  # tokens: below, prefill costs about as much as a step
_PREFILL_MIN_S = 0.06
_QUEUE_MAX_S = 0.1
_MISSES = 0.85  # of what could be found


def is_cheap(case: Case) -> bool:
    """Whether prefill costs so little that caches hardly matter: short prompts, or a small model."""
    told = case.told
    if (told.queue_mean_s or 0.0) > _QUEUE_MAX_S or not told.prompt_mean:
        return False
    if told.prompt_mean < _PROMPT_MIN and (told.ttft_p50_s or 0.0) < 2 * _PREFILL_MIN_S:
        return True
    return (
        told.prefill_mean_s is not None
        and told.prefill_mean_s < _PREFILL_MIN_S
        and (told.hit or 0.0) < _MISSES
    )


def misses(case: Case) -> bool:
    """Whether prompts find much less than they could, and pay for it."""
    hit, load = case.told.hit, case.load
    if 2 * case.whole.restarts >= case.replicas and case.whole.restarts:
        return False  # caches that began empty just now say nothing of what they will hold
    return hit is not None and load is not None and hit < _MISSES * load.shared and not is_cheap(case)


def caching_off(case: Case) -> Finding | None:
    """Engines that reuse nothing."""
    off = [one.name for one in case.stays if one.prefix_caching is sample.Switch.OFF]
    never = not off and case.told.requests >= 50 and case.whole.counts.get("queries") == 0
    if not off and not never:
        return None
    told = case.told
    evidence = [
        f"{len(off)} of {case.replicas} replicas say enable_prefix_caching=False"
        if off
        else "no prompt token was ever looked up in the prefix cache",
        f"every prompt is computed from its first token: {words.tokens(told.prompt_mean)} tokens, "
        f"prefill {words.seconds(told.prefill_mean_s)} on average",
    ]
    return Finding(
        Kind.CACHING_OFF,
        Verdict.CONSIDER if is_cheap(case) else Verdict.ACT,
        "Prefix caching is off",
        tuple(evidence),
        (
            case.either(
                "Remove --no-enable-prefix-caching (it is on by default), or set --enable-prefix-caching.",
                "Remove --disable-radix-cache.",
            ),
            "Routing by prefix brings nothing before that. Then run the doctor again.",
        ),
        "It costs nothing and saves the prefill of what prompts share: a prompt found in the cache computes "
        "only its tail. How much is shared can't be told while nothing is cached.",
    )


def scattered(case: Case) -> Finding | None:
    """Prompts miss caches that the fleet as a whole could hold: routing by prefix."""
    told, load = case.told, case.load
    if case.replicas < 2 or case.routed or load is None or told.hit is None or not misses(case):
        return None
    found = None if case.estimate is None else case.estimate.gains.get(gain.Change.ROUTING)
    capacity = (case.whole.kv_tokens or 0) * case.replicas
    working = case.estimate.working_set if case.estimate and case.estimate.working_set else load.working_set
    evidence = [
        f"{words.share(told.hit)} of prompt tokens are found, {words.share(load.shared)} could be",
        f"the prefixes in use need about {words.tokens(working)} tokens; one replica holds "
        f"{words.tokens(case.whole.kv_tokens)}, all {case.replicas} together {words.tokens(capacity)}",
    ]
    if told.ratio is not None:
        above = f": above {figures.RATIO_MAX:.0f}, requests likely miss under load"
        evidence.append(
            f"TTFT P99 / P50 is {told.ratio:.1f}" + (above if told.ratio > figures.RATIO_MAX else "")
        )
    return Finding(
        Kind.SCATTERED,
        Verdict.ACT,
        "Prompts miss a cache that another replica holds",
        tuple(evidence),
        (
            "Route by prefix: put kvring beside the Envoy in front of these replicas (docs/quickstart.md).",
            "Nothing changes in the engines, and it can be taken away again.",
        ),
        expected(found, told, case.estimate),
        None if found is None else found.saved_usd_month,
    )


def nothing_shared(case: Case) -> Finding | None:
    """Long prompts, cache on, and nothing is found."""
    told = case.told
    on = case.whole.prefix_caching is not sample.Switch.OFF and case.whole.counts.get("queries") != 0
    if sharing.is_quiet(case) or not on or told.hit is None or case.load is not None or is_cheap(case):
        return None
    if told.hit > traffic.FOUND_MIN:
        return None
    return Finding(
        Kind.NOTHING_SHARED,
        Verdict.NOTE,
        "Next to nothing is found in the cache",
        (f"{words.share(told.hit)} of prompt tokens; prompts have {words.tokens(told.prompt_mean)} tokens",),
        (
            "See whether prompts start alike: `kvring explain` shows the blocks of two requests.",
            "Put what changes (time, ids, user data) behind what does not (tools, instructions, documents).",
        ),
        "Nothing by routing or memory as long as prompts share no beginning.",
    )


def nothing_to_win(case: Case) -> Finding | None:
    """Short prompts or a small model: leave it as it is."""
    told = case.told
    if sharing.is_quiet(case) or case.whole.prefix_caching is sample.Switch.OFF or not is_cheap(case):
        return None
    return Finding(
        Kind.NOTHING_TO_WIN,
        Verdict.WELL,
        "Prefill is cheap here: do nothing",
        (
            f"prompts of {words.tokens(told.prompt_mean)} tokens, "
            f"prefill {words.seconds(told.prefill_mean_s)}, TTFT P50 {words.seconds(told.ttft_p50_s)}, "
            f"P99 {words.seconds(told.ttft_p99_s)}",
            f"{words.share(told.hit)} of prompt tokens are found; finding all would save less than "
            f"{words.seconds(told.prefill_mean_s or told.ttft_p50_s)} a request",
        ),
        ("Keep the load balancer you have. Look again when prompts or the model grow.",),
        "Nothing worth a moving part.",
    )


def healthy(case: Case) -> Finding:
    """Nothing is wrong."""
    told = case.told
    evidence = [
        f"TTFT P50 {words.seconds(told.ttft_p50_s)}, P99 {words.seconds(told.ttft_p99_s)}"
        + (f", P99 / P50 {told.ratio:.1f}" if told.ratio is not None else ""),
    ]
    if told.hit is not None:
        could = "" if case.load is None else f", of at most {words.share(case.load.shared)} that could be"
        evidence.append(f"{words.share(told.hit)} of prompt tokens are found in a cache{could}")
    return Finding(
        Kind.HEALTHY,
        Verdict.WELL,
        "Well: nothing to do",
        tuple(evidence),
        ("Keep watching P99 / P50 and the hit rate.",),
    )


def expected(found: gain.Gain | None, told: figures.Figures, estimate: gain.Estimate | None) -> str:
    """What a change is expected to bring, in a sentence."""
    if found is None:
        return f"No estimate: {estimate.why_not}." if estimate is not None and estimate.why_not else ""
    pairs = (
        ("Found", words.share(told.hit), words.share(found.hit)),
        ("TTFT mean", words.seconds(told.ttft_mean_s), words.seconds(found.ttft_mean_s)),
        ("P50", words.seconds(told.ttft_p50_s), words.seconds(found.ttft_p50_s)),
        ("P99", words.seconds(told.ttft_p99_s), words.seconds(found.ttft_p99_s)),
    )
    changes = ", ".join(f"{label} {before} -> {after}" for label, before, after in pairs)
    return f"{changes}; {(found.throughput - 1) * 100:+.0f} % requests/s from the same users."
