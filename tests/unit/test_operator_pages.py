"""Pages for operators name only what exists: metrics, reasons, findings, settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from extproc import metrics, pool, prompt, router, standing
from extproc.config import allowed
from extproc.doctor.finding import Kind
from extproc.doctor.quantity import families

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["quickstart.md", "troubleshooting.md", "faq.md", "doctor.md"]


def known_metrics() -> dict[str, set[str]]:
    """kvring's metrics, each with the values of its label `reason`."""
    one = pool.Endpoint(pool.EndpointId("e"), "127.0.0.1:1")
    counted = metrics.Metrics(router.Router(pool.make("default", [one]), router.Settings()), lambda: 0.0, 0.0)
    counted.add_pool("default")
    found: dict[str, set[str]] = {}
    for family in counted.registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = {sample.labels["reason"] for sample in family.samples if "reason" in sample.labels}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_metric_on_the_page_is_there(page: str) -> None:
    text = (DOCS / page).read_text()
    assert set(re.findall(r"\bkvring_\w+", text)) - {"kvring_build_info"} <= set(known_metrics())
    plain = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in families()}
    told = {
        re.sub(r"_(bucket|sum|count|total)$", "", name) for name in re.findall(r"\b(?:vllm|sglang):\w+", text)
    }
    assert told <= plain


def test_troubleshooting_has_every_reason_for_no_opinion_and_those_for_no_chain_it_can_mend() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    no_opinion = _section(text, "not steered")
    for reason in known_metrics()["kvring_no_opinion_total"]:
        assert f"`{reason}`" in no_opinion
    named = set(re.findall(r"^ +\| (`.*?`) \|", _section(text, "Hit rate is low"), re.MULTILINE))
    values = {value for cell in named for value in re.findall(r"`(\w+)`", cell)} - {"reason"}
    assert values
    assert values <= {reason.value for reason in prompt.Unkeyed}


def test_troubleshooting_says_what_to_do_about_all_that_can_be_against_an_endpoint() -> None:
    section = _section((DOCS / "troubleshooting.md").read_text(), "Nobody may be chosen")
    for reason in standing.Against:
        assert f"`{reason.value}`" in section


def test_every_finding_is_on_the_doctors_page() -> None:
    text = (DOCS / "doctor.md").read_text()
    for kind in Kind:
        assert f"`{kind.value}`" in text


def test_settings_on_the_pages_are_settings() -> None:
    keys = {row.key.rpartition(".")[2].replace("[]", "") for row in allowed.settings()}
    for name in ("kv_tokens", "streams_max", "bound_factor"):
        assert name in keys
        assert f"`{name}`" in (DOCS / "troubleshooting.md").read_text()


def _section(text: str, title: str) -> str:
    found = re.search(rf"^## [^\n]*{title}.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[0]
