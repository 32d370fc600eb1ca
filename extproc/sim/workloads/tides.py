"""Tides: one kind of traffic whose amount, or whose servers, change: burst, slow ramp, scale-up, failure.

The traffic is conversations of a few turns over `prefixes` system prompts of 1,000 to 3,000 tokens, popular
by Zipf's law, on 13B replicas. Called by: workloads.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from extproc.sim import client, content, performance, scenario
from extproc.sim.workloads import chance

__all__ = ["burst", "failure", "ramp", "scale_up"]

_DURATION_S = 300.0
_PREFIXES = 12
_TURNS = 4


def burst(
    load: float = 1.0, *, per_s: float = 1.0, burst_per_s: float = 40.0, endpoints: int = 8
) -> scenario.Scenario:
    """Burst: conversations at `per_s`, and for one second of each minute at `burst_per_s`."""

    def rate(at_s: float) -> float:
        return load * (burst_per_s if at_s % 60 >= 59 else per_s)

    summary = f"{load * per_s:g} conversations/s, each minute a second of {load * burst_per_s:g}/s"
    return _make("burst", summary, rate, load * burst_per_s, endpoints)


def ramp(
    load: float = 1.0, *, from_per_s: float = 0.3, to_per_s: float = 6.0, endpoints: int = 8
) -> scenario.Scenario:
    """Slow ramp: conversations from `from_per_s` to `to_per_s` over the whole duration."""

    def rate(at_s: float) -> float:
        return load * (from_per_s + (to_per_s - from_per_s) * min(at_s / _DURATION_S, 1.0))

    summary = f"from {load * from_per_s:g} to {load * to_per_s:g} conversations/s"
    return _make("ramp", summary, rate, load * to_per_s, endpoints)


def scale_up(load: float = 1.0, *, per_s: float = 3.0, endpoints: int = 5) -> scenario.Scenario:
    """Scale-up: a constant load that `endpoints` can hardly carry; three more join at 120, 150 and 180 s."""
    events = tuple(
        scenario.Event(scenario.Kind.ADD, f"added-{number}", 120.0 + 30 * number) for number in range(3)
    )
    summary = f"{load * per_s:g} conversations/s, {endpoints} endpoints and three more from 120 s on"
    return _make("scale-up", summary, lambda _: load * per_s, load * per_s, endpoints, events)


def failure(load: float = 1.0, *, per_s: float = 2.5, endpoints: int = 8) -> scenario.Scenario:
    """Failure: one endpoint dies at 100 s and stays away, another restarts at 160 s."""
    events = (
        scenario.Event(scenario.Kind.FAIL, "replica-1", 100.0),
        scenario.Event(scenario.Kind.RESTART, "replica-2", 160.0),
    )
    summary = f"{load * per_s:g} conversations/s, one endpoint dies at 100 s, another restarts at 160 s"
    return _make("failure", summary, lambda _: load * per_s, load * per_s, endpoints, events)


def _make(
    name: str,
    summary: str,
    rate: Callable[[float], float],
    rate_max: float,
    endpoints: int,
    events: tuple[scenario.Event, ...] = (),
) -> scenario.Scenario:
    weights = chance.popularity(_PREFIXES)

    def starts(seed: int) -> client.Starts:
        rng = random.Random(f"{seed}/{name}")
        lengths = [rng.randint(1000, 3000) for _ in range(_PREFIXES)]
        for number, at_s in enumerate(chance.arrivals(rng, rate, rate_max)):
            prefix = rng.choices(range(_PREFIXES), cum_weights=weights)[0]
            yield client.Start(at_s, _talk(seed, number, prefix, lengths[prefix]))

    return scenario.Scenario(
        name=name,
        summary=summary,
        starts=starts,
        models=(performance.PRESETS["codellama-13b-a100-40"],) * endpoints,
        duration_s=_DURATION_S,
        warmup_s=30.0,
        events=events,
    )


def _talk(seed: int, number: int, prefix: int, system_tokens: int) -> client.Script:
    rng = random.Random(f"{seed}/talk/{number}")
    name = f"talk {number}"
    system = content.piece(seed, "system", prefix)
    talk = content.Content.of([(system, system_tokens)])
    first = content.piece(seed, name, "user", 0)
    for turn in range(rng.randint(1, _TURNS)):
        talk = talk.then(content.piece(seed, name, "user", turn), rng.randint(30, 250))
        answer, output = content.piece(seed, name, "answer", turn), rng.randint(60, 140)
        yield client.Ask(talk, output, f"prefix {prefix}", answer, name, "", system_tokens, system, first)
        talk = talk.then(answer, output)
        yield client.Pause(rng.uniform(1, 4))
