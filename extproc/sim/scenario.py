"""Scenario: what a simulation runs: servers, clients, routers, and what goes wrong.

A workload gives the scripts and, as a scenario, the servers they were made for; the command line replaces
single values. Times are seconds since the run began.

Called by: workloads (make), cli.simulate (replaces), simulation (reads).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from extproc import router
from extproc.sim import client, performance

__all__ = ["Event", "Kind", "Scenario", "Sharing"]

_ROUTER_BYTES_PER_TOKEN = 4


class Kind(enum.StrEnum):
    """What may happen to a replica."""

    FAIL = "fail"  # its process ends and stays away
    RESTART = "restart"  # its process ends, if it runs, and a new one is up after `boot_s`
    ADD = "add"  # a new replica joins


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` happens to the replica `endpoint` at `at_s`; "*" names all there are."""

    kind: Kind
    endpoint: str
    at_s: float


class Sharing(enum.StrEnum):
    """What several routers know of each other."""

    NOTHING = "nothing"
    EXACT = "exact"  # one view: as one router
    DELAYED = "delayed"  # dispatches and ends arrive at the others `sharing_delay_s` later


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run but for policy and seed.

    `starts`: the scripts of a seed. `models`: one a replica; those that join later are as the first.
    `external_kv_tokens`: store shared by all, 0 for none. Requests begun in [`warmup_s`, `duration_s`) are
    measured and read to their end. `client_s`: what network and client add to every answer. `shown`: position
    of the token at which a buffering client believes to see the first, 0 for none. `detect_s`: from a
    replica's end or start until the routers know; `boot_s`: from a restart until it serves. `reuse`: False
    for engines without prefix caching. `sees_first_token`: whether routers see answers begin (the gateway
    sends them answer bodies); else they go by their estimate. `scrape_s`: between two looks at
    the engines' metrics.
    """

    name: str
    summary: str
    starts: Callable[[int], client.Starts]
    models: tuple[performance.Performance, ...]
    duration_s: float
    warmup_s: float = 0.0
    external_kv_tokens: int = 0
    client_s: float = 0.0
    shown: int = 0
    routers: int = 1
    sharing: Sharing = Sharing.NOTHING
    sharing_delay_s: float = 0.05
    detect_s: float = 1.0
    boot_s: float = 20.0
    events: tuple[Event, ...] = ()
    reuse: bool = True
    sees_first_token: bool = True
    scrape_s: float = 1.0
    settings: router.Settings = field(default_factory=router.Settings)

    @property
    def unheard(self) -> int:
        """Other routers of which each knows nothing."""
        return self.routers - 1 if self.sharing is Sharing.NOTHING else 0

    def router_settings(self) -> router.Settings:
        """`settings` with what an operator would have told the router of these servers."""
        model = self.models[0]
        prefill_tokens_per_s = 1 / model.token_s if model.token_s else self.settings.prefill_tokens_per_s
        rates = [model.load_tokens_per_s] if model.host_kv_tokens else []
        rates += [model.external_tokens_per_s] if self.external_kv_tokens else []
        load_cost = min(prefill_tokens_per_s / min(rates), 1.0) if rates else self.settings.host_load_cost
        return replace(
            self.settings,
            bytes_per_token=_ROUTER_BYTES_PER_TOKEN,
            prefill_tokens_per_s=prefill_tokens_per_s,
            kv_tokens=model.kv_tokens,
            host_kv_tokens=model.host_kv_tokens,
            external_kv_tokens=self.external_kv_tokens,
            host_load_cost=load_cost,
        )
