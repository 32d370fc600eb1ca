"""The doctor's parts: samples, stays, figures, traffic, saved files, series, PromQL."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extproc.doctor import figures, histogram, promql, quantity, sample, saved, series, stay, traffic, words
from extproc.signals import Engine
from tests import fleets, promtool

DUMP = fleets.REAL.read_bytes()


def histogram_of(
    values: list[float], bounds: tuple[float, ...] = (1, 2, 5, 10, math.inf)
) -> histogram.Histogram:
    return histogram.Histogram(
        tuple((bound, float(sum(value <= bound for value in values))) for bound in bounds), sum(values)
    )


VALUES = st.lists(st.floats(0, 20, allow_nan=False), max_size=30)


class TestHistogram:
    @given(VALUES, VALUES)
    def test_what_was_merged_can_be_taken_away(self, one: list[float], other: list[float]) -> None:
        both = histogram.merge([histogram_of(one), histogram_of(other)])
        assert both.count == len(one) + len(other)
        rest = histogram.Histogram(both.buckets, both.total + 1e-6).minus(histogram_of(other))
        assert rest.buckets == histogram_of(one).buckets
        assert rest.total == pytest.approx(sum(one), abs=1e-5)

    def test_a_histogram_that_fell_began_anew(self) -> None:
        later = histogram_of([3.0])
        assert later.minus(histogram_of([1.0, 3.0])) == later

    @given(VALUES, VALUES)
    def test_merging_loses_nothing_where_bounds_differ(self, one: list[float], other: list[float]) -> None:
        both = histogram.merge([histogram_of(one), histogram_of(other, (4, 8, math.inf))])
        counts = [count for _, count in both.buckets]
        assert counts == sorted(counts)
        assert both.count == len(one) + len(other)

    def test_nothing_has_no_mean_and_no_quantile(self) -> None:
        empty = histogram.EMPTY
        assert (empty.count, empty.mean, empty.quantile(0.5), empty.up_to(1), empty.mean_below(1)) == (
            0, None, None, 0, None,
        )  # fmt: skip


class TestSample:
    def test_a_real_dump_is_read(self) -> None:
        one = sample.read("r", 5.0, DUMP)
        assert (one.engine, one.model, one.kv_tokens, one.block_tokens) == (Engine.VLLM, "tiny", 35_200, 32)
        assert one.prefix_caching is sample.Switch.ON
        assert one.histograms["ttft_s"].count == 155
        assert one.numbers["rejections"] == 9

    def test_what_no_engine_said_is_of_no_engine(self) -> None:
        for text in (b"", b"\xff\x00{}", b"up 1\n", b"kvring_build_info 1\n"):
            assert sample.read("r", None, text).engine is Engine.UNKNOWN

    @given(st.integers(0, len(DUMP)), st.binary(max_size=8))
    def test_no_exposition_however_broken_raises(self, at: int, noise: bytes) -> None:
        one = sample.read("r", 1.0, DUMP[:at][-3000:] + noise + DUMP[at : at + 3000])
        assert figures.figures(stay.watched([one])).requests >= 0

    def test_sglang_is_read_by_its_own_names(self) -> None:
        text = b"""
