"""Twin: a simulated fleet fitted until it shows what was measured; then one thing about it is changed.

The twin's users ask in a closed loop: think, send one of K prefixes of equal popularity and a tail of their
own, read the answer. Four things are fitted, each to the figure that it moves:

    K          <- hit rate          working set = K * mean prefix
    token_s    <- mean prefill      speed of the engine; where prefill is not told, mean TTFT
    weights_s  <- time per token    (end to end - TTFT) / output tokens
    users      =  requests/s * (end to end + think)        Little's law

Everything else (replicas, KV cache, lengths) is told by the metrics. What a change brings is the ratio of two
runs of the twin, applied to what was measured.

Invariant: a function of its arguments; at most `_ROUNDS` + 1 runs of about `_REQUESTS` requests for a fit.
Called by: gain. Source: the engine model of `sim.performance`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from extproc.doctor import figures, stay, traffic
from extproc.sim import client, content, performance, policies, scenario, simulation
from extproc.sim import figures as simulated

__all__ = ["ENDPOINTS_MAX", "MisfitError", "Shown", "Twin", "fit", "run"]

ENDPOINTS_MAX = 64
_ROUNDS = 8
_REQUESTS = 700
_FILL_REQUESTS_MAX = 2000
_CLOSE = 0.08  # relative error at which a fit is good
_OVERHEAD_S = 0.002
_PROMPT_BLOCKS = 64  # at least: larger blocks than the engine's make a run quicker
_WITHIN = 0.999
_BUDGETS = (2048, 8192, 16384)
# Reading all of the KV cache takes this many times as long as reading the weights. More where memory is
# ample, but there contexts fill little of it.
_KV_READ = 0.35
_LOAD_TOKENS_PER_S = 90_000.0
_THINK_MIN_S = 0.05  # or users whose requests fail would ask without end in no time
_SEED = 1
_OPEN_MAX = 400  # requests a replica
_FASTER_MAX = 4  # times the requests that are expected at most: what bounds a run


class MisfitError(Exception):
    """No twin can be made; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Twin:
    """A fitted fleet. `working_set` [tokens]. `error`: the largest relative error of hit, prefill,
    time per token.
    """

    traffic: traffic.Traffic
    model: performance.Performance
    endpoints: int
    users: int
    think_s: float
    requests_per_s: float
    working_set: float
    routed: bool
    error: float = 0.0

    def scenario(self) -> scenario.Scenario:
        """The twin as something to simulate: a warm-up in which the caches fill, then the measured part."""
        prefixes = max(round(self.working_set / self._prefix_mean), 1)
        room = self.model.kv_tokens - 1.5 * self.traffic.tail_mean - self.traffic.output_mean
        room = max(room - self.model.block_tokens, 1.0)  # what does not fit would be refused
        lengths = [min(length, int(room)) for length in self.traffic.lengths(prefixes)]
        random.Random(_SEED).shuffle(lengths)
        pieces = [content.piece("twin", "prefix", number) for number in range(prefixes)]
        heads = [content.Content.of([pair]) for pair in zip(pieces, lengths, strict=True)]

        def starts(seed: int) -> client.Starts:
            for user in range(self.users):
                yield client.Start(0.0, self._user(seed, user, heads))

        stored = self.model.kv_tokens + self.model.host_kv_tokens
        fill = 1.5 * self.endpoints * stored / self.traffic.prompt_mean
        warmup_s = min(max(fill, _REQUESTS / 4), _FILL_REQUESTS_MAX) / self.requests_per_s
        return scenario.Scenario(
            name="twin",
            summary="a fleet as it was measured",
            starts=starts,
            models=(self.model,) * self.endpoints,
            duration_s=warmup_s + _REQUESTS / self.requests_per_s,
            warmup_s=warmup_s,
        )

    @property
    def _prefix_mean(self) -> float:
        return max(self.traffic.prompt_mean - self.traffic.tail_mean, 1.0)

    def _user(self, seed: int, user: int, heads: list[content.Content]) -> client.Script:
        rng = random.Random(f"{seed}/twin/{user}")
        # What is computed of a found prefix's last, partial block is in the tail already.
        tail = max(self.traffic.tail_mean - self.model.block_tokens / 2, 1.0)
        # Where what was measured does not go together, users would ask far more often than they did.
        most = math.ceil(_FASTER_MAX * (_FILL_REQUESTS_MAX + _REQUESTS) / self.users)
        for turn in range(most):
            yield client.Pause(self.think_s * rng.uniform(0.5, 1.5))
            number = rng.randrange(len(heads))
            prompt = heads[number].then(
                content.piece(seed, user, turn), max(round(tail * rng.uniform(0.5, 1.5)), 1)
            )
            output = max(round(self.traffic.output_mean), 1)
            yield client.Ask(prompt, output, f"prefix {number}", system_tokens=heads[number].tokens)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a twin shows. `prefill_mean_s`: admission to first token, the warm-up included."""

    figures: simulated.Figures
    prefill_mean_s: float


def run(twin: Twin, policy: str) -> Shown:
    """What the twin shows under a policy of routing."""
    asked = twin.scenario()
    made = simulation.Simulation(asked, policies.factories()[policy], _SEED)
    found = simulated.figures(made.run(), asked.warmup_s, asked.duration_s, twin.endpoints)
    tallies = [one.engine.tally.prefill_s for one in made.replicas.values() if one.engine is not None]
    count = sum(one.count for one in tallies)
    return Shown(found, sum(one.total for one in tallies) / count if count else 0.0)


def fit(
    seen: stay.Stay,
    told: figures.Figures,
    load: traffic.Traffic,
    *,
    routed: bool,
    think_s: float,
    progress: Callable[[float], None] | None = None,
) -> tuple[Twin, Shown]:
    """The twin of a fleet, and what it shows as it is. `think_s`: from an answer to its reader's next
    request.

    Raises: MisfitError.
    """
    twin = _first(seen, told, load, routed=routed, think_s=think_s)
    best: tuple[Twin, Shown] | None = None
    for number in range(_ROUNDS):
        if progress is not None:
            progress(number / _ROUNDS)
        found = run(twin, "cost" if routed else "round_robin")
        hit, prefill, step = _off(found, told)
        twin = replace(twin, error=max(abs(1 - off) for off in (hit, prefill, step)))
        if best is None or twin.error < best[0].error:
            best = twin, found
        if twin.error <= _CLOSE:
            break
        model = replace(
            twin.model,
            token_s=twin.model.token_s * _bounded(prefill**-0.8),
            weights_s=max(twin.model.weights_s * _bounded(step**-0.7), 0.0005),
        )
        twin = replace(twin, model=model, working_set=twin.working_set * _bounded(hit))
    if best is None:  # never: there is a first round
        raise MisfitError("no round was run")
    return best


def _first(
    seen: stay.Stay, told: figures.Figures, load: traffic.Traffic, *, routed: bool, think_s: float
) -> Twin:
    """Where fitting begins."""
    rate, e2e, ttft = told.requests_per_s, told.e2e_mean_s, told.ttft_mean_s
    if not rate:
        raise MisfitError("how many requests came per second is unknown: take two samples (--interval)")
    if not e2e or not ttft or not told.hit or not seen.kv_tokens:
        raise MisfitError("the engine does not tell its latencies, hits or KV capacity")
    if rate * e2e > _OPEN_MAX * seen.replicas:
        raise MisfitError("more requests would be open at a time than can be simulated")
    computed = load.prompt_mean * (1 - told.hit)
    prefill_s = told.prefill_mean_s or ttft
    token_s = min(max(0.6 * prefill_s / max(computed, 1.0), 2e-6), 2e-3)
    step_s = seen.histograms["token_s"].quantile(0.25) if "token_s" in seen.histograms else None
    step_s = step_s or max(e2e - ttft, 0.001) / load.output_mean
    kv_tokens = max(seen.kv_tokens, round(2 * (load.prompt_mean + load.output_mean)))
    block = max(16, round(max(load.prompt_mean, 1.0)) // _PROMPT_BLOCKS // 16 * 16)
    budget = _budget(seen)
    model = performance.Performance(
        weights_s=max(step_s - _OVERHEAD_S, 0.0005),
        overhead_s=_OVERHEAD_S,
        token_s=token_s,
        context_s=_KV_READ * step_s / kv_tokens,
        attention_s=0.0,
        kv_tokens=kv_tokens,
        budget_tokens=budget,
        host_kv_tokens=seen.host_kv_tokens or 0,
        load_tokens_per_s=_LOAD_TOKENS_PER_S,
        block_tokens=block,
    )
    return Twin(
        traffic=load,
        model=model,
        endpoints=min(seen.replicas, ENDPOINTS_MAX),
        users=max(round(rate * (e2e + think_s) * min(1.0, ENDPOINTS_MAX / seen.replicas)), 1),
        think_s=max(think_s, _THINK_MIN_S),
        requests_per_s=rate * min(1.0, ENDPOINTS_MAX / seen.replicas),
        working_set=load.working_set,
        routed=routed,
    )


def _off(shown: Shown, told: figures.Figures) -> tuple[float, float, float]:
    """The twin's hit, mean prefill (or TTFT) and time after the first token, over the measured ones."""
    found = shown.figures
    first_s = (found.ttft_mean_ms or 0.0) / 1000
    rest_s = (found.e2e_mean_ms or 0.0) / 1000 - first_s
    told_rest_s = (told.e2e_mean_s or 0.0) - (told.ttft_mean_s or 0.0)
    if told.prefill_mean_s:
        prefill = shown.prefill_mean_s / told.prefill_mean_s
    else:
        prefill = first_s / max(told.ttft_mean_s or 0.0, 1e-6)
    hit = (found.engine_hit or 0.0) / max(told.hit or 0.0, 1e-3)
    return max(hit, 1e-3), max(prefill, 1e-3), max(rest_s, 1e-6) / max(told_rest_s, 1e-6)


def _budget(seen: stay.Stay) -> int:
    """Tokens of a step at most: the least usual limit that no step observed was above."""
    steps = seen.histograms.get("step_tokens")
    if steps is None or not steps.count:
        return _BUDGETS[0]
    # A full step counts the first tokens it yields on top: it lies one bucket above its limit.
    return next((budget for budget in _BUDGETS if steps.up_to(2 * budget) > _WITHIN), _BUDGETS[-1])


def _bounded(factor: float) -> float:
    return min(max(factor, 0.5), 2.0)
