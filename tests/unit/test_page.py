"""Picture and page: what a reader gets, from figures made up for the purpose."""

import re
import struct
import sys
import xml.etree.ElementTree as ET

import pytest

from extproc.sim import demo, lag, page, picture, report, sample, sheet

WINDOW = report.Window(0.0, 100.0)


def _samples(count, ttft_s, cached_tokens, endpoint="replica-{}"):
    return [
        sample.Sample(
            user=0,
            turn=index,
            prefix=index % 5,
            endpoint=endpoint.format(index % 8),
            started_s=index * 100 / count,
            finished_s=index * 100 / count + 3,
            ttft_s=ttft_s * (1 + index % 10),
            prompt_tokens=5000,
            cached_tokens=cached_tokens,
            output_tokens=100,
        )
        for index in range(count)
    ]


def _result(machine=None, baseline=None):
    setup = report.Setup(
        seed=1,
        users=30,
        endpoints=8,
        prefix_tokens=(2000, 8000),
        speed=3.0,
        seconds=75.0,
        warmup_s=60.0,
        measured_s=165.0,
        preset=demo.PRESET,
        node_price_usd_per_h=10.0,
    )
    arms = {
        report.BASELINE: report.arm_report(
            _samples(200, 0.5, 2300) if baseline is None else baseline, WINDOW, 8
        ),
        report.CANDIDATE: report.arm_report(_samples(260, 0.03, 4800, "replica-0"), WINDOW, 8),
    }
    return report.Report(setup, arms, machine or lag.Machine(0.3, 0.7, 4.0, 20.0, 2))


def test_the_png_is_1200_pixels_wide_and_the_svg_is_xml_without_references():
    drawn = picture.draw(_result())
    width, height = struct.unpack(">II", drawn.png[16:24])
    assert (width, height) == (1200, 560)
    root = ET.fromstring(drawn.svg)  # noqa: S314 - made three lines above
    assert root.tag.endswith("svg")
    links = [value for node in root.iter() for name, value in node.attrib.items() if name.endswith("href")]
    assert all(link.startswith("#") for link in links)


def test_the_same_result_gives_the_same_picture():
    assert picture.draw(_result()).svg == picture.draw(_result()).svg


def test_the_page_needs_nothing_but_itself():
    html = page.render(_result(), picture.draw(_result()).svg_clear)
    assert "<script" not in html
    assert "<link" not in html
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", html)
    assert "url(http" not in html
    assert html.count("<svg") == 1
    assert sheet.INK not in html.partition("<figure>")[2].partition("</figure>")[0]


def test_the_page_shows_the_tables_figures_and_the_idle_replicas():
    result = _result()
    html = page.render(result, None)
    for row in report.rows(result.arms, 10.0):
        assert all(value in html for value in row.values)
    assert html.count('<div class="bar">') == 16
    assert "<svg" not in html


def test_the_page_says_what_was_missed_and_what_to_doubt():
    html = page.render(
        _result(lag.Machine(0.99, 1.0, 90.0, 400.0, 1), baseline=_samples(260, 0.03, 4800)), None
    )
    assert html.count(">missed<") == 3
    assert html.count(">holds<") == 1
    assert "late by up to 90 ms" in html


def test_a_run_without_any_answer_is_drawn_and_told_all_the_same():
    empty = _result(baseline=[])
    assert picture.draw(empty).png.startswith(b"\x89PNG")
    assert "nothing was measured" in page.render(empty, None)


def test_without_matplotlib_the_page_is_written_and_the_reason_returned(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    missing = demo.write(_result(), tmp_path / "deep" / "out")
    assert "extra sim" in missing
    assert sorted(path.name for path in (tmp_path / "deep" / "out").iterdir()) == [
        "index.html",
        "result.json",
    ]


def test_a_run_is_written_as_page_picture_and_figures(tmp_path):
    assert demo.write(_result(), tmp_path) is None
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["index.html", "picture.png", "picture.svg", "result.json"]


@pytest.mark.parametrize(("seconds", "warmup_s"), [(75, 60.0), (100, 60.0), (10, 9.0)])
def test_the_warm_up_is_60_s_but_never_more_than_three_tenths_of_the_run(seconds, warmup_s):
    assert demo.Settings(seconds=seconds, speed=3.0).window == report.Window(warmup_s, seconds * 3.0)
