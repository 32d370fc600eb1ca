"""Report: its arithmetic against values worked out by hand."""

import json

import numpy as np
import pytest

from extproc.sim import lag, report, sample

WINDOW = report.Window(10.0, 20.0)
FINE = lag.Machine(
    client_cpu_share=0.3, machine_cpu_share=0.6, loop_lag_p99_ms=2.0, loop_lag_max_ms=9.0, cores=2
)


def _sample(started_s=12.0, **given):
    fields = {
        "user": 0,
        "turn": 0,
        "prefix": 0,
        "endpoint": "a",
        "started_s": started_s,
        "finished_s": started_s + 1,
        "ttft_s": 0.1,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 10,
    }
    return sample.Sample(**(fields | given))


def _setup():
    return report.Setup(
        seed=1,
        users=2,
        endpoints=2,
        prefix_tokens=(2000,),
        speed=3.0,
        seconds=10.0,
        warmup_s=10.0,
        measured_s=10.0,
        preset="codellama-13b-a100-40",
        node_price_usd_per_h=10.0,
    )


def _arm(**given):
    base = report.arm_report([_sample()], WINDOW, 2)
    fields = {name: getattr(base, name) for name in base.__slots__}
    return report.ArmReport(**(fields | given))


@pytest.mark.parametrize("share", [0, 0.5, 0.95, 0.99, 1])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
def test_percentiles_are_numpys(share, count):
    values = sorted(float((7 * index) % 31) for index in range(count))
    assert report.percentile(values, share) == pytest.approx(np.percentile(values, share * 100))


def test_percentiles_of_known_values():
    values = [float(value) for value in range(1, 101)]
    assert report.percentile(values, 0.5) == 50.5
    assert report.percentile(values, 0.99) == pytest.approx(99.01)
    assert report.percentile([], 0.5) is None


def test_affinity_compares_with_the_same_prefixs_previous_request_by_begin():
    samples = [
        _sample(11.0, prefix=0, endpoint="a"),
        _sample(12.0, prefix=1, endpoint="b"),
        _sample(13.0, prefix=0, endpoint="a"),  # hit
        _sample(14.0, prefix=1, endpoint="a"),  # miss
        _sample(15.0, prefix=1, endpoint="a"),  # hit
        _sample(16.0, prefix=0, endpoint="b"),  # miss
    ]
    assert report.affinity_hit(reversed(samples), WINDOW) == 2 / 4


def test_affinity_counts_a_predecessor_in_the_warm_up_but_no_request_of_it():
    samples = [_sample(1.0), _sample(2.0, endpoint="b"), _sample(12.0, endpoint="b")]
    assert report.affinity_hit(samples, WINDOW) == 1.0
    assert report.affinity_hit(samples[:2], WINDOW) is None


def test_affinity_passes_over_failed_requests():
    samples = [_sample(11.0), _sample(12.0, endpoint="", error="connect"), _sample(13.0)]
    assert report.affinity_hit(samples, WINDOW) == 1.0


def test_strict_alternation_over_n_endpoints_never_hits():
    samples = [_sample(10.0 + step / 10, endpoint="abcd"[step % 4]) for step in range(80)]
    assert report.affinity_hit(samples, WINDOW) == 0.0


def test_engine_hit_weighs_by_tokens_not_by_requests():
    samples = [
        _sample(11.0, prompt_tokens=1000, cached_tokens=900),
        _sample(12.0, prompt_tokens=100, cached_tokens=0),
    ]
    assert report.arm_report(samples, WINDOW, 2).engine_hit == 900 / 1100


def test_latency_is_of_requests_begun_in_the_window_throughput_of_those_finished_in_it():
    samples = [
        _sample(9.0, finished_s=11.0, ttft_s=5.0),  # throughput only
        _sample(15.0, finished_s=16.0, ttft_s=0.2),  # both
        _sample(19.0, finished_s=25.0, ttft_s=4.0),  # latency only: slow, and not cut off
    ]
    arm = report.arm_report(samples, WINDOW, 2)
    assert arm.requests == 2
    assert arm.ttfts_ms == (200.0, 4000.0)
    assert arm.requests_per_s == 2 / 10
    assert arm.output_tokens_per_s == 20 / 10


