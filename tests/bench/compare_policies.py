"""Compare every policy, kvring's and the baselines', on simulated loads, and print a Markdown table of each.

    python tests/bench/compare_policies.py                          # all workloads, seeds 1 to 3
    python tests/bench/compare_policies.py --quick                  # one seed, a quarter of the time
    python tests/bench/compare_policies.py --workloads first,mooncake --policies cost,lmetric --seeds 1,2
    python tests/bench/compare_policies.py --out figures.json       # keep figures; those are not run again

A workload is a name of `extproc.sim.workloads`, with parameters if it takes some ("first:prefixes=20"), or
one of the recorded traces (mooncake, azure-code, azure-conv, tau-bench), read from $KVRING_DATA/traces and
left out where that is not set. Of the first three every seed is the same load.

Deterministic: equal arguments give equal tables. All policies meet the same prompts under a seed, so they are
compared seed by seed. A column shows the mean over seeds and, where there are several, least and most.

| column | is |
|---|---|
| TTFT mean, P99 | first token after the request was sent [ms], requests begun after the warm-up |
| hit | prompt tokens found in any tier of the chosen engine, of all prompt tokens |
| req/s | requests finished between warm-up and end, per second |
| imbalance | prompt tokens computed: busiest endpoint over the mean |
| errors | requests without an answer |

Figures are those of `extproc.sim.figures`, as `kvring simulate` shows them.

"Where cost loses" names every policy that beats kvring's default on a figure in each seed and by more than
5 % of the mean. A rule that reads metrics gets them as often as its router does (`policies.scrape_s`), the
others once a second. A workload in which something happens at a set time is never cut short.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from extproc.sim import figures, performance, policies, simulation, traces, workloads
from extproc.sim.scenario import Kind

MARGIN = 0.05
TRACES = {
    "mooncake": "mooncake_conversation.jsonl.gz",
    "azure-code": "azure_2023_code.csv.gz",
    "azure-conv": "azure_2023_conv.csv.gz",
    "tau-bench": "tau_bench_airline.json.gz",
}
TRACE_S = 900.0  # of an hour
REFERENCE = "cost"

# title, key, format, whether less is better
COLUMNS = [
    ("TTFT mean", "ttft_mean_ms", "{:,.0f}", True),
    ("P99", "ttft_p99_ms", "{:,.0f}", True),
    ("hit", "engine_hit", "{:.3f}", False),
    ("req/s", "requests_per_s", "{:.2f}", False),
    ("imbalance", "prefill_imbalance", "{:.2f}", True),
    ("errors", "errors", "{:.0f}", True),
]
JUDGED = ("ttft_mean_ms", "ttft_p99_ms", "requests_per_s")


@dataclass(frozen=True)
class Plan:
    """What to run. `share`: of a workload's duration."""

    workloads: list[str]
    policies: list[str]
    seeds: list[int]
    share: float


def main() -> int:
    args = _parser().parse_args()
    known = policies.factories()
    plan = Plan(
        args.workloads.split(",") if args.workloads else [*workloads.WORKLOADS, *TRACES],
        args.policies.split(",") if args.policies else list(known),
        [1] if args.quick else [int(seed) for seed in args.seeds.split(",")],
        0.25 if args.quick else args.share,
    )
    for name in plan.policies:
        if name not in known:
            sys.exit(f"{name}: no such policy, there are {', '.join(known)}")
    kept = Kept(args.out)
    for text in plan.workloads:
        try:
            scenario = scenario_of(text)
        except traces.TraceError as error:
            sys.stderr.write(f"left out: {error}\n")
            continue
        runs = {name: [measure(text, scenario, name, seed, plan.share, kept) for seed in plan.seeds]
                for name in plan.policies}  # fmt: skip
        sys.stdout.write(table(f"{text}: {scenario.summary}", runs) + "\n")
        sys.stdout.flush()
    return 0