sglang:num_running_reqs{model_name="m",tp_rank="0"} 3
sglang:num_running_reqs{model_name="m",tp_rank="1"} 3
sglang:max_total_num_tokens{model_name="m"} 100000
sglang:prompt_tokens_total{model_name="m"} 1000
sglang:cached_tokens_total{model_name="m",cache_source="device"} 200
sglang:cached_tokens_total{model_name="m",cache_source="host"} 300
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 40
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 60
sglang:time_to_first_token_seconds_sum{model_name="m"} 30
"""
        one = sample.read("r", None, text)
        told = figures.figures(stay.watched([one]))
        assert (one.engine, one.model, one.numbers["running"]) == (Engine.SGLANG, "m", 3)
        assert (told.hit_device, told.hit_host, told.hit_external, told.hit) == (0.2, 0.3, 0, 0.5)
        assert (told.requests, told.ttft_mean_s) == (60, 0.5)

    def test_kvring_itself_is_told_from_an_engine(self) -> None:
        assert sample.steers(b'# TYPE kvring_build_info gauge\nkvring_build_info{version="1"} 1\n')
        assert not sample.steers(DUMP)


def taken(at_s: float, *, started_s: float = 0.0, prompt: float = 0.0, waiting: float = 0.0) -> sample.Sample:
    return sample.Sample(
        "r",
        at_s,
        Engine.VLLM,
        "m",
        started_s,
        {"prompt_tokens": prompt, "waiting": waiting, "queries": prompt},
    )


class TestStay:
    def test_counters_are_differences_and_gauges_means(self) -> None:
        seen = stay.watched([taken(10, prompt=100), taken(20, prompt=150, waiting=4), taken(30, prompt=300)])
        assert (seen.counts["prompt_tokens"], seen.elapsed_s, seen.restarts) == (200, 20, 0)
        assert (seen.gauges["waiting"], seen.peaks["waiting"]) == (pytest.approx(4 / 3), 4)
        assert not seen.since_start

    def test_one_sample_reaches_back_to_the_start(self) -> None:
        seen = stay.watched([taken(30, started_s=5, prompt=300)])
        assert (seen.counts["prompt_tokens"], seen.elapsed_s, seen.since_start) == (300, 25, True)

    @pytest.mark.parametrize("after", [taken(30, started_s=25, prompt=300), taken(30, prompt=50)])
    def test_after_a_restart_only_the_new_process_counts(self, after: sample.Sample) -> None:
        seen = stay.watched([taken(10, prompt=100), after])
        assert seen.restarts == 1
        assert seen.counts["prompt_tokens"] == after.numbers["prompt_tokens"]
        assert seen.elapsed_s == after.at_s - after.started_s
        assert seen.watched_s == 20

    def test_an_unknown_time_is_no_time(self) -> None:
        one = dataclasses.replace(taken(0, prompt=10), at_s=None)
        assert figures.figures(stay.watched([one])).requests_per_s is None


class TestTraffic:
    def test_tail_and_working_set_are_read_from_the_two_heaps(self) -> None:
        whole = _whole("thrashing")
        load = traffic.infer(whole, figures.figures(whole), routed=False)
        assert load is not None
        assert load.measured
        assert 20 < load.tail_mean < 60  # 40 and half a block
        assert load.working_set == pytest.approx(300 * 13_200, rel=0.25)

    def test_lengths_have_the_mean_of_the_prompts_less_the_tail(self) -> None:
        whole = _whole("missing")
        load = traffic.infer(whole, figures.figures(whole), routed=False)
        assert load is not None
        for count in (1, 5, 50):
            lengths = load.lengths(count)
            assert len(lengths) == count
            assert sum(lengths) / count == pytest.approx(load.prompt_mean - load.tail_mean, rel=0.01)

    def test_nothing_found_says_nothing(self) -> None:
        whole = _whole("caching-off")
        assert traffic.infer(whole, figures.figures(whole), routed=False) is None


def _whole(name: str) -> stay.Stay:
    by: dict[str, list[sample.Sample]] = {}
    for one in fleets.samples(name):
        by.setdefault(one.replica, []).append(one)
    return stay.together(name, [stay.watched(samples) for samples in by.values()])


class TestSaved:
    @given(st.text(min_size=1, max_size=30), st.floats(0, 4e9))
    def test_a_name_gives_back_time_and_replica_or_what_can_stand_in_a_name(
        self, replica: str, at: float
    ) -> None:
        name = saved.name_of(replica, at)
        assert "/" not in name
        found, at_s = saved.named(name)
        assert at_s == pytest.approx(at, abs=0.001)
        assert len(found) == len(replica)

    def test_other_names_are_replicas_of_unknown_time(self) -> None:
        assert saved.named("metrics.txt.gz") == ("metrics", None)
        assert saved.named("vllm-0@12.5.prom.gz") == ("vllm-0", 12.5)

    def test_thinning_loses_nothing_that_is_read(self) -> None:
        thin = saved.thinned(DUMP)
        assert len(thin) < len(DUMP) / 2
        assert sample.read("r", 1.0, thin) == sample.read("r", 1.0, DUMP)


class TestSeries:
    def test_series_turned_back_are_what_the_engine_said(self) -> None:
        result = [
            {
                "metric": {"__name__": name, "instance": "a:1", "job": "vllm"} | labels,
                "values": [[5.0, value]],
            }
            for name, labels, value in _lines(DUMP)
        ]
        (one,) = series.samples([{"status": "success", "data": {"resultType": "matrix", "result": result}}])
        told = sample.read("a:1", 5.0, DUMP)
        assert one.replica == "a:1"
        assert one == told

    @pytest.mark.parametrize(
        "answer",
        [
            {},
            {"status": "error", "error": "bad matcher"},
            {"status": "success", "data": {"result": [{"metric": None, "values": 1}]}},
            {"status": "success", "data": {"result": [{"metric": {}, "values": [["x", "1"]]}]}},
            {"status": "success", "data": None},
        ],
    )
    def test_what_is_no_answer_is_said_to_be_none(self, answer: dict[str, object]) -> None:
        with pytest.raises(series.SeriesError, match=r"bad matcher|not an answer"):
            series.samples([answer])

    def test_a_selector_may_have_braces(self) -> None:
        assert series.matchers('{job="vllm"}') == series.matchers(' job="vllm" ') == 'job="vllm"'
        assert series.matchers("") == ""


class TestPromQL:
    @pytest.mark.parametrize("engine", [Engine.VLLM, Engine.SGLANG])
    @pytest.mark.parametrize("per_replica", [False, True])
    @pytest.mark.parametrize("selector", ["", 'job="vllm",zone=~"a|b"'])
    def test_promtool_accepts_every_query(self, tmp_path, engine, per_replica, selector) -> None:
        rows = promql.rows(promql.Asked(engine, selector, "5m", per_replica))
        queries = [row.query for row in rows if row.query]
        queries += series.queries(selector)
        rules = [{"record": f"x:{number}", "expr": query} for number, query in enumerate(queries)]
        file = tmp_path / "rules.yaml"
        file.write_text(yaml.safe_dump({"groups": [{"name": "doctor", "rules": rules}]}))
        done = promtool.run("check", "rules", "--lint=none", file)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_queries_ask_only_for_metrics_the_doctor_reads(self) -> None:
        known = set(quantity.families())
        for engine in (Engine.VLLM, Engine.SGLANG):
            text = " ".join(row.query or "" for row in promql.rows(promql.Asked(engine)))
            asked = set(re.findall(r"((?:vllm|sglang):\w+|http_requests_total|process_\w+)", text))
            assert asked
            assert asked <= known

    def test_every_metric_asked_for_is_one_a_real_engine_has(self) -> None:
        text = " ".join(row.query or "" for row in promql.rows(promql.Asked(Engine.VLLM)))
        for name in set(re.findall(r"vllm:\w+", text)):
            assert f"\n{name}{{".encode() in DUMP, name


def _lines(text: bytes) -> list[tuple[str, dict[str, str], str]]:
    wanted = set(quantity.families())
    found = []
    for line in text.decode().splitlines():
        name = re.split(r"[{ ]", line, maxsplit=1)[0]
        if name in wanted:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', line))
            found.append((name, labels, line.rsplit(" ", 1)[1]))
    return found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0 ms"),
        (0.0384, "38 ms"),
        (1.0, "1.0 s"),
        (75, "75.0 s"),
        (600, "10 min"),
        (7200, "2 h"),
    ],
)
def test_durations_are_as_people_read_them(value: float | None, text: str) -> None:
    assert words.seconds(value) == text
