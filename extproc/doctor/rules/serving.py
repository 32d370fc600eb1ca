"""What users feel: refusals, faults, queues, a long tail.

Called by: rules.
"""

from __future__ import annotations

from extproc.doctor import figures, words
from extproc.doctor.case import Case
from extproc.doctor.finding import Finding, Kind, Verdict

__all__ = ["asleep", "faults", "queueing", "refused", "tail"]

_ERRORS_MIN = 0.01
_QUEUE_SHARE = 0.5  # of the TTFT
_QUEUE_MIN_S = 0.1
_TAIL_MIN_S = 0.5  # a P99 below is well whatever the P50 is


def asleep(case: Case) -> Finding | None:
    """Replicas that sleep."""
    sleeping = [one.name for one in case.stays if one.asleep]
    if not sleeping:
        return None
    return Finding(
        Kind.ASLEEP,
        Verdict.NOTE,
        f"{len(sleeping)} of {case.replicas} replicas sleep",
        (", ".join(sleeping),),
        ("Wake them (POST /wake_up), or take them out of the load balancer.",),
    )


def refused(case: Case) -> Finding | None:
    """Requests refused by a full queue."""
    rejected = case.told.rejected
    if rejected is None or rejected < _ERRORS_MIN:
        return None
    times = case.whole.counts.get("rejections", 0.0)
    return Finding(
        Kind.REFUSED,
        Verdict.ACT,
        f"{words.share(rejected)} of all requests were refused: the engines' queues were full",
        (
            f"{times:,.0f} rejections beside {case.told.requests:,.0f} requests served",
            "streams are refused with status 200 and an error event, so retries on 5xx do not see them",
        ),
        (
            "Look first whether another finding explains the queue; misses fill queues.",
            "Then add replicas, or raise "
            + case.either("--max-num-queued-reqs / --max-num-queued-tokens", "--max-queued-requests")
            + " if waiting is better than an error.",
        ),
        "No refusals.",
    )


def faults(case: Case) -> Finding | None:
    """HTTP answers with 5xx that refusals do not explain."""
    faulty, answers = case.told.faulty, case.whole.counts.get("answers", 0.0)
    if faulty is None:
        return None
    rest = faulty * answers - case.whole.counts.get("rejections", 0.0)
    if not answers or rest / answers < _ERRORS_MIN:
        return None
    return Finding(
        Kind.FAULTS,
        Verdict.ACT,
        f"{words.share(faulty)} of all HTTP answers were 5xx",
        (f"{faulty * answers:,.0f} of {answers:,.0f} answers to POST",),
        ("Look at the engines' logs; a router can only avoid a replica that fails, not mend it.",),
        "No failed requests.",
    )


def queueing(case: Case) -> Finding | None:
    """Requests wait for room although caches do what they can."""
    queue, ttft = case.told.queue_mean_s, case.told.ttft_mean_s
    if not queue or not ttft or queue < _QUEUE_MIN_S or queue < _QUEUE_SHARE * ttft:
        return None
    misses = case.load is not None and case.told.hit is not None and case.told.hit < 0.85 * case.load.shared
    lopsided = (case.spread.requests or 1.0) >= 1.5
    evidence = [f"a request waits {words.seconds(queue)} of its {words.seconds(ttft)} to the first token"]
    if case.told.waiting_mean is not None:
        evidence.append(
            f"{words.count(case.told.waiting_mean)} waiting per replica on average, "
            f"{words.count(case.told.waiting_max)} at most"
        )
    if misses or lopsided:
        return Finding(
            Kind.QUEUEING,
            Verdict.NOTE,
            "Requests queue; other findings explain it",
            tuple(evidence),
            ("Act on those first, then look again.",),
        )
    return Finding(
        Kind.QUEUEING,
        Verdict.CONSIDER,
        "Requests queue although caches hit: the fleet is short of capacity",
        tuple(evidence),
        (
            "Add replicas, or limit what is let in.",
            "If KV usage is far below 1, raise "
            + case.either("--max-num-seqs", "--max-running-requests")
            + ".",
        ),
        f"Up to {words.seconds(queue)} less to the first token on average.",
    )


def tail(case: Case) -> Finding | None:
    """P99 far above P50, and no better explanation."""
    ratio, p99 = case.told.ratio, case.told.ttft_p99_s
    if ratio is None or p99 is None or ratio <= figures.RATIO_MAX or p99 < _TAIL_MIN_S:
        return None
    return Finding(
        Kind.TAIL,
        Verdict.NOTE,
        f"TTFT P99 is {ratio:.0f} times P50",
        (
            f"P50 {words.seconds(case.told.ttft_p50_s)}, P99 {words.seconds(p99)}; "
            f"above {figures.RATIO_MAX:.0f} requests likely miss the cache under load",
        ),
        ("If no finding above explains it: prompts of very different lengths, or bursts.",),
    )
