"""Staged: requests and scenarios made for one case, and choosers that show or spoil what the router does.

A spoiled one has one mechanism of the router switched off, so that a test can show what depends on it.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from extproc import choice, footprint, ledger, policy, router
from extproc.sim import chooser, client, content, figures, flight, performance, policies, scenario, simulation

__all__ = [
    "A100",
    "FACTORIES",
    "LARGE",
    "UNBOUNDED",
    "Book",
    "Told",
    "cold",
    "filled",
    "homed",
    "keyed",
    "made_of",
    "measure",
    "most_open",
    "once",
    "poisson",
    "really_open",
    "run",
    "with_settings",
]

A100 = performance.PRESETS["codellama-13b-a100-40"]
LARGE = performance.PRESETS["8b-h100"]
FACTORIES = policies.factories()
NOTHING = footprint.NOTHING
UNBOUNDED = policy.Limits(100.0, 1e9, 1e9)


def keyed(key: str, piece: int, tokens: int, output: int, question: int = 64, **more) -> client.Ask:
    """A request with a key of its own, over a prefix of that key and a question."""
    prompt = content.Content.of([(content.piece("key", key), tokens), (piece, question)])
    read = router.Request(chain=prompt.chain(), tokens=prompt.tokens, explicit=key)
    return client.Ask(prompt, output, key, read=read, **more)


def filled(counts: Mapping[str, int], at_s: float, output: int = 4000) -> Iterator[client.Start]:
    """So many requests at each endpoint that are open for a while, since their answers are long."""
    for endpoint, count in counts.items():
        for number in range(count):
            yield client.Start(at_s, once(keyed(endpoint, content.piece(endpoint, number), 0, output)))


def cold(name: str | int, tokens: int, output: int, **more) -> client.Ask:
    """A request whose prompt nobody holds."""
    return client.Ask(content.Content.of([(content.piece("cold", name), tokens)]), output, **more)


def once(ask: client.Ask) -> client.Script:
    """A client that asks once."""
    yield ask


def poisson(rng: random.Random, per_s: float, seconds: float) -> Iterator[float]:
    """Moments of arrivals, `per_s` in the mean."""
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(per_s)) < seconds:
        yield at_s


def made_of(starts: Callable[[], Iterable[client.Start]], **changes) -> scenario.Scenario:
    """A scenario of these starts, in order of time."""
    values = {"models": (A100,) * 8, "duration_s": 120.0, "warmup_s": 20.0} | changes
    return scenario.Scenario("t", "t", lambda _: iter(starts()), **values)


def with_settings(asked: scenario.Scenario, **changes) -> scenario.Scenario:
    """`asked` with other settings of the router."""
    return dataclasses.replace(asked, settings=dataclasses.replace(asked.settings, **changes))


def measure(asked: scenario.Scenario, name: str, seed: int = 1) -> figures.Figures:
    """The figures of a run under the policy `name`."""
    records = simulation.run(asked, FACTORIES[name], seed)
    return figures.figures(records, asked.warmup_s, asked.duration_s, len(asked.models))


class Told(policies.Production):
    """The production router, which notes each decision with the loads before it.

    A request whose explicit key is an endpoint's name goes there: so a case can fill endpoints as it likes.
    """

    def __init__(self, members, settings, entries=None) -> None:
        super().__init__(members, settings, entries)
        self.decided: list[choice.Decision] = []
        self.loads: list[tuple[float, dict[str, ledger.Load]]] = []  # when a request came, and before it
        self.refused: list[tuple[float, choice.NoEndpoint]] = []

    def load(self, at_s: float) -> dict[str, ledger.Load]:
        """Of each endpoint."""
        return {one.id: self.router.ledger.load(one.id, at_s) for one in self.router.pool.endpoints}

    def keep_books_in(self, book: ledger.Ledger) -> None:
        """Count in `book` from now on."""
        self.router.ledger = self.router._survey._ledger = book

    def place(self, request, now, chance):
        self.loads.append((now, self.load(now)))
        pinned = self.find(request.explicit)
        decided = self.choose(request, now, chance) if pinned is None else self.send(pinned, request, now)
        if isinstance(decided, choice.Decision):
            self.decided.append(decided)
        else:
            self.refused.append((now, decided))
        return decided

    def choose(self, request, now, chance):
        """The rule: the router's."""
        return super().place(request, now, chance)

    def send(self, endpoint, request, now) -> choice.Decision:
        """`request` sent to `endpoint`, whatever the rule is."""
        held = self.router.residency.match(endpoint.id, request.chain, now).gpu_blocks
        self.router.residency.add(endpoint.id, request.chain, now)
        new = max(round(request.tokens - held * self.router.block_tokens), 0)
        lease = self.router.ledger.take(endpoint.id, new, now)
        return chooser.decision(endpoint, lease, request, policy_name="pinned")

    def find(self, name):
        """The endpoint of that name, None if there is none."""
        return next((one for one in self.router.pool.endpoints if one.id == name), None)


def run(
    asked: scenario.Scenario,
    name: str,
    spoil: Callable[[Told], None] = lambda _: None,
    kind: type[Told] = Told,
    seed: int = 1,
) -> tuple[list[flight.Record], Told]:
    """The records of a run under the policy `name`, and its router, which `spoil` may change before it."""
    made: list[Told] = []

    def factory(members, settings) -> chooser.Chooser:
        made.append(kind(members, dataclasses.replace(settings, policy=name)))
        spoil(made[-1])
        return made[-1]

    return simulation.run(asked, factory, seed), made[0]


class Book(ledger.Ledger):
    """A ledger with leases of another kind."""

    __slots__ = ("_kind",)

    def __init__(self, prefill_tokens_per_s: float, kind: type[ledger.Lease]) -> None:
        super().__init__(prefill_tokens_per_s)
        self._kind = kind

    def take(self, endpoint, uncached_tokens, now, holds=NOTHING):
        self.open_leases += 1
        return self._kind(self, self.account_of(endpoint), uncached_tokens, now, holds)


def most_open(records: list[flight.Record]) -> dict[str, int]:
    """The most requests that each endpoint had open at once."""
    steps = sorted(
        (at_s, step, one.endpoint)
        for one in records
        for at_s, step in ((one.started_s, 1), (one.finished_s, -1))
        if at_s is not None
    )
    open_now: dict[str, int] = {}
    most: dict[str, int] = {}
    for _, step, name in steps:
        open_now[name] = open_now.get(name, 0) + step
        most[name] = max(most.get(name, 0), open_now[name])
    return most


def really_open(records: list[flight.Record], at_s: float) -> Counter[str]:
    """Requests open at `at_s` by endpoint, those that begin at that moment left out."""
    return Counter(
        one.endpoint
        for one in records
        if one.started_s < at_s and one.finished_s is not None and at_s < one.finished_s
    )


def homed(policy_name: str, asks: list[client.Ask], **changes) -> list[str]:
    """Where each of `asks` goes while nothing else is open."""
    starts = [client.Start(10.0 * number, once(ask)) for number, ask in enumerate(asks)]
    asked = made_of(lambda: starts, models=(LARGE,) * 8, duration_s=10.0 * len(asks) + 1, **changes)
    return [one.endpoint for one in simulation.run(asked, FACTORIES[policy_name], 1)]
