"""Three replicas of kvring that share their view, against one, and against three that share nothing.

    python tests/bench/shared_view.py                            # all workloads, one seed
    python tests/bench/shared_view.py --workloads coding,rag --seeds 1,2
    python tests/bench/shared_view.py --quick                    # a third of the time

The simulator's routers tell each other what they do in the sidecar's own messages, gathered as there, which
arrive 1, 10 or 100 ms later (`--delays 10` for one of them). Deterministic: equal arguments give an equal
table.

A cell shows engine hit and, behind it, the share kept of what one replica gains over round robin, in mean
time to first token and in hits; the lesser counts. Where one replica gains less than a twentieth over
round robin there is nothing to keep, and the share stands as "-". Fails if at 10 ms less than 95 % is kept
anywhere.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace

from extproc.sim import figures, policies, simulation, workloads
from extproc.sim.scenario import Kind, Sharing

DELAY_S = 0.010
LEAST = 0.95
WORTH = 0.05


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default=",".join(workloads.WORKLOADS))
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--delays", default="1,10,100", help="of messages [ms], with 10 among them")
    args = parser.parse_args(argv)
    delays_s = tuple(float(delay) / 1000 for delay in args.delays.split(","))
    seeds = [int(seed) for seed in args.seeds.split(",")]
    heads = (
        "workload",
        "round robin",
        "one",
        *(f"{1000 * delay_s:.0f} ms" for delay_s in delays_s),
        "nothing",
        "messages, bytes a request",
    )
    print("| " + " | ".join(heads) + " |")
    print("|---" * len(heads) + "|", flush=True)
    failed = []
    for name in args.workloads.split(","):
        asked = workloads.make(name)
        if args.quick and not asked.events:
            asked = replace(asked, duration_s=asked.warmup_s + (asked.duration_s - asked.warmup_s) / 3)
        kept = row(name, asked, seeds, delays_s)
        if kept is not None and kept < LEAST:
            failed.append(f"{name}: {kept:.1%}")
    if failed:
        print("less than 95 % kept at 10 ms: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def row(name, asked, seeds, delays_s) -> float | None:
    """Prints one line; the share kept at 10 ms."""
    base = measure(asked, "round_robin", seeds)
    one = measure(asked, "cost", seeds)
    delayed = [
        measure(replace(asked, routers=3, sharing=Sharing.DELAYED, sharing_delay_s=delay_s), "cost", seeds)
        for delay_s in delays_s
    ]
    apart = measure(replace(asked, routers=3, sharing=Sharing.NOTHING), "cost", seeds)
    shares = [kept(base, one, other) for other in (*delayed, apart)]
    cells = [
        f"{other[1]:.3f} ({shown(share)})" for other, share in zip((*delayed, apart), shares, strict=True)
    ]
    at = delays_s.index(DELAY_S)
    traffic = f"{delayed[at][2]:.1f}, {delayed[at][3]:,.0f}"
    print(f"| {name} | {base[1]:.3f} | {one[1]:.3f} | " + " | ".join(cells) + f" | {traffic} |", flush=True)
    return shares[at]


def measure(asked, policy, seeds) -> tuple[float, float, float, float]:
    """Means over seeds: TTFT mean [ms], engine hit, messages and bytes told a request."""
    found = []
    for seed in seeds:
        run = simulation.Simulation(asked, policies.factories()[policy], seed)
        records = run.run()
        endpoints = len(asked.models) + sum(event.kind is Kind.ADD for event in asked.events)
        all_ = figures.figures(records, asked.warmup_s, asked.duration_s, endpoints)
        messages, told_bytes = run.told
        found.append((all_.ttft_mean_ms, all_.engine_hit, messages / len(records), told_bytes / len(records)))
    return tuple(statistics.fmean(column) for column in zip(*found, strict=True))


def kept(base, one, other) -> float | None:
    """Of the gain of `one` over `base`, what `other` has, in time or in hits, whichever is less."""
    shares = []
    for column, worth in ((0, WORTH * base[0]), (1, WORTH)):
        gain = abs(one[column] - base[column])
        if gain >= worth and (one[0] < base[0]):
            shares.append((other[column] - base[column]) / (one[column] - base[column]))
    return min(shares, default=None)


def shown(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


if __name__ == "__main__":
    sys.exit(main())
