"""Document: a report for programs: JSON, and JUnit XML as CI systems read it.

JUnit knows no warnings: a `should` that failed is a skipped test there, with its words, unless asked
strictly. So a suite has failures exactly when the command's exit code is 1.

Called by: cli.
"""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from extproc import __version__
from extproc.conformance.check import Outcome, Result, Severity
from extproc.conformance.run import Report

__all__ = ["to_json", "to_junit"]


def to_json(report: Report, *, strict: bool = False) -> dict[str, Any]:
    """The report as plain values."""
    latency = report.latency
    return {
        "version": __version__,
        "target": report.address,
        "conforms": report.conforms(strict=strict),
        "pool": list(report.pool),
        "pool_learnt": not report.pool_told,
        "latency": None
        if latency is None
        else {"median_s": latency.median_s, "worst_s": latency.worst_s, "requests": latency.count},
        "counts": {
            "passed": report.count(Result.PASS),
            "must_failed": report.count(Result.FAIL, Severity.MUST),
            "should_failed": report.count(Result.FAIL, Severity.SHOULD),
            "skipped": report.count(Result.SKIP),
        },
        "checks": [
            {
                "id": outcome.check.id,
                "severity": outcome.check.severity.value,
                "result": outcome.result.value,
                "words": outcome.words,
                "asks": outcome.check.asks,
                "shows": outcome.check.shows,
                "source": outcome.check.source,
                "took_s": round(outcome.took_s, 4),
            }
            for outcome in report.outcomes
        ],
    }


def to_junit(report: Report, began: str, *, strict: bool = False) -> bytes:
    """The report as one JUnit test suite, UTF-8.

    Args: began: when the run began, ISO 8601.
    """
    cases = [_case(outcome, strict=strict) for outcome in report.outcomes]
    failures = sum(case.find("failure") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    took_s = sum(outcome.took_s for outcome in report.outcomes)
    counts = {
        "tests": str(len(cases)),
        "failures": str(failures),
        "errors": "0",
        "skipped": str(skipped),
        "time": f"{took_s:.3f}",
    }
    root = ET.Element("testsuites", {"name": "kvring conformance", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": report.address, "timestamp": began, **counts})
    suite.extend(cases)
    ET.indent(root)
    written: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return written


def _case(outcome: Outcome, *, strict: bool) -> ET.Element:
    check = outcome.check
    group = f"conformance.{check.severity.value}.{check.group}"
    case = ET.Element("testcase", {"classname": group, "name": check.id, "time": f"{outcome.took_s:.3f}"})
    match outcome.result:
        case Result.FAIL if strict or check.severity is Severity.MUST:
            failure = ET.SubElement(case, "failure", {"message": outcome.words, "type": check.severity.value})
            failure.text = f"asked: {check.asks}\noperators see: {check.shows}\nsource: {check.source}"
        case Result.FAIL:
            ET.SubElement(case, "skipped", {"message": f"should, but did not: {outcome.words}"})
        case Result.SKIP:
            ET.SubElement(case, "skipped", {"message": outcome.words})
        case Result.PASS:
            pass
    return case
