"""Lint of a Grafana dashboard: `faults(dashboard, known)` is everything wrong with it, in words.

Every panel says what it shows, in a unit, from the dashboard's own data source; every query asks only for
metrics that exist, over `$__rate_interval`. Usage: python tests/lint_dashboard.py FILE.json... (exit code 1
with faults).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

__all__ = ["faults", "known_metrics", "metrics_of", "queries"]

ROOT = Path(__file__).parents[1]
_SOURCE = "${datasource}"
_NO_UNIT = ("", None)
_WORDS = {
    "and", "avg", "bool", "by", "clamp_max", "group_left", "group_right", "histogram_quantile", "ignoring",
    "increase", "max", "min", "offset", "on", "or", "rate", "sum", "topk", "unless", "vector", "without",
}  # fmt: skip
_RANGE = re.compile(r"\[([^\]]*)\]")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def faults(dashboard: dict[str, Any], known: Collection[str]) -> list[str]:
    """What is wrong with `dashboard`; `known`: names of series that exist."""
    return [*_variable_faults(dashboard), *_panel_faults(dashboard, known)]


def queries(dashboard: dict[str, Any]) -> list[str]:
    """All PromQL of `dashboard`, as it would be asked."""
    found = []
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            asked = target["expr"].replace("$__rate_interval", "5m")
            found.append(re.sub(r"\$\w+", ".*", asked))
    return found


def metrics_of(query: str) -> set[str]:
    """Names of series in a query."""
    bare = re.sub(r'"[^"]*"', "", query)
    bare = re.sub(r"\{[^}]*\}", " ", bare)
    bare = _RANGE.sub(" ", bare)
    bare = _GROUPING.sub(" ", bare)
    return set(_NAME.findall(bare)) - _WORDS


def known_metrics() -> set[str]:
    """Series named in docs/metrics.md, and what the recording rules record."""
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    known: set[str] = set()
    for name, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE):
        known.add(name)
        if kind == "histogram":
            known |= {f"{name}_{end}" for end in ("bucket", "sum", "count")}
    rules = (ROOT / "helm/kvring/files/rules/kvring-recording.yaml").read_text(encoding="utf-8")
    return known | set(re.findall(r"record: (\S+)", rules))


def _variable_faults(dashboard: dict[str, Any]) -> Iterator[str]:
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    if variables.get("datasource", {}).get("type") != "datasource":
        yield "no variable `datasource` of type datasource"
    for name, one in variables.items():
        if one["type"] == "query" and one["datasource"]["uid"] != _SOURCE:
            yield f"variable {name}: another data source"
    if not dashboard.get("description"):
        yield "no description"


def _panel_faults(dashboard: dict[str, Any], known: Collection[str]) -> Iterator[str]:
    numbers = [panel["id"] for panel in dashboard["panels"]]
    if len(set(numbers)) != len(numbers):
        yield "two panels of one id"
    titles = [panel["title"] for panel in dashboard["panels"]]
    yield from (f"two panels named {title}" for title in set(titles) if titles.count(title) > 1)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        if cells & taken or place["x"] + place["w"] > 24:
            yield f"{panel['title']}: overlaps another, or leaves the page"
        taken |= cells
        if panel["type"] != "row":
            yield from (f"{panel['title']}: {what}" for what in _of_panel(panel, known))


def _of_panel(panel: dict[str, Any], known: Collection[str]) -> Iterator[str]:
    if len(panel.get("description", "")) < 20:
        yield "no description"
    if panel["fieldConfig"]["defaults"].get("unit") in _NO_UNIT:
        yield "no unit"
    if panel["datasource"]["uid"] != _SOURCE:
        yield "another data source"
    if not panel["targets"]:
        yield "no query"
    for target in panel["targets"]:
        if target["datasource"]["uid"] != _SOURCE:
            yield "a query to another data source"
        if not target.get("legendFormat"):
            yield "a query without a legend"
        yield from (f"unknown metric {name}" for name in sorted(metrics_of(target["expr"]) - set(known)))
        yield from (
            f"the range {found}, not $__rate_interval"
            for found in _RANGE.findall(target["expr"])
            if found != "$__rate_interval"
        )


if __name__ == "__main__":
    wrong = [
        f"{name}: {fault}"
        for name in sys.argv[1:]
        for fault in faults(json.loads(Path(name).read_text(encoding="utf-8")), known_metrics())
    ]
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    sys.exit(1 if wrong else 0)