def test_a_failed_request_is_an_error_and_nothing_else():
    samples = [_sample(11.0), _sample(12.0, error="http 503", ttft_s=None, endpoint="")]
    arm = report.arm_report(samples, WINDOW, 2)
    assert (arm.requests, arm.errors, arm.errors_by_kind) == (2, 1, {"http 503": 1})
    assert arm.requests_by_endpoint == {"a": 1}
    assert arm.requests_per_s == 1 / 10


def test_an_arm_without_samples_has_no_rates():
    arm = report.arm_report([], WINDOW, 2)
    assert arm.requests == 0
    assert arm.engine_hit is arm.affinity_hit is arm.ttft_p99_ms is arm.p99_over_p50 is arm.imbalance is None


def test_imbalance_is_the_busiest_over_the_mean():
    samples = [_sample(11.0 + index / 10, endpoint="aaab"[index]) for index in range(4)]
    assert report.arm_report(samples, WINDOW, 2).imbalance == 1.5
    assert report.arm_report(samples, WINDOW, 8).imbalance == 6.0


def test_money_is_the_articles_at_22_3_percent_more_throughput():
    arms = {"round_robin": _arm(requests_per_s=1.0), "kvring": _arm(requests_per_s=1.223)}
    saving = 7300 - report.month_usd(arms["kvring"], arms["round_robin"], 10.0)
    assert saving == pytest.approx(1331, abs=1)
    assert report.month_usd(arms["round_robin"], arms["round_robin"], 10.0) == 7300


def test_claims_hold_at_their_bounds_and_fail_just_beyond():
    base = _arm(engine_hit=0.45, ttft_p99_ms=4000.0, requests_per_s=5.0)
    at_bounds = _arm(engine_hit=0.9, ttft_p99_ms=1000.0, requests_per_s=6.0)
    beyond = _arm(engine_hit=0.89, ttft_p99_ms=1001.0, requests_per_s=5.99)
    assert [one.holds for one in report.claims({"round_robin": base, "kvring": at_bounds})] == [True] * 4
    assert [one.holds for one in report.claims({"round_robin": base, "kvring": beyond})] == [False] * 4


def test_no_claim_holds_when_nothing_was_measured():
    empty = report.arm_report([], WINDOW, 2)
    assert not any(one.holds for one in report.claims({"round_robin": empty, "kvring": empty}))


def test_json_has_the_promised_keys_and_survives_a_round_trip():
    arms = {name: report.arm_report([_sample()], WINDOW, 2) for name in ("round_robin", "kvring")}
    document = json.loads(json.dumps(report.to_json(report.Report(_setup(), arms, FINE))))
    promised = {
        "requests",
        "errors",
        "affinity_hit",
        "engine_hit",
        "ttft_p50_ms",
        "ttft_p95_ms",
        "ttft_p99_ms",
        "requests_per_s",
    }
    assert promised <= document["round_robin"].keys()
    assert promised <= document["kvring"].keys()
    assert document["machine"]["loop_lag_p99_ms"] == 2.0
    assert document["warnings"] == []


def test_a_machine_that_was_too_slow_is_named():
    slow = lag.Machine(
        client_cpu_share=0.97, machine_cpu_share=1.0, loop_lag_p99_ms=80.0, loop_lag_max_ms=200.0, cores=2
    )
    late, busy = lag.warnings(slow)
    assert "80 ms" in late
    assert "97%" in busy
    assert lag.warnings(FINE) == []


def test_the_table_compares_the_second_arm_with_the_first():
    arms = {"round_robin": _arm(ttft_p99_ms=4000.0), "kvring": _arm(ttft_p99_ms=1000.0)}
    row = next(row for row in report.rows(arms, 10.0) if row.label == "TTFT P99")
    assert row == report.Row("TTFT P99", ("4,000 ms", "1,000 ms"), "x0.25")


def test_requests_that_kvring_did_not_steer_are_told():
    arms = {name: report.arm_report([_sample()], WINDOW, 2) for name in ("round_robin", "kvring")}
    document = report.to_json(report.Report(_setup(), arms, FINE, unsteered=17))
    assert document["unsteered"] == 17
    assert "17 requests" in document["warnings"][0]
