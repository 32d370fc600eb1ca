"""Run the simulator over the articles' set-ups, all workloads and several replicas for docs/benchmarks.md,
and with every policy for docs/baselines.md.

    python tests/bench/simulated_tables.py                        # print the tables, seeds 1 to 3
    python tests/bench/simulated_tables.py --write                # put them into the pages
    python tests/bench/simulated_tables.py --only "first article"
    python tests/bench/simulated_tables.py --seeds 1 --share .25  # quicker, less sure
    python tests/bench/simulated_tables.py --out figures.json     # keep figures; those are not run again

The first time takes an hour or two of one core, nearly all of it the other policies of "all workloads".
Deterministic: equal arguments give equal tables. Figures in --out are not run again, so delete those of a
policy whose rule changed. compare_policies.py may use the same file.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import compare_policies as compare

from extproc.sim import policies, scenario, simulation, traces, workloads

DOCS = Path(__file__).parents[2] / "docs"
OURS, BASE = policies.OWN, "round_robin"
REPLICAS = 3
DELAY_S = 0.01
CLOSED = ("first", "documents", "coding", "agents")  # where clients wait for answers
LOADS_PER_TABLE = 8
NEAR = 0.02  # of the best is as good


@dataclass(frozen=True)
class Published:
    """A row of an article: its set-up, the workload here, its change of throughput and of P99 [%]."""

    label: str
    workload: str
    rate: str
    p99: str


FIRST = (
    Published("13B, 30 users", "first", "+22.3", "-85"),
    Published("13B, 20 users", "first:users=20", "+13.7", "-79"),
    Published("13B, 10 users", "first:users=10", "+14.6", "-"),
    Published("13B, 30 users, shared part .7", "first:shared=.7", "+31.5", "-87"),
    Published("13B, 30 users, shared part .5", "first:shared=.5", "+10.0", "-76"),
    Published("13B, 20 prefixes", "first:prefixes=20", "-", "-"),
    Published("13B, 50 prefixes", "first:prefixes=50", "-", "-"),
    Published("8B, 30 users", "first:model=8b", "-1.1", "-"),
    Published("70B, 30 users", "first:model=70b", "0", "-"),
)
READER = "documents:endpoints=1,readers=1,order=cycle"
_ENGINE = "endpoints=1,kv_tokens=1100000,preset=second-article"
CODERS = f"coding:{_ENGINE},clients=8,projects=1,sessions=1,duration_s=3600"
_CPU, _STORE = "documents=48,host_tokens=2000000", "documents=48,external_tokens=2000000"
SECOND = (  # what, workload, figure, its format, published
    ("a document in the GPU cache, TTFT", "documents=30", "ttft_mean_ms", "{:,.0f} ms", "112-122 ms"),
    ("48 documents, cache for 34: hit", "documents=48", "engine_hit", "{:.1%}", "0"),
    ("... TTFT", "documents=48", "ttft_mean_ms", "{:,.0f} ms", "1,350 ms"),
    ("... with CPU tier: hit", _CPU, "engine_hit", "{:.1%}", "> 99 %"),
    ("... TTFT", _CPU, "ttft_mean_ms", "{:,.0f} ms", "164 ms"),
    ("... with external store: hit", _STORE, "engine_hit", "{:.1%}", "> 99 %"),
    ("... TTFT", _STORE, "ttft_mean_ms", "{:,.0f} ms", "140 ms"),
)


def main() -> int:
    args = _parser().parse_args()
    runner = Runner(compare.Kept(args.out), [int(seed) for seed in args.seeds.split(",")], args.share)
    for name in args.only or TABLES:
        make, page = TABLES[name]
        table = make(runner)
        sys.stdout.write(f"\n{name}\n\n{table}\n")
        if args.write:
            begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
            before, found, rest = (DOCS / page).read_text().partition(begin)
            if not found:
                sys.exit(f"{page} has no {begin}")
            (DOCS / page).write_text(f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}")
    return 0


class Runner:
    """Runs what was not run yet."""

    def __init__(self, kept, seeds, share):
        self.seeds = seeds
        self._kept = kept
        self._share = share

    def twice(self) -> Runner:
        """One with as many seeds more: what differs by chance takes more of them."""
        more = [max(self.seeds) + number for number in range(1, len(self.seeds) + 1)]
        return Runner(self._kept, [*self.seeds, *more], self._share)

    def runs(self, workload: str, policy: str, share: float | None = None, **changes) -> list[dict]:
        """Figures of each seed; `changes` to the scenario are part of the key."""
        asked = replace(compare.scenario_of(workload), **changes)
        key = workload + "".join(f"/{name}={value}" for name, value in sorted(changes.items()))
        return [
            compare.measure(key, asked, policy, seed, self._share if share is None else share, self._kept)
            for seed in self.seeds
        ]


def first_article(runner: Runner) -> str:
    """Round robin and kvring in the first article's set-ups, beside what it published."""
    lines = [
        "| set-up | affinity hit | engine hit | P50 | P99 | requests/s | change: rate, P99 | published |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in FIRST:
        base, ours = (runner.runs(row.workload, name) for name in (BASE, OURS))
        rate, p99 = (_mean(ours, key) / _mean(base, key) - 1 for key in ("requests_per_s", "ttft_p99_ms"))
        cells = [
            _change(base, ours, key, form)
            for key, form in (
                ("affinity_hit", "{:.1%}"),
                ("engine_hit", "{:.1%}"),
                ("ttft_p50_ms", "{:,.0f} ms"),
                ("ttft_p99_ms", "{:,.0f} ms"),
                ("requests_per_s", "{:.2f}"),
            )
        ]
        change, published = f"{rate:+.1%}, {p99:+.0%}", f"{row.rate} %, {row.p99} %".replace("- %", "-")
        lines.append(f"| {row.label} | " + " | ".join([*cells, change, published]) + " |")
    return "\n".join(lines)


def second_article(runner: Runner) -> str:
    """One engine: documents in and beyond its cache, coding clients with and without reuse."""
    lines = ["| what | here | published |", "|---|---|---|"]
    for label, workload, key, form, published in SECOND:
        found = runner.runs(f"{READER},{workload}", OURS, 1.0, duration_s=240.0, warmup_s=150.0)
        lines.append(f"| {label} | {form.format(_mean(found, key))} | {published} |")
    turns = [_turns_per_min(f"{CODERS},reuse={reuse}", runner.seeds[0]) for reuse in ("false", "true")]
    lines.append(
        f"| 8 coding clients of 30 turns, no reuse -> reuse | {turns[0]:.1f} -> {turns[1]:.1f} turns/min, "
        f"x{turns[1] / turns[0]:.1f} | 8 -> 60 turns/min |"
    )
    return "\n".join(lines)


def _turns_per_min(workload: str, seed: int) -> float:
    """Answers over the time until the last [1/min]."""
    asked = workloads.make(workload)
    asked = replace(asked, models=tuple(replace(model, block_tokens=64) for model in asked.models))
    records = simulation.run(asked, policies.factories()[OURS], seed)
    return 60 * len(records) / max(one.finished_s for one in records)


def all_workloads(runner: Runner) -> str:
    """kvring against round robin and the best other policy on each figure; where it loses to whom."""
    lines = [
        "| load | round robin | best other: mean | best other: P99 | kvring | kvring loses |",
        "|---|---|---|---|---|---|",
    ]
    others = [name for name in policies.factories() if name != OURS]
    for text, runs in _all_runs(runner):
        best = {
            key: min(others, key=lambda name, key=key: _mean(runs[name], key, 1e12))
            for key in ("ttft_mean_ms", "ttft_p99_ms")
        }
        cells = [
            _triple(runs[BASE]),
            f"{_mean(runs[best['ttft_mean_ms']], 'ttft_mean_ms'):,.0f} (`{best['ttft_mean_ms']}`)",
            f"{_mean(runs[best['ttft_p99_ms']], 'ttft_p99_ms'):,.0f} (`{best['ttft_p99_ms']}`)",
            _triple(runs[OURS]),
            "; ".join(compare.losses(runs)) or "nowhere",
        ]
        lines.append(f"| `{text}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def every_policy(runner: Runner) -> str:
    """Mean and P99 of every policy under every load, the best of each figure bold; some loads to a table."""
    found = list(_all_runs(runner))
    tables = []
    for begin in range(0, len(found), LOADS_PER_TABLE):
        shown = found[begin : begin + LOADS_PER_TABLE]
        rows = [["policy", *(f"`{text}`" for text, _ in shown)], ["---"] * (len(shown) + 1)]
        rows += [
            [f"`{name}`", *(_marked(runs, name, waits=text in CLOSED) for text, runs in shown)]
            for name in policies.factories()
        ]
        tables.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(tables)


def _all_runs(runner):
    """Each load, and the runs of every policy under it."""
    for text in (*workloads.WORKLOADS, *compare.TRACES):
        try:
            yield text, {name: runner.runs(text, name) for name in policies.factories()}
        except traces.TraceError as error:
            sys.stderr.write(f"left out: {error}\n")


def _marked(runs, name, *, waits):
    cells = []
    for key, form, best in (
        ("ttft_mean_ms", "{:,.0f}", min),
        ("ttft_p99_ms", "{:,.0f}", min),
        *([("requests_per_s", "{:.1f}", max)] if waits else []),
    ):
        value = _mean(runs[name], key)
        least = best(_mean(one, key) for one in runs.values())
        near = abs(value - least) <= NEAR * least
        cells.append(f"**{form.format(value)}**" if near else form.format(value))
    return " / ".join(cells[:2]) + "".join(f", {rate}" for rate in cells[2:])


def several_replicas(runner: Runner) -> str:
    """Three kvring replicas: nothing shared, shared; and how much of one replica's gain is left; twice the
    seeds, as the gain of few loads is small beside what chance does.
    """
    runner = runner.twice()
    lines = [
        "| load | round robin | one kvring | three, nothing shared | kept | three, 10 ms late | kept |",
        "|---|---|---|---|---|---|---|",
    ]
    for text in workloads.WORKLOADS:
        base, one = runner.runs(text, BASE), runner.runs(text, OURS)
        alone = runner.runs(text, OURS, routers=REPLICAS)
        shared = runner.runs(
            text, OURS, routers=REPLICAS, sharing=scenario.Sharing.DELAYED, sharing_delay_s=DELAY_S
        )
        cells = [
            _pair(base),
            _pair(one),
            _pair(alone),
            _kept(base, one, alone),
            _pair(shared),
            _kept(base, one, shared),
        ]
        lines.append(f"| `{text}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


TABLES = {
    "first article": (first_article, "benchmarks.md"),
    "second article": (second_article, "benchmarks.md"),
    "all workloads": (all_workloads, "benchmarks.md"),
    "replicas": (several_replicas, "benchmarks.md"),
    "every policy": (every_policy, "baselines.md"),
}


def _kept(base, one, several):
    """Share of one replica's gain in mean TTFT over round robin."""
    gain = _mean(base, "ttft_mean_ms") - _mean(one, "ttft_mean_ms")
    left = _mean(base, "ttft_mean_ms") - _mean(several, "ttft_mean_ms")
    return f"{left / gain:.0%}" if gain > 0 else "-"


def _pair(runs):
    return f"{_mean(runs, 'ttft_mean_ms'):,.0f} ms, {_mean(runs, 'engine_hit'):.0%}"


def _triple(runs):
    mean, p99, rate = (_mean(runs, key) for key in compare.JUDGED)
    return f"{mean:,.0f} / {p99:,.0f}, {rate:.1f}"


def _change(base, ours, key, form):
    return f"{form.format(_mean(base, key))} -> {form.format(_mean(ours, key))}"


def _mean(runs, key, default=0.0):
    values = [run[key] for run in runs if key in run]
    return statistics.fmean(values) if values else default


def _parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated")
    parser.add_argument("--share", type=float, default=1.0, help="of each workload's duration (0, 1]")
    parser.add_argument("--out", type=Path, default=Path("out/figures.json"), help="keeps the figures")
    parser.add_argument("--only", action="append", choices=TABLES, help="this table; repeatable")
    parser.add_argument("--write", action="store_true", help="replace the tables in the pages")
    return parser


if __name__ == "__main__":
    sys.exit(main())
