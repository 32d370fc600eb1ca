"""Run the demo over several seeds and print docs/benchmarks.md's table.

    .venv/bin/python tests/bench/demo_seeds.py                # seeds 1 to 5, about 8 minutes
    .venv/bin/python tests/bench/demo_seeds.py --seeds 1,2 --seconds 20
    .venv/bin/python tests/bench/demo_seeds.py --write        # put the table into docs/benchmarks.md

Every seed's figures are shown, the bad ones too; the last line is median and range. Seeds that were run
already are read from --out and not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- demo seeds: begin -->", "<!-- demo seeds: end -->"
ARMS = ("round_robin", "kvring")

# title, value of a document, format
COLUMNS = [
    ("engine hit", lambda arm: arm["engine_hit"] * 100, "{:.1f} %"),
    ("affinity hit", lambda arm: arm["affinity_hit"] * 100, "{:.1f} %"),
    ("TTFT P50", lambda arm: arm["ttft_p50_ms"], "{:,.0f} ms"),
    ("TTFT P95", lambda arm: arm["ttft_p95_ms"], "{:,.0f} ms"),
    ("TTFT P99", lambda arm: arm["ttft_p99_ms"], "{:,.0f} ms"),
    ("req/s", lambda arm: arm["requests_per_s"], "{:.2f}"),
]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--seconds", type=float, help="real seconds a seed (default: the demo's)")
    parser.add_argument("--out", type=Path, default=Path("out/seeds"))
    parser.add_argument("--write", action="store_true", help=f"replace the table in {PAGE.name}")
    args = parser.parse_args()
    documents = [_document(seed, args) for seed in args.seeds.split(",")]
    table = _table(documents)
    sys.stdout.write(table + "\n")
    if args.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")
    return 0


def _document(seed, args):
    path = args.out / f"{seed}.json"
    if not path.exists():
        args.out.mkdir(parents=True, exist_ok=True)
        words = ["demo", "--seed", seed, "--json", str(path), "--out", str(args.out / seed)]
        if args.seconds:
            words += ["--seconds", str(args.seconds)]
        # Errors of requests (exit code 1) are a result too, as long as the figures were written.
        subprocess.run([sys.executable, "-m", "extproc", *words], check=False, stdout=sys.stderr)
    return json.loads(path.read_text())


def _table(documents):
    titles = ["seed", *(title for title, _, _ in COLUMNS), "errors", "claims"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for document in documents:
        cells = [_pair([_shown(document[arm], read, form) for arm in ARMS]) for _, read, form in COLUMNS]
        held = sum(claim["holds"] for claim in document["claims"])
        errors = _pair([str(document[arm]["errors"]) for arm in ARMS])
        marks = f"{held}/{len(document['claims'])}" + ("" if not document["warnings"] else ", doubts")
        lines.append("| " + " | ".join([str(document["setup"]["seed"]), *cells, errors, marks]) + " |")
    medians = [
        _pair([form.format(statistics.median(read(document[arm]) for document in documents)) for arm in ARMS])
        for _, read, form in COLUMNS
    ]
    ranges = [
        _pair([_range([read(document[arm]) for document in documents], form) for arm in ARMS])
        for _, read, form in COLUMNS
    ]
    lines.append("| **median** | " + " | ".join(medians) + " | | |")
    lines.append("| range | " + " | ".join(ranges) + " | | |")
    return "\n".join(lines)


def _shown(arm, read, form):
    return form.format(read(arm))


def _range(values, form):
    number = form.partition("}")[0] + "}"
    return f"{number.format(min(values))}..{number.format(max(values))}"


def _pair(texts):
    return " -> ".join(texts)


if __name__ == "__main__":
    sys.exit(main())
