"""What three replicas that share nothing keep of one replica's gain, and not without what is there for it."""

from __future__ import annotations

import dataclasses

from extproc import apart, ring
from extproc.sim import chooser, figures, scenario, simulation, workloads
from tests.sim.staged import FACTORIES


def kept(asked: scenario.Scenario, factory: chooser.Factory) -> float:
    """Share of one router's gain in mean TTFT over round robin that three keep, sharing nothing."""
    three = dataclasses.replace(asked, routers=3)
    runs = [(asked, FACTORIES["round_robin"]), (asked, FACTORIES["cost"]), (three, factory)]
    base, one, left = (
        figures.figures(simulation.run(each, made, 2), each.warmup_s, each.duration_s, 8).ttft_mean_ms
        for each, made in runs
    )
    return (base - left) / (base - one)


def test_few_prompts_use_all_caches_and_not_those_where_the_ring_piles_them_up():
    def without_seats(members, settings):
        made = FACTORIES["cost"](members, settings)
        if settings.replicas > 1:
            made.router._seats = apart.Seats(ring.Ring(()))
        return made

    asked = workloads.make("hot")
    assert kept(asked, FACTORIES["cost"]) >= 0.5
    assert kept(asked, without_seats) < 0.4
