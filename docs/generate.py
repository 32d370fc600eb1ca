"""Writes the generated tables of docs/*.md from the code; `--check` only compares.

Usage: python docs/generate.py [--check]. Exit code 1 if --check finds a page out of date. A test runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import chart

from extproc import metrics, pool, router, traps, views
from extproc.config import allowed
from extproc.conformance import catalogue
from extproc.doctor import promql
from extproc.signals import Engine

_HERE = Path(__file__).parent
_BEGIN, _END = "<!-- generated: begin -->\n", "<!-- generated: end -->\n"


def configuration() -> str:
    """The table of settings."""
    lines = ["| setting | allowed | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{row.key}` | {_cell(row.allowed)} | {row.default} | {_cell(row.meaning)} |"
        for row in allowed.settings()
    ]
    return "\n".join(lines) + "\n"


def metric_table() -> str:
    """The table of metrics, as a scrape of an idle kvring shows them."""
    one = pool.Endpoint(pool.EndpointId("vllm-0"), "127.0.0.1:1")
    shared = views.SharingView("store", True, "", 0, 0, True, {"x": 0}, {"x": 0}, 0, 0, 0, 0, 0)
    chooser = router.Router(pool.make("default", [one]), router.Settings())
    counted = metrics.Metrics(chooser, lambda: 0.0, 0.0, lambda: shared)
    counted.add_pool("default")
    counted.add_hasher("hashed")
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in sorted(counted.registry.collect(), key=lambda found: found.name):
        name = family.name + ("_total" if family.type == "counter" else "")
        told = {key for sample in family.samples for key in sample.labels}
        labels = sorted(told.union(getattr(family, "_labelnames", ())) - {"le"})
        lines.append(f"| `{name}` | {family.type} | {', '.join(labels)} | {_cell(family.documentation)} |")
    return "\n".join(lines) + "\n"


def trap_table() -> str:
    """The table of traps, the worst first."""
    order = ("error", "warning", "note")
    lines = ["| trap | | what happens | what mends it |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {trap.severity} | {_cell(trap.happens)} | {_cell(trap.mend)} |"
        for name, trap in sorted(traps.TRAPS.items(), key=lambda one: order.index(one[1].severity))
    ]
    return "\n".join(lines) + "\n"


def promql_table() -> str:
    """The doctor's figures as queries over the fleet."""
    ours = promql.rows(promql.Asked(Engine.VLLM, "$sel"))
    theirs = promql.rows(promql.Asked(Engine.SGLANG, "$sel"))
    lines = ["| figure | unit | vLLM | SGLang |", "|---|---|---|---|"]
    for row, other in zip(ours, theirs, strict=True):
        cells = [f"`{_cell(query)}`" if query else "-" for query in (row.query, other.query)]
        lines.append(f"| {row.figure} | {row.unit} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def conformance_table() -> str:
    """The table of checks, in the order of the report."""
    lines = [
        "| check | | what is asked | where it fails, operators see | source |",
        "|---|---|---|---|---|",
    ]
    for check in catalogue.ALL:
        cells = (check.severity.value, check.asks, check.shows, check.source)
        lines.append(f"| `{check.id}` | {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    text = text.replace("^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$", "letters, digits, `._:/-`")
    text = text.replace("^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "lower-case letters, digits, `.-`")
    return text.replace("|", "\\|")


def _replaced(page: Path, table: str) -> str:
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not (begin and end):
        raise SystemExit(f"{page}: no generated part")
    return head + begin + table + end + tail


def _chart_readme() -> list[tuple[Path, str]]:
    page = chart.CHART / "README.md"
    return [(page, _replaced(page, chart.table()))]


def main() -> int:
    """Write, or with --check compare."""
    stale = []
    tables = (
        ("configuration.md", configuration()),
        ("metrics.md", metric_table()),
        ("envoy.md", trap_table()),
        ("doctor.md", promql_table()),
        ("conformance.md", conformance_table()),
    )
    for name, table in tables:
        page = _HERE / name
        text = _replaced(page, table)
        if text == page.read_text(encoding="utf-8"):
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            page.write_text(text, encoding="utf-8")
    for path, text in ((chart.CHART / "values.schema.json", chart.schema()), *_chart_readme()):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(f"../helm/kvring/{path.name}")
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"docs/{name}: {'out of date; run make docs' if '--check' in sys.argv else 'written'}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
