"""Workloads: loads to simulate, one file a family; `WORKLOADS` names every one.

A workload is a scenario made with its own servers. Called by: cli.simulate, tests.
"""

from __future__ import annotations

from collections.abc import Callable

from extproc.sim import scenario
from extproc.sim.workloads import first_article

__all__ = ["WORKLOADS"]

WORKLOADS: dict[str, Callable[[], scenario.Scenario]] = {"first": first_article.make}
