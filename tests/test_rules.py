"""Prometheus rules: promtool accepts them; each alert has unit tests both ways and a runbook."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import lint_dashboard, promtool

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "helm/kvring/files/rules").glob("*.yaml"))
TESTS = sorted((ROOT / "tests/rules").glob("*.yaml"))
_SECTIONS = ("## Meaning", "## Impact", "## Diagnosis", "## Mitigation")
_ENGINES = {"vllm:time_to_first_token_seconds_bucket"}


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for file in FILES
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_promtool_accepts_the_rules(file: Path) -> None:
    done = promtool.run("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name)
def test_the_unit_tests_of_the_rules_pass(file: Path) -> None:
    done = promtool.run("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_unit_test_where_it_fires_and_one_where_it_stays_calm() -> None:
    cases = yaml.safe_load((ROOT / "tests/rules/alerts.yaml").read_text(encoding="utf-8"))["tests"]
    told = [asked for case in cases for asked in case["alert_rule_test"]]
    assert {one["alertname"] for one in told if one["exp_alerts"]} == set(ALERTS)
    assert {one["alertname"] for one in told if not one["exp_alerts"]} == set(ALERTS)


def test_every_recording_rule_has_a_unit_test() -> None:
    tested = (ROOT / "tests/rules/recording.yaml").read_text(encoding="utf-8")
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert {name for name in recorded if not re.search(rf"{re.escape(name)}\b", tested)} == set()


def test_rules_ask_only_for_what_exists() -> None:
    known = lint_dashboard.known_metrics() | _ENGINES
    functions = {"absent", "avg_over_time", "time", "vector"}
    for rule in rules():
        unknown = lint_dashboard.metrics_of(rule["expr"]) - known - functions
        assert unknown == set(), rule


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_leads_to_a_runbook_that_says_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{alert}.md"
    text = (ROOT / rule["annotations"]["runbook_url"]).read_text(encoding="utf-8")
    assert text.startswith(f"# {alert}\n")
    assert all(section in text for section in _SECTIONS)
    assert rule["labels"]["severity"] in text


def test_no_runbook_without_an_alert() -> None:
    pages = {page.stem for page in (ROOT / "docs/runbooks").glob("*.md")} - {"README"}
    assert pages == set(ALERTS)


def test_promql_in_the_docs_is_promql_and_asks_for_what_exists(tmp_path: Path) -> None:
    pages = sorted(ROOT.glob("docs/**/*.md"))
    asked = [
        line
        for page in pages
        for block in re.findall(
            r"^```promql\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
        for line in block.splitlines()
        if line.startswith(("histogram_quantile(", "rate(", "sum", "max", "kvring_"))
    ]
    asked += [
        found.replace("\\|", "|")
        for found in re.findall(
            r"^\| [^|]* \| `((?:rate|sum|max|histogram_quantile|increase)[^`]*)`",
            (ROOT / "docs/metrics.md").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]
    assert len(asked) > 6
    file = tmp_path / "docs.json"
    rules = [{"record": f"docs:{number}", "expr": query} for number, query in enumerate(asked)]
    file.write_text(json.dumps({"groups": [{"name": "docs", "rules": rules}]}), encoding="utf-8")
    done = promtool.run("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
    known = lint_dashboard.known_metrics()
    for query in asked:
        names = {name for name in lint_dashboard.metrics_of(query) if name.startswith("kvring")}
        assert names <= known, query
