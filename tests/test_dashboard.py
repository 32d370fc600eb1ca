"""The Grafana dashboard: what docs/dashboard.py writes, without a fault, and every query is PromQL."""

from __future__ import annotations

import copy
import json
import re
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


LEFT_OUT = {
    "kvring_answer_tokens_total": "only where kvring is shown answers' bodies",
    "kvring_build_info": "chooses the instance",
    "kvring_bytes_per_token": "reckoned with, in /api/state",
    "kvring_certificate_end_time_seconds": "an alert's: KvringCertificateEnds",
    "kvring_choice_signals_total": "the age of signals tells it",
    "kvring_endpoint_share": "kvring_bound_ratio reckons with it",
    "kvring_pool_generation": "chooses the pool",
    "kvring_prefill_tokens_per_second": "reckoned with, in /api/state",
    "kvring_residency_scale": "an alert's: KvringCacheDiscounted",
    "kvring_sharing_heard_bytes_total": "messages tell it",
    "kvring_sharing_peer_leases": "follows requests in flight",
    "kvring_sharing_told_bytes_total": "messages tell it",
    "kvring_start_time_seconds": "gaps in any panel tell it",
    "kvring_streams_total": "the sum of choices, hashes and no opinion",
    "kvring_work_tokens": "kvring_bound_ratio is it over the bound",
}


def test_every_metric_of_kvring_is_in_a_panel_or_left_out_for_a_reason() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(kvring_\w+)` \| \w+ \|", page, re.MULTILINE))
    asked = {
        re.sub("_(bucket|sum|count)$", "", name)
        for query in lint_dashboard.queries(load(FILES[0]))
        for name in lint_dashboard.metrics_of(query)
    }
    assert documented - asked == set(LEFT_OUT)


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
