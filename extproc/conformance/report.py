"""Report: the outcomes as a table for a terminal, with what they mean.

Called by: cli.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from extproc.conformance.check import Check, Outcome, Result, Severity
from extproc.conformance.run import Report

__all__ = ["catalogue", "drawn"]

_MARKS = {
    (Result.PASS, Severity.MUST): ("pass", "green"),
    (Result.PASS, Severity.SHOULD): ("pass", "green"),
    (Result.FAIL, Severity.MUST): ("FAIL", "bold red"),
    (Result.FAIL, Severity.SHOULD): ("fail", "yellow"),
    (Result.SKIP, Severity.MUST): ("skip", "cyan"),
    (Result.SKIP, Severity.SHOULD): ("skip", "cyan"),
}
_ENDPOINTS_SHOWN = 6


def drawn(report: Report) -> RenderableType:
    """The whole report."""
    return Group(_head(report), _table(report.outcomes), _sums(report), _how_to_read(report))


def catalogue(checks: Sequence[Check]) -> RenderableType:
    """What is asked, without asking."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("check", "", "what is asked", "source"):
        table.add_column(column, no_wrap=column == "check", ratio=None)
    group = ""
    for check in checks:
        if group and check.group != group:
            table.add_section()
        group = check.group
        table.add_row(check.id, check.severity.value, Text(check.asks), Text(check.source, style="dim"))
    return table


def _head(report: Report) -> Text:
    shown = ", ".join(report.pool[:_ENDPOINTS_SHOWN]) or "no endpoint"
    if len(report.pool) > _ENDPOINTS_SHOWN:
        shown += f", and {len(report.pool) - _ENDPOINTS_SHOWN} more"
    learnt = "" if report.pool_told else "  (learnt from its answers; --endpoints tells all)"
    text = Text(f"Endpoint picker {report.address}\n", style="bold")
    text.append(f"pool      {shown}{learnt}\n", style="not bold")
    if report.latency is None:
        text.append("latency   it never picked", style="not bold")
    else:
        median, worst = report.latency.median_s * 1000, report.latency.worst_s * 1000
        count = report.latency.count
        text.append(
            f"latency   {median:.1f} ms from request to endpoint (median of {count}), worst {worst:.1f} ms",
            style="not bold",
        )
    return text


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("what is asked; where it fails, what happened")
    group = ""
    for outcome in outcomes:
        if group and outcome.check.group != group:
            table.add_section()
        group = outcome.check.group
        mark, style = _MARKS[outcome.result, outcome.check.severity]
        table.add_row(
            Text(mark, style), Text(outcome.check.severity.value, "dim"), outcome.check.id, _said(outcome)
        )
    return table


def _said(outcome: Outcome) -> Text:
    match outcome.result:
        case Result.PASS:
            more = f"  ({outcome.words})" if outcome.words else ""
            return Text(outcome.check.asks + more, style="dim")
        case Result.SKIP:
            return Text.assemble(
                (f"{outcome.check.asks}\n", "dim"), (f"not looked at: {outcome.words}", "cyan")
            )
        case Result.FAIL:
            return Text.assemble(
                f"{outcome.check.asks}\n",
                (f"it did not: {outcome.words}\n", _MARKS[Result.FAIL, outcome.check.severity][1]),
                f"operators see: {outcome.check.shows}\n",
                (f"source: {outcome.check.source}", "dim"),
            )


def _sums(report: Report) -> Text:
    must, should = (report.count(Result.FAIL, severity) for severity in (Severity.MUST, Severity.SHOULD))
    text = Text()
    text.append(f"{report.count(Result.PASS)} passed", "green")
    text.append(", ")
    text.append(f"{must} must failed", "bold red" if must else "")
    text.append(", ")
    text.append(f"{should} should failed", "yellow" if should else "")
    text.append(f", {report.count(Result.SKIP)} skipped")
    for severity, style in ((Severity.MUST, "bold red"), (Severity.SHOULD, "yellow")):
        failed = [
            outcome.check.id
            for outcome in report.outcomes
            if outcome.result is Result.FAIL and outcome.check.severity is severity
        ]
        if failed:
            text.append(f"\n{severity.value}: ")
            text.append(", ".join(failed), style)
    return text


def _how_to_read(report: Report) -> Text:
    text = Text()
    if not report.conforms():
        text.append("It does not conform: ", "bold red")
        text.append("with some gateway that keeps to the contract, requests fail or lose their endpoint.\n")
    elif not report.count(Result.PASS):
        text.append("Nothing was looked at.\n", "bold")
    else:
        text.append("It conforms", "bold green")
        text.append(", as far as was looked.\n")
    text.append(
        "must: a gateway that keeps to the contract depends on it. should: some gateways, other body modes,"
        " or safety do. skip: it could not be told here. More: docs/conformance.md",
        "dim",
    )
    return text
