"""Baselines: the rules of other routers, for comparison; one file a router, each with its source.

Every rule gets the signals that its real router has: requests it counts itself at once, scraped values as
old as its scrapes. What is simplified stands in each module and in docs/baselines.md. Round robin, random
and least load are policies of the production router.

Called by: `extproc.sim.policies`, which reads `BASELINES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from extproc.sim import chooser
from extproc.sim.baselines import (
    aibrix,
    cache_aware,
    dualmap,
    dynamo,
    envoy_hash,
    inflight,
    kubeai,
    llmd,
    lmetric,
    ranvier,
)
from extproc.sim.baselines.baseline import Asked, Baseline

__all__ = ["BASELINES", "SCRAPE_S", "Asked", "Baseline"]

_RULES: tuple[type[Baseline], ...] = (
    inflight.LeastInflight,
    inflight.PowerOfTwo,
    kubeai.KubeAI,
    envoy_hash.EnvoyHash,
    ranvier.HashMedian,
    ranvier.HashBounded,
    cache_aware.CacheAware,
    cache_aware.CacheAwareTight,
    llmd.Weighted,
    llmd.Sticky,
    llmd.Sticky2s,
    dynamo.Dynamo,
    dynamo.DynamoW4,
    lmetric.LMetric,
    dualmap.DualMap,
    aibrix.Aibrix,
)

BASELINES: Mapping[str, chooser.Factory] = MappingProxyType({rule.name: rule for rule in _RULES})
"""By the name used on the command line, in the order to show them."""

SCRAPE_S: Mapping[str, float] = MappingProxyType({llmd.Weighted.name: llmd.SCRAPE_S})
"""How often the real router reads the engines' metrics [s], of rules that do so other than once a second."""
