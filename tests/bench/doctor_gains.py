"""What the doctor predicts against what follows, over loads and seeds: python -m tests.bench.doctor_gains

For each load and seed the fleet is simulated under round robin, its metrics are all the doctor sees, and then
it is simulated routed by kvring. Prints the table of docs/doctor.md. About three minutes.
"""

# ruff: noqa: T201  (it prints a table)
from __future__ import annotations

from extproc.doctor import diagnosis, gain, sample
from extproc.sim import figures, workloads
from tests import record_doctor

LOADS = ("first", "first:users=20", "first:users=10", "first:prefixes=20", "first:shared=.7")
SEEDS = (1, 2, 3)


def predict(load: str, seed: int) -> tuple[figures.Figures, gain.Gain, figures.Figures]:
    """What round robin shows, what is predicted, what follows."""
    asked = workloads.make(load)
    samples: list[sample.Sample] = []

    def keep(replica: str, at_s: float, text: bytes) -> None:
        samples.append(sample.read(replica, at_s, text))

    before = record_doctor.run(asked, "round_robin", "m", keep, seed)
    samples.sort(key=lambda one: one.at_s or 0.0)
    (fleet,) = diagnosis.diagnose(samples)
    predicted = fleet.case.estimate.gains[gain.Change.ROUTING]
    return before, predicted, record_doctor.run(asked, "cost", "m", lambda *_: None, seed)


def main() -> None:
    print("| load | hit | TTFT mean [ms] | before | requests/s, ratio |")
    print("|---|---|---|---|---|")
    for load in LOADS:
        runs = [predict(load, seed) for seed in SEEDS]
        cells = [
            both([one.hit for _, one, _ in runs], [after.engine_hit for *_, after in runs], "{:.2f}"),
            both([one.ttft_mean_s * 1000 for _, one, _ in runs], [after.ttft_mean_ms for *_, after in runs]),
            span([before.ttft_mean_ms for before, *_ in runs]),
            both(
                [one.throughput for _, one, _ in runs],
                [after.requests_per_s / before.requests_per_s for before, _, after in runs],
                "{:.2f}",
            ),
        ]
        print(f"| `{load}` | " + " | ".join(cells) + " |", flush=True)


def both(predicted: list[float], followed: list[float], form: str = "{:,.0f}") -> str:
    return f"{span(predicted, form)} / {span(followed, form)}"


def span(values: list[float], form: str = "{:,.0f}") -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low}-{high}"


if __name__ == "__main__":
    main()
