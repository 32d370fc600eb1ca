"""Policies: every way of choosing a simulation knows, by name: the production router's, then the baselines.

Called by: comparison, simulation, cli.simulate.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import replace

from extproc import choice, outbox, policy, pool, router
from extproc.signals import Signal
from extproc.sim import baselines, chooser

__all__ = ["OWN", "Production", "factories", "scrape_s", "summary"]

OWN = "cost"
"""kvring's default: the one whose gain over the baseline is told."""


class Production:
    """The production router, told what the sidecar tells it of its endpoints."""

    def __init__(
        self, members: pool.Pool, settings: router.Settings, entries: outbox.Outbox | None = None
    ) -> None:
        self.router = router.Router(members, settings, entries)
        self._started_s: dict[pool.EndpointId, float] = {}
        self._now = 0.0

    def shares(self) -> Production:
        """Such a one that tells others what it does."""
        return Production(self.router.pool, self.router.settings, outbox.Outbox())

    def place(
        self, request: chooser.Request, now: float, chance: float
    ) -> choice.Decision | choice.NoEndpoint:
        """As `Router.place`."""
        self._now = now
        return self.router.place(request, now, chance)

    def publish(self, members: pool.Pool, /) -> None:
        """As `Router.publish`; a newcomer begins its slow start."""
        before = {endpoint.id for endpoint in self.router.pool.endpoints}
        self.router.publish(members)
        for endpoint in members.endpoints:
            if endpoint.id not in before:
                self.router.ramp.begin(endpoint.id, self._now)

    def observe(self, endpoint: pool.EndpointId, signals: chooser.Signals, now: float) -> None:
        """Keep the KV usage; an endpoint that started anew has lost what it held, and starts slowly."""
        self._now = now
        if self._started_s.setdefault(endpoint, signals.started_s) != signals.started_s:
            self._started_s[endpoint] = signals.started_s
            self.router.restart(endpoint, now)
        own = self.router.ledger.load(endpoint, now)
        foreign = signals.running + signals.waiting - own.inflight
        kv_tokens = self.router.settings.kv_tokens
        told = Signal(
            at_s=now,
            kv_usage=signals.kv_usage,
            kv_tokens=kv_tokens,
            foreign=max(foreign, 0),
            sent_tokens=self.router.sent.to(endpoint).uncached_tokens,
            foreign_kv_tokens=max(signals.kv_usage * kv_tokens - own.kv_tokens, 0.0),
        )
        self.router.signals.put(endpoint, told)


def factories() -> dict[str, chooser.Factory]:
    """Every policy by name, in the order to show them."""
    own: dict[str, chooser.Factory] = {name: functools.partial(_production, name) for name in policy.POLICIES}
    return own | dict(baselines.BASELINES)


def scrape_s(name: str, usual_s: float) -> float:
    """How often the router of policy `name` looks at the engines' metrics [s]; most do it as `usual_s`."""
    return baselines.SCRAPE_S.get(name, usual_s)


def summary(name: str) -> str:
    """One line about the policy `name`; KeyError if there is none."""
    if name in policy.POLICIES:
        text = importlib.import_module(f"extproc.policy.{name}").__doc__
    else:
        text = factories()[name].__doc__
    lines = (text or "").strip().splitlines()
    return lines[0] if lines else ""


def _production(name: str, members: pool.Pool, settings: router.Settings) -> Production:
    return Production(members, replace(settings, policy=name))
