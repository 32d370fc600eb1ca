"""How the load is shared between replicas, and whether there is enough of it to judge.

Called by: rules.
"""

from __future__ import annotations

from extproc.doctor import words
from extproc.doctor.case import Case
from extproc.doctor.finding import Finding, Kind, Verdict

__all__ = ["imbalance", "is_quiet", "quiet", "unlike"]

_REQUESTS_MIN = 50
_BUSIEST = 1.5  # over the mean; a ring of 100 points a replica has 1.1 to 1.3 by chance
_SLOWEST = 3.0  # TTFT P99 over the others' median
_HURTS_S = 0.5


def is_quiet(case: Case) -> bool:
    """Whether there were too few requests to judge by."""
    return case.told.requests < _REQUESTS_MIN


def quiet(case: Case) -> Finding | None:
    """Too few requests."""
    if not is_quiet(case):
        return None
    return Finding(
        Kind.QUIET,
        Verdict.NOTE,
        "Too little traffic to judge",
        (f"{case.told.requests:,.0f} requests seen; quantiles need {_REQUESTS_MIN} or more",),
        ("Look again under load: --interval 60, or a Prometheus server with --window.",),
    )


def imbalance(case: Case) -> Finding | None:
    """One replica does far more than its part, and its users feel it."""
    spread, told = case.spread, case.told
    busiest = max(spread.requests or 1.0, spread.computed or 1.0)
    if is_quiet(case) or busiest < _BUSIEST:
        return None
    at = spread.requests_at if (spread.requests or 1.0) >= (spread.computed or 1.0) else spread.computed_at
    hurts = (spread.slowest or 1.0) >= _SLOWEST or (
        (told.waiting_max or 0.0) > 1 and (told.ttft_p99_s or 0.0) > _HURTS_S
    )
    evidence = [
        f"{at}: {spread.requests or 1.0:.1f} times the mean of requests, "
        f"{spread.computed or 1.0:.1f} times the mean of prompt tokens computed"
    ]  # fmt: skip
    if spread.slowest:
        evidence.append(f"{spread.slowest_at}: TTFT P99 {spread.slowest:.1f} times that of the others")
    evidence += [
        f"{one.name}: {words.count(one.peaks['waiting'])} waiting at most"
        for one in case.stays
        if one.name == at and one.peaks.get("waiting")
    ]
    return Finding(
        Kind.IMBALANCE,
        Verdict.ACT if hurts else Verdict.NOTE,
        f"Load is uneven: {at} does {busiest:.1f} times its part",
        tuple(evidence),
        (
            "Balance requests, not connections: a few long-lived HTTP/2 or keep-alive connections pin their "
            "traffic.",
            "Look for unequal weights, a session cookie, or a hash of one hot key (a shared system prompt).",
            "Route by prefix with a bound on work (kvring's `cost` or `ring`): a hot prefix spills over "
            "before it drowns its home.",
        ),
        f"The fleet's TTFT near that of its calm replicas; room for about {(busiest - 1) * 100:.0f} % more "
        "load before the same replica fills up again."
        if hurts
        else "Nothing now: nobody waits for it. It will bind first when load grows.",
    )


def unlike(case: Case) -> Finding | None:
    """Replicas of one model that are set up differently."""
    capacities = sorted({one.kv_tokens for one in case.stays if one.kv_tokens})
    switches = {one.prefix_caching for one in case.stays}
    blocks = {one.block_tokens for one in case.stays if one.block_tokens}
    evidence = []
    if len(capacities) > 1 and capacities[-1] > 1.1 * capacities[0]:
        evidence.append(f"KV cache: {words.tokens(capacities[0])} to {words.tokens(capacities[-1])} tokens")
    if len(switches) > 1:
        evidence.append("prefix caching is not the same everywhere")
    if len(blocks) > 1:
        evidence.append("KV block sizes: " + ", ".join(str(block) for block in sorted(blocks)))
    if not evidence:
        return None
    return Finding(
        Kind.UNLIKE,
        Verdict.NOTE,
        "Replicas are set up differently",
        tuple(evidence),
        ("Give a router their weights, or make them alike.",),
    )
