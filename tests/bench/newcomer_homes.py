"""For how long a replica that is added finds other homes than those that were there before.

    python tests/bench/newcomer_homes.py                         # some workloads, one seed
    python tests/bench/newcomer_homes.py --workloads coding,rag --seconds 300

It is told what endpoints hold, and not how often others counted which prefix. The requests of one simulated
router are counted once by anchors that saw all of them, once by anchors that begin at one of six moments; a
cell shows for how many of the requests since then the first home differs, of those with a key nobody had
before in brackets. Deterministic.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace

from extproc import anchor, chain, homes, router
from extproc.sim import policies, simulation, workloads

BANDS = [(0, 10), (10, 30), (30, 100), (100, 300), (300, 1000)]  # requests heard since it began
STARTS = [tenth / 10 for tenth in range(3, 9)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default="first,hot,chat,tenants,agents,coding,rag,documents")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print("| workload | requests a second | " + " | ".join(f"{low} to {high}" for low, high in BANDS) + " |")
    print("|---" * (len(BANDS) + 2) + "|", flush=True)
    for name in args.workloads.split(","):
        asked = replace(workloads.make(name), warmup_s=10.0, events=())
        asked = replace(asked, duration_s=min(asked.duration_s, args.seconds))
        print(f"| {name} | " + " | ".join(row(*seen(asked, args.seed))) + " |", flush=True)


def seen(asked, seed) -> tuple[list[tuple[float, chain.Chain]], router.Router]:
    """Time and chain of all requests of a run, and the router that placed them."""
    found, routers = [], []
    place = router.Router.place

    def watched(self, request, now, *more):
        routers.append(self)
        if request.chain is not None:
            found.append((now, request.chain))
        return place(self, request, now, *more)

    router.Router.place = watched
    try:
        simulation.Simulation(asked, policies.factories()["cost"], seed).run()
    finally:
        router.Router.place = place
    return found, routers[0]


def row(requests, chooser) -> list[str]:
    """The cells of a workload."""
    order, endpoints = homes.Homes(chooser.ring), len(chooser.pool.endpoints)
    among = {endpoint.id: endpoint for endpoint in chooser.pool.endpoints}
    counted = Counter()
    for share in STARTS:
        began = int(len(requests) * share)
        old, new = (anchor.Anchors(half_life_s=chooser.settings.anchor_half_life_s) for _ in range(2))
        keys = set()
        for number, (now, blocks) in enumerate(requests[: began + BANDS[-1][1]], start=-began):
            one = old.observe(blocks, endpoints, now)
            kinds = ["any"] if one.key in keys else ["any", "new"]
            keys.add(one.key)
            if number < 0:
                continue
            other = new.observe(blocks, endpoints, now)
            first = [next(order.order(each.key, among, each.hot)) for each in (one, other)]
            band = next(band for band in BANDS if number < band[1])
            counted.update((band, kind, what) for kind in kinds for what in {"all", first[0] == first[1]})
    cells = [f"{len(requests) / (requests[-1][0] - requests[0][0]):.1f}"]
    for band in BANDS:
        shares = [counted[band, kind, False] / max(counted[band, kind, "all"], 1) for kind in ("any", "new")]
        cells.append(f"{shares[0]:.0%} ({shares[1]:.0%} of {counted[band, 'new', 'all']})")
    return cells


if __name__ == "__main__":
    main()
