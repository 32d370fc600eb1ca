"""What the doctor predicts from metrics, held against what the simulation of the same fleet then shows.

The quick form of tests/envoy/test_doctor_demo.py. The twin sees metrics only: not the workload's prefixes,
tails, think times or the engine's constants.
"""

from __future__ import annotations

import dataclasses

import pytest

from extproc.doctor import diagnosis, gain
from extproc.doctor.finding import Kind
from tests import fleets, record_doctor

WITHIN = 0.25


@pytest.fixture(scope="module")
def missing() -> diagnosis.Fleet:
    price = gain.Price(gpu_hour_usd=1.25)
    (fleet,) = diagnosis.diagnose(fleets.samples("missing"), diagnosis.Question(price=price))
    return fleet


def test_routing_by_prefix_brings_what_was_predicted(missing: diagnosis.Fleet) -> None:
    fleet = record_doctor.FLEETS["missing"]
    followed = record_doctor.run(record_doctor.asked(fleet), "cost", fleet.model, lambda *_: None)
    told, predicted = missing.case.told, missing.case.estimate.gains[gain.Change.ROUTING]
    assert predicted.hit == pytest.approx(followed.engine_hit, rel=WITHIN)
    assert told.requests_per_s * predicted.throughput == pytest.approx(followed.requests_per_s, rel=WITHIN)
    gained = followed.requests_per_s / told.requests_per_s - 1
    assert predicted.throughput - 1 == pytest.approx(gained, rel=WITHIN)
    saved_s = told.ttft_mean_s - followed.ttft_mean_ms / 1000
    assert told.ttft_mean_s - predicted.ttft_mean_s == pytest.approx(saved_s, rel=WITHIN)
    assert predicted.ttft_mean_s == pytest.approx(followed.ttft_mean_ms / 1000, rel=WITHIN)


def test_the_twin_shows_what_was_measured(missing: diagnosis.Fleet) -> None:
    estimate = missing.case.estimate
    assert estimate.error < 0.15
    lengths = 26_000  # of the five prefixes together, which the metrics do not tell
    assert estimate.working_set == pytest.approx(lengths, rel=0.3)


def test_money_follows_from_throughput(missing: diagnosis.Fleet) -> None:
    first = missing.findings[0]
    predicted = missing.case.estimate.gains[gain.Change.ROUTING]
    assert first.kind is Kind.SCATTERED
    month = 1.25 * 8 * 730
    assert first.saved_usd_month == pytest.approx(month * (1 - 1 / predicted.throughput))
    assert f"{(predicted.throughput - 1) * 100:+.0f} % requests/s" in first.brings


def test_a_fleet_of_unknown_rates_has_no_twin() -> None:
    samples = [one for one in fleets.samples("missing") if one.at_s > record_doctor.STARTED + 100]
    undated = [dataclasses.replace(one, at_s=None) for one in samples]
    (fleet,) = diagnosis.diagnose(undated)
    assert fleet.findings[0].kind is Kind.SCATTERED
    assert fleet.case.estimate.gains == {}
    assert "--interval" in fleet.findings[0].brings