def table(title, runs):
    """The Markdown table of one workload, and where the reference loses; figures by policy and seed."""
    lines = [f"### {title}", "", "| policy | " + " | ".join(name for name, *_ in COLUMNS) + " |"]
    lines.append("|---|" + "---:|" * len(COLUMNS))
    for name, found in runs.items():
        cells = [_cell([run.get(key) for run in found], form) for _, key, form, _ in COLUMNS]
        shown = f"**{name}**" if name == REFERENCE else name
        lines.append(f"| {shown} | " + " | ".join(cells) + " |")
    if REFERENCE in runs:
        lines += ["", f"Where {REFERENCE} loses: " + ("; ".join(losses(runs)) or "nowhere") + ".", ""]
    return "\n".join(lines)


def losses(runs):
    """Each figure on which others beat the reference: "P99 279 against 224 (llmd_weighted and 2 more)"."""
    found = []
    for title, form, winners in beaten(runs):
        name, other, own = winners[0]
        more = f" and {len(winners) - 1} more" if len(winners) > 1 else ""
        found.append(f"{title} {form.format(own)} against {form.format(other)} ({name}{more})")
    return found


def beaten(runs):
    """Who beats the reference on what, the best first, in every seed and by more than the margin."""
    ours = runs[REFERENCE]
    for title, key, form, less in COLUMNS:
        if key not in JUDGED:
            continue
        winners = []
        for name, theirs in runs.items():
            pairs = [(run[key], own[key]) for run, own in zip(theirs, ours, strict=True)]
            always = all(other < own if less else other > own for other, own in pairs)
            other, own = (statistics.fmean(values) for values in zip(*pairs, strict=True))
            if name != REFERENCE and always and abs(other - own) > MARGIN * own:
                winners.append((name, other, own))
        if winners:
            yield title, form, sorted(winners, key=lambda won: won[1] if less else -won[1])


class Kept:
    """Figures of earlier runs, in a file unless it is None."""

    def __init__(self, path):
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._figures = json.loads(path.read_text()) if path is not None and path.exists() else {}

    def get(self, key):
        return self._figures.get(key)

    def put(self, key, figures):
        self._figures[key] = figures
        if self._path is not None:
            self._path.write_text(json.dumps(self._figures, indent=1))


def measure(text, scenario, name, seed, share, kept):
    """The figures of one run, kept under its text, policy, seed and share of the duration."""
    key = f"{text}/{name}/{seed}/{share:g}"
    found = kept.get(key)
    if found is None:
        begun = time.process_time()
        part = 1.0 if scenario.events else share
        warmup_s, duration_s = scenario.warmup_s * part, scenario.duration_s * part
        every_s = policies.scrape_s(name, scenario.scrape_s)
        asked = replace(scenario, warmup_s=warmup_s, duration_s=duration_s, scrape_s=every_s)
        records = simulation.run(asked, policies.factories()[name], seed)
        joined = sum(event.kind is Kind.ADD for event in asked.events)
        counted = figures.figures(records, warmup_s, duration_s, len(asked.models) + joined)
        found = {key: value for key, value in asdict(counted).items() if value is not None}
        kept.put(key, found)
        sys.stderr.write(f"{key}: {time.process_time() - begun:.1f} s\n")
    return found


def scenario_of(text):
    """The scenario of a workload, or of a trace. Errors: ValueError, traces.TraceError."""
    if text not in TRACES:
        return workloads.make(text)
    # Blocks of 64 tokens, as the router's, are a quarter of the work; Mooncake's shares in steps of 512.
    model = replace(performance.PRESETS["32b-fp8-h100"], block_tokens=64)
    found = traces.load(traces.find(TRACES[text]), model, 8)
    return replace(found, duration_s=min(found.duration_s, TRACE_S), warmup_s=60.0)


def _cell(values, form):
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    mean = form.format(statistics.fmean(values))
    low, high = form.format(min(values)), form.format(max(values))
    return mean if low == high else f"{mean} ({low}-{high})"


def _parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", help="comma-separated (default: all)")
    parser.add_argument("--policies", help="comma-separated (default: all)")
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated")
    parser.add_argument("--share", type=float, default=1.0, help="of each workload's duration (0, 1]")
    parser.add_argument("--quick", action="store_true", help="seed 1, a quarter of the duration")
    parser.add_argument("--out", type=Path, help="JSON file that keeps the figures")
    return parser


if __name__ == "__main__":
    sys.exit(main())
