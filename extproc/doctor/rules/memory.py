"""Whether there is memory for what should stay cached: GPU, host memory, a store outside.

The second article's order: GPU cache first, host memory when the working set is beyond it, an external store
when processes restart often or one machine's memory is not enough.

Called by: rules.
"""

from __future__ import annotations

from extproc.doctor import gain, words
from extproc.doctor.case import Case
from extproc.doctor.finding import Finding, Kind, Verdict
from extproc.doctor.rules import caches, sharing

__all__ = ["cache_too_small", "host_too_small", "kv_pressure", "restarts"]

_FULL = 0.9  # of the fleet's KV cache: a working set above does not fit whatever the routing
_PREEMPTIONS_MIN = 0.01
_USAGE_MIN = 0.97

_CAVEATS = (
    "Mind the store's own memory: it stays held while the engine restarts, so host memory must do for both.",
    "Try your model first: not every attention layout is supported by every connector.",
)


def restarts(case: Case) -> Finding | None:
    """Processes ended within the time watched, and took their caches along."""
    if not case.whole.restarts:
        return None
    matters = not caches.is_cheap(case) and (case.told.prompt_mean or 0.0) >= 1000
    return Finding(
        Kind.RESTARTS,
        Verdict.ACT if matters else Verdict.NOTE,
        f"{case.whole.restarts} restarts in {words.seconds(case.whole.watched_s)}: their caches began empty",
        (
            f"prompts of {words.tokens(case.told.prompt_mean)} tokens are computed anew after each restart",
            ", ".join(one.name for one in case.stays if one.restarts),
        ),
        (
            "Find out why they restart (OOM, probes, rollouts).",
            "If they must: keep KV outside the process, "
            + case.either(
                "LMCache: --kv-offloading-backend lmcache, or its server by --kv-transfer-config.",
                "HiCache with a storage backend: --hicache-storage-backend.",
            ),
            *_CAVEATS,
        ),
        "Prompts are found again at once after a restart, at the price of loading: tens of ms for 10,000 "
        "tokens in place of over a second of prefill. GPU and CPU tiers die with the process."
        if matters
        else "Little here: prompts are cheap to compute again.",
    )


def cache_too_small(case: Case) -> Finding | None:
    """What is asked for again does not fit the GPUs' caches together."""
    load, told = case.load, case.told
    if load is None or not caches.misses(case) or case.whole.host_kv_tokens or not case.whole.kv_tokens:
        return None
    estimate = case.estimate
    working = estimate.working_set if estimate and estimate.working_set else load.working_set
    capacity = case.whole.kv_tokens * case.replicas
    if working < _FULL * capacity:
        return None
    gains = estimate.gains if estimate else {}
    both = gains.get(gain.Change.BOTH)
    found = both or gains.get(gain.Change.OFFLOAD)
    host = gain.HOST_TIMES * case.whole.kv_tokens
    size = case.either("--kv-offloading-size GIB", "--enable-hierarchical-cache --hicache-size GB")
    together = " and routing by prefix" if both else ""
    text = caches.expected(found, told, estimate)
    return Finding(
        Kind.CACHE_TOO_SMALL,
        Verdict.ACT,
        "What is asked for again does not fit the GPUs' caches",
        (
            f"the prefixes in use need about {words.tokens(working)} tokens; the KV cache of "
            + (f"all {case.replicas} replicas" if case.replicas > 1 else "the only replica")
            + f" holds {words.tokens(capacity)}",
            f"{words.share(told.hit)} of prompt tokens are found, {words.share(load.shared)} could be",
        ),
        (
            f"Add a tier in host memory to each replica: {size}, for about {words.tokens(host)} tokens (the "
            "engine logs GPU memory and tokens of the KV cache; their ratio gives the bytes a token).",
            *(("Then route by prefix, so that each tier holds its own part.",) if both else ()),
        ),
        f"With {words.tokens(host)} tokens of host memory each{together}: {text}" if found else text,
        None if found is None else found.saved_usd_month,
    )


def host_too_small(case: Case) -> Finding | None:
    """A CPU tier is there, and what is asked for again does not fit it either."""
    load, host = case.load, case.whole.host_kv_tokens
    if load is None or not host or not caches.misses(case):
        return None
    capacity = (host + (case.whole.kv_tokens or 0)) * case.replicas
    working = case.estimate.working_set if case.estimate and case.estimate.working_set else load.working_set
    if working < _FULL * capacity:
        return None
    return Finding(
        Kind.HOST_TOO_SMALL,
        Verdict.CONSIDER,
        "What is asked for again does not fit host memory either",
        (
            f"about {words.tokens(working)} tokens are in use; GPU and host memory of all replicas hold "
            f"{words.tokens(capacity)}",
        ),
        (
            "Enlarge the tier if the machines have memory left.",
            "Else keep KV in a store that replicas share, "
            + case.either("LMCache (--kv-transfer-config)", "HiCache with a storage backend")
            + ".",
            *_CAVEATS,
        ),
        "Up to "
        f"{words.share(load.shared)} of prompt tokens found, at the price of loading them over the network.",
    )


def kv_pressure(case: Case) -> Finding | None:
    """Live requests need more KV cache than there is."""
    told = case.told
    preempted = told.preemptions_per_request or 0.0
    full = (told.kv_usage_max or 0.0) >= _USAGE_MIN and (told.waiting_mean or 0.0) >= 1
    if sharing.is_quiet(case) or (preempted < _PREEMPTIONS_MIN and not full):
        return None
    return Finding(
        Kind.KV_PRESSURE,
        Verdict.ACT if preempted >= 10 * _PREEMPTIONS_MIN else Verdict.CONSIDER,
        "Requests in flight need more KV cache than there is",
        (
            f"KV usage {words.share(told.kv_usage_mean)} on average, "
            f"{words.share(told.kv_usage_max)} at most; {words.count(told.waiting_mean)} waiting per replica",
            f"{preempted * 100:.1f} preemptions per 100 requests, each computes its prompt and answer again",
        ),
        (
            "Fewer requests at a time: " + case.either("--max-num-seqs", "--max-running-requests") + ".",
            "More room: "
            + case.either(
                "--gpu-memory-utilization, --kv-cache-dtype fp8",
                "--mem-fraction-static, --kv-cache-dtype fp8_e5m2",
            )
            + ", more GPUs a replica, or more replicas.",
        ),
        "No work done twice; shorter queues.",
    )
