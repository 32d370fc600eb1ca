"""Records the metrics of fleets in known conditions: python -m tests.record_doctor

Each fleet is simulated under the virtual clock; what every replica would answer to GET /metrics is kept at
the end of the warm-up and at the end of the run, in tests/data/doctor/<fleet>/, thinned as `kvring doctor
--save` does. The same code gives the same bytes. tests/unit/test_doctor_fleets.py says what the doctor must
find in each.
"""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path

from extproc import choice, ledger, pool, router
from extproc.doctor import saved
from extproc.sim import chooser, exposition, figures, policies, scenario, simulation, workloads

DATA = Path(__file__).parent / "data" / "doctor"
SEED = 1
STARTED = 1_795_960_000.0  # of every process [Unix time]


class Pinned(chooser.Chooser):
    """Half of all requests to the first endpoint, as where a few long-lived connections carry most of the
    traffic.
    """

    def __init__(self, members: pool.Pool, settings: router.Settings) -> None:
        self._members = members
        self._ledger = ledger.Ledger(settings.prefill_tokens_per_s)

    def place(self, request: chooser.Request, now: float, chance: float) -> choice.Decision:
        others = len(self._members.endpoints) - 1
        index = 0 if chance < 0.5 else 1 + int((chance - 0.5) * 2 * others)
        endpoint = self._members.endpoints[index]
        return chooser.decision(
            endpoint, self._ledger.take(endpoint.id, request.tokens, now), request, policy_name="pinned"
        )

    def publish(self, members: pool.Pool, /) -> None:
        self._members = members

    def observe(self, endpoint: pool.EndpointId, signals: chooser.Signals, now: float) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class Fleet:
    """`policy`: how its requests are spread. `changes`: of each replica's engine. `model`: the name it
    serves.
    """

    workload: str
    policy: str = "round_robin"
    changes: dict[str, object] = dataclasses.field(default_factory=dict)
    model: str = "codellama-13b"
    restart_s: float = 0.0


FLEETS = {
    "healthy": Fleet("first:endpoints=4,users=15", policy="cost"),
    "missing": Fleet("first:endpoints=8,users=30"),
    "thrashing": Fleet("documents:documents=300,endpoints=4,readers=12", model="qwen3-32b-fp8"),
    "imbalanced": Fleet("first:prefixes=1,endpoints=4,users=60", policy="pinned"),
    "caching-off": Fleet("first:endpoints=4,users=10", changes={"prefix_caching": False}),
    "small-model": Fleet("chat:per_s=3,endpoints=3", model="llama-3.1-8b"),
    "restarted": Fleet(
        "documents:documents=24,endpoints=4,readers=4,restart_s=200", policy="cost", model="qwen3-32b-fp8"
    ),
}


def asked(fleet: Fleet) -> scenario.Scenario:
    made = workloads.make(fleet.workload)
    return dataclasses.replace(
        made, models=tuple(dataclasses.replace(model, **fleet.changes) for model in made.models)
    )


def run(
    asked: scenario.Scenario,
    policy: str,
    model: str,
    keep: Callable[[str, float, bytes], None],
    seed: int = SEED,
) -> figures.Figures:
    """Simulate; `keep` gets replica, time and exposition, at the end of warm-up and of the run."""
    factories = policies.factories() | {"pinned": Pinned}
    made = simulation.Simulation(asked, factories[policy], seed)

    def snapshot() -> None:
        for replica in made._fleet.replicas.values():
            if replica.engine is None:
                continue
            made._advance(replica)
            made._watch(replica)
            identity = exposition.Identity(model, STARTED + replica.started_s)
            keep(replica.id, STARTED + made._clock.now, exposition.render(replica.engine, identity))

    for at_s in (asked.warmup_s, asked.duration_s - 0.001):
        made._clock.at(at_s, snapshot)
    records = made.run()
    return figures.figures(records, asked.warmup_s, asked.duration_s, len(asked.models))


def main() -> None:
    for name, fleet in FLEETS.items():
        directory = DATA / name
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.iterdir():
            old.unlink()

        def keep(replica: str, at_s: float, text: bytes, directory: Path = directory) -> None:
            path = directory / (saved.name_of(replica, at_s) + ".gz")
            path.write_bytes(gzip.compress(saved.thinned(text), mtime=0))

        found = run(asked(fleet), fleet.policy, fleet.model, keep)
        print(  # noqa: T201  (for who runs it)
            f"{name:12} {found.requests:.0f} requests, hit {found.engine_hit:.2f}, "
            f"TTFT {found.ttft_p50_ms:.0f} / {found.ttft_p99_ms:.0f} ms, "
            f"busiest {found.requests_imbalance:.2f}, {found.requests_per_s:.2f}/s"
        )


if __name__ == "__main__":
    main()
