"""Writes the Grafana dashboard, helm/kvring/files/dashboards/kvring.json, from docs/dashboard.yaml.

The YAML has what is worth reading: what a panel asks and means. What repeats (data source, layout, colours)
is said here, once. The JSON is what ships. `--check` only compares; tests/test_dashboard.py lints it.

Usage: python docs/dashboard.py [--check].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

_HERE = Path(__file__).parent
FILE = _HERE.parent / "helm/kvring/files/dashboards/kvring.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SIZES = {"stat": (4, 4), "timeseries": (8, 8)}
_PAGE_WIDTH = 24
_SHORT = {
    "{OF": '{pool=~"$pool",instance=~"$instance"',
    "{ALL": '{instance=~"$instance"',
    "[]": "[$__rate_interval]",
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in yaml.safe_load((_HERE / "dashboard.yaml").read_text(encoding="utf-8")):
        place = {"h": 1, "w": _PAGE_WIDTH, "x": 0, "y": top}
        head = {"id": len(panels) + 1, "type": "row", "title": row["row"], "collapsed": False, "panels": []}
        panels.append(head | {"gridPos": place})
        top, left, height = top + 1, 0, 0
        for panel in row["panels"]:
            width, height = _SIZES[panel.get("kind", "timeseries")]
            if left + width > _PAGE_WIDTH:
                left, top = 0, top + height
            panels.append(_panel(panel, len(panels) + 1, {"h": height, "w": width, "x": left, "y": top}))
            left += width
        top += height
    return {
        "uid": "kvring",
        "title": "kvring",
        "description": "Where prompts go, whether their cache is there, and what it is worth.",
        "tags": ["kvring", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_datasource(), _variable("instance"), _variable("pool")]},
        "panels": panels,
    }


def _panel(panel: dict[str, Any], number: int, place: dict[str, int]) -> dict[str, Any]:
    kind, is_stacked = panel.get("kind", "timeseries"), panel.get("stacked", False)
    steps = panel.get("steps", {"least": "text"})
    defaults: dict[str, Any] = {
        "unit": panel["unit"],
        "thresholds": {
            "mode": "absolute",
            "steps": [
                {"value": None if value == "least" else value, "color": color}
                for value, color in steps.items()
            ],
        },
    }
    if "most" in panel:
        defaults |= {"min": 0, "max": panel["most"]}
    if kind == "stat":
        options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"}
    else:
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 20 if is_stacked else 0,
            "showPoints": "never",
            "stacking": {"mode": "normal" if is_stacked else "none", "group": "A"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel["says"],
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": _full(query), "legendFormat": legend}
            for at, (legend, query) in enumerate(panel["queries"].items())
        ],
    }


def _full(query: str) -> str:
    for short, long in _SHORT.items():
        query = query.replace(short, long)
    return query


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
    }


def _variable(label: str) -> dict[str, Any]:
    metric = "kvring_build_info" if label == "instance" else "kvring_pool_generation"
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {label})", "refId": label},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def main() -> int:
    """Write, or with --check compare."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if "--check" in sys.argv:
        is_current = FILE.exists() and FILE.read_text(encoding="utf-8") == text
        if not is_current:
            print(f"{FILE.name}: out of date; run make docs")
        return 0 if is_current else 1
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
