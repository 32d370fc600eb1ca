"""The doctor's first finding on fleets in known conditions, and on a real engine's dump."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from extproc.doctor import diagnosis, document, sample, table
from extproc.doctor.finding import Kind, Verdict
from tests import fleets, shared_data

QUICK = diagnosis.Question(simulate=False)
FIRST = {
    "healthy": (Kind.HEALTHY, Verdict.WELL),
    "missing": (Kind.SCATTERED, Verdict.ACT),
    "thrashing": (Kind.CACHE_TOO_SMALL, Verdict.ACT),
    "imbalanced": (Kind.IMBALANCE, Verdict.ACT),
    "caching-off": (Kind.CACHING_OFF, Verdict.ACT),
    "small-model": (Kind.NOTHING_TO_WIN, Verdict.WELL),
    "restarted": (Kind.RESTARTS, Verdict.ACT),
}


def test_every_recorded_fleet_has_its_finding() -> None:
    assert sorted(FIRST) == fleets.NAMES


@pytest.mark.parametrize("name", fleets.NAMES)
def test_the_first_finding_of_a_fleet_is_the_right_one(name: str) -> None:
    (fleet,) = diagnosis.diagnose(fleets.samples(name), QUICK)
    first = fleet.findings[0]
    assert (first.kind, first.verdict) == FIRST[name], [one.title for one in fleet.findings]
    assert first.evidence
    assert first.advice


def test_a_real_engine_that_refused_requests_is_told_so_first() -> None:
    (fleet,) = diagnosis.diagnose([sample.read("tiny", None, fleets.REAL.read_bytes())])
    first = fleet.findings[0]
    assert first.kind is Kind.REFUSED
    assert "9 rejections beside 155 requests" in first.evidence[0]
    assert Kind.SCATTERED not in {one.kind for one in fleet.findings}  # it is one replica
    assert fleet.case.told.ratio == pytest.approx(38.8, abs=0.1)


def test_the_copy_of_the_real_dump_is_one() -> None:
    assert shared_data.path("engine/metrics.txt").read_bytes() == fleets.REAL.read_bytes()


def test_a_fleet_that_is_routed_already_is_not_told_to_route() -> None:
    (fleet,) = diagnosis.diagnose(fleets.samples("missing"), diagnosis.Question(routed=True, simulate=False))
    assert Kind.SCATTERED not in {one.kind for one in fleet.findings}


def test_a_single_replica_is_not_told_to_route() -> None:
    one = [each for each in fleets.samples("missing") if each.replica == "replica-0"]
    (fleet,) = diagnosis.diagnose(one, QUICK)
    kinds = [each.kind for each in fleet.findings]
    assert Kind.SCATTERED not in kinds
    assert kinds[0] is Kind.CACHE_TOO_SMALL  # of its own, nothing else can hold its prefixes


def test_models_are_fleets_of_their_own() -> None:
    both = [*fleets.samples("small-model"), *fleets.samples("thrashing")]
    renamed = [each for each in both if each.at_s is not None]
    found = diagnosis.diagnose(
        [_renamed(one, f"{one.model}/{one.replica}") for one in renamed], QUICK
    )  # replica names of two fleets may meet
    assert [fleet.model for fleet in found] == ["llama-3.1-8b", "qwen3-32b-fp8"]
    assert [fleet.case.replicas for fleet in found] == [3, 4]


@pytest.mark.parametrize("name", fleets.NAMES)
def test_every_form_of_the_report_names_the_first_finding_and_every_replica(name: str) -> None:
    found = diagnosis.diagnose(fleets.samples(name), QUICK)
    problems = {"10.0.0.9:8000": "refused"}
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(table.drawn(found, problems))
    texts = [console.export_text(), document.to_markdown(found, problems)]
    for text in texts:
        assert found[0].findings[0].title in text
        assert all(replica in text for replica in found[0].each)
        assert "10.0.0.9:8000" in text
    told = document.to_json(found, problems)
    assert told["verdict"] == FIRST[name][1].word
    assert told["fleets"][0]["findings"][0]["kind"] == FIRST[name][0]


def test_findings_need_no_more_than_an_engine_tells() -> None:
    whole = fleets.samples("missing")
    for key in {key for one in whole for key in one.histograms}:
        (fleet,) = diagnosis.diagnose([_without(one, key) for one in whole], QUICK)
        assert fleet.findings
    for key in {key for one in whole for key in one.numbers}:
        (fleet,) = diagnosis.diagnose([_without(one, key) for one in whole], QUICK)
        assert fleet.findings


def _renamed(one: sample.Sample, name: str) -> sample.Sample:
    return dataclasses.replace(one, replica=name)


def _without(one: sample.Sample, key: str) -> sample.Sample:
    return dataclasses.replace(
        one,
        numbers={name: value for name, value in one.numbers.items() if name != key},
        histograms={name: value for name, value in one.histograms.items() if name != key},
    )
