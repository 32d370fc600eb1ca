"""The Grafana dashboard: what docs/dashboard.py writes, without a fault, and every query is PromQL."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import lint_dashboard, promtool

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "helm/kvring/files/dashboards").glob("*.json"))


def load(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_dashboard_is_what_its_script_writes() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs/dashboard.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_dashboards_have_no_fault(file: Path) -> None:
    assert lint_dashboard.faults(load(file), lint_dashboard.known_metrics()) == []


def test_dashboard_shows_every_question_of_the_operator() -> None:
    asked = {
        name for query in lint_dashboard.queries(load(FILES[0])) for name in lint_dashboard.metrics_of(query)
    }
    documented = {name for name in lint_dashboard.known_metrics() if name.startswith("kvring_")}
    shown = {name for name in documented if any(one.startswith(name) for one in asked)}
    assert len(shown) > 30


BREAKS = {
    "unknown metric kvring_nothing": lambda panel: panel["targets"][0].update(
        expr="rate(kvring_nothing[5m])"
    ),
    "the range 5m": lambda panel: panel["targets"][0].update(expr="rate(kvring_streams_total[5m])"),
    "no unit": lambda panel: panel["fieldConfig"]["defaults"].pop("unit"),
    "no description": lambda panel: panel.pop("description"),
    "another data source": lambda panel: panel["datasource"].update(uid="prometheus"),
    "a query to another": lambda panel: panel["targets"][0]["datasource"].update(uid="x"),
    "overlaps": lambda panel: panel["gridPos"].update(x=1),
}


@pytest.mark.parametrize("fault", BREAKS)
def test_the_lint_finds(fault: str) -> None:
    board = copy.deepcopy(load(FILES[0]))
    BREAKS[fault](next(panel for panel in board["panels"] if panel["type"] != "row"))
    assert any(fault in found for found in lint_dashboard.faults(board, lint_dashboard.known_metrics()))


def test_every_query_is_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query}
        for number, query in enumerate(lint_dashboard.queries(load(FILES[0])))
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    done = promtool.run("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout
