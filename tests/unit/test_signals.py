"""What is read of an engine's metrics, whichever engine, version and number of ranks it is."""

import math
import pathlib

import msgspec
import pytest

from extproc import signals

DUMP = (pathlib.Path(__file__).parents[1] / "data/vllm_metrics.txt").read_bytes()  # a real vLLM 0.32


def read(text: str | bytes) -> signals.Reading:
    return signals.Reader().read(text.encode() if isinstance(text, str) else text)


def test_a_real_vllm_is_read() -> None:
    reading = read(DUMP)
    assert reading.engine is signals.Engine.VLLM
    assert reading.started_s == 1795963548.15
    assert (reading.running, reading.waiting, reading.in_engine, reading.kv_usage) == (0, 0, 0, 0)
    assert (reading.kv_tokens, reading.host_kv_tokens) == (35_200, None)
    assert (reading.queries, reading.hits) == (94_368, 736)
    assert (reading.cold_queries, reading.cold_hits) == (0, 0)
    assert (reading.requests, reading.prompt_tokens, reading.computed) == (155, 94_476, 93_740)
    assert reading.prefill_s == pytest.approx(46.812, abs=0.001)
    assert (reading.answers, reading.faults, reading.rejections) == (168, 2, 9)
    assert not reading.asleep
    assert len(reading.ttft) == 23
    assert reading.ttft[-1] == (math.inf, 155)
    assert 0.1 < (signals.quantile(reading.ttft, 0.5) or 0) < 0.25
    assert signals.quantile(reading.ttft, 0.99) == pytest.approx(4.83, abs=0.01)


def test_a_second_reading_finds_everything_again_wherever_it_has_moved() -> None:
    reader = signals.Reader()
    first = reader.read(DUMP)
    assert msgspec.structs.replace(reader.read(DUMP), whole=True) == first
    blocks = DUMP.split(b"# HELP")
    turned = b"# HELP".join([b"", *reversed(blocks[1:])])
    assert reader.read(turned).hits == first.hits
    assert reader.read(b"x 1\n" * 20_000 + DUMP).hits == first.hits
    assert reader.read(DUMP).hits == first.hits


def test_a_family_that_appears_later_is_found_within_16_readings() -> None:
    reader = signals.Reader()
    early = DUMP.replace(b"http_requests_total", b"http_nothing_total")
    assert reader.read(early).faults is None
    assert any(reader.read(DUMP).faults == 2 for _ in range(16))


def test_what_moves_slowly_is_read_every_fifth_time_and_at_once_after_a_restart() -> None:
    reader = signals.Reader()
    first = reader.read(DUMP)
    later = DUMP.replace(
        b'prefill_time_seconds_sum{engine="0",model_name="tiny"} 46.8', b"prefill_time_seconds_sum 99"
    )
    readings = [reader.read(later) for _ in range(5)]
    assert [one.whole for one in readings] == [False] * 4 + [True]
    assert [one.prefill_s == first.prefill_s for one in readings] == [True] * 4 + [False]
    assert not reader.read(DUMP).whole
    restarted = later.replace(
        b"process_start_time_seconds 1.79596354815e+09", b"process_start_time_seconds 2e9"
    )
    assert reader.read(restarted).whole


def test_older_names_of_vllm_are_known() -> None:
    reading = read(
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.25\n'
        "vllm:gpu_prefix_cache_queries_total 10\nvllm:gpu_prefix_cache_hits_total 4\n"
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",num_cpu_blocks="7"} 1\n'
    )
    assert (reading.kv_usage, reading.queries, reading.hits) == (0.25, 10, 4)
    assert (reading.kv_tokens, reading.host_kv_tokens) == (1600, 112)


def test_several_ranks_behind_one_port_are_added_up_and_the_fullest_counts() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{rank}"}} {rank + 1}\n'
        f'vllm:kv_cache_usage_perc{{engine="{rank}"}} 0.{rank}\n'
        f'vllm:cache_config_info{{engine="{rank}",kv_cache_size_tokens="1000"}} 1\n'
        for rank in range(3)
    )
    reading = read(text)
    assert (reading.running, reading.kv_usage, reading.kv_tokens) == (6, 0.2, 3000)


def test_sglang_is_read_with_its_tiers_and_without_its_other_tensor_ranks() -> None:
    reading = read(
        'sglang:num_running_reqs{tp_rank="0"} 3\nsglang:num_running_reqs{tp_rank="1"} 3\n'
        'sglang:num_queue_reqs{tp_rank="0"} 2\nsglang:token_usage 0.5\nsglang:max_total_num_tokens 471258\n'
        'sglang:prompt_tokens_total{is_streaming="true"} 60\n'
        'sglang:prompt_tokens_total{is_streaming="false"} 40\n'
        'sglang:cached_tokens_total{cache_source="device"} 30\n'
        'sglang:cached_tokens_total{cache_source="host"} 5\n'
        'sglang:cached_tokens_total{cache_source="storage"} 6\nsglang:num_requests_total 9\n'
    )
    assert reading.engine is signals.Engine.SGLANG
    assert (reading.running, reading.waiting, reading.kv_usage, reading.kv_tokens) == (3, 2, 0.5, 471_258)
    assert (reading.queries, reading.hits, reading.cold_hits) == (100, 30, 11)
    assert (reading.requests, reading.prompt_tokens) == (9, 100)


def test_sglang_before_it_told_tiers_apart() -> None:
    assert read('sglang:cached_tokens_total{model_name="m"} 7\n').hits == 7


def test_llama_cpp_tells_uncached_tokens_and_their_time() -> None:
    reading = read(
        "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total 100\n"
        "llamacpp:prompt_tokens_cached_total 300\nllamacpp:prompt_seconds_total 4\n"
        "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\nllamacpp:kv_cache_usage_ratio 0.5\n"
    )
    assert reading.engine is signals.Engine.LLAMACPP
    assert (reading.queries, reading.hits, reading.computed, reading.prefill_s) == (400, 300, 100, 4)
    assert (reading.running, reading.waiting, reading.in_engine, reading.kv_usage) == (2, 1, 3, 0.5)


def test_tgi_is_read() -> None:
    reading = read(
        "tgi_queue_size 7\ntgi_batch_current_size 4\ntgi_request_input_length_sum 812\n"
        'tgi_request_input_length_count 44\ntgi_request_count 50\ntgi_request_failure{err="overloaded"} 3\n'
    )
    assert reading.engine is signals.Engine.TGI
    assert (reading.running, reading.waiting, reading.requests, reading.prompt_tokens) == (4, 7, 44, 812)
    assert (reading.answers, reading.faults) == (50, 3)
    assert reading.hits is None


def test_what_is_not_told_is_none_and_never_zero() -> None:
    reading = read("vllm:num_requests_running 1\n")
    told = {"engine", "running", "asleep", "adapters", "ttft_lines", "whole"}
    assert {name for name in signals.Reading.__struct_fields__ if getattr(reading, name) is None} == {
        name for name in signals.Reading.__struct_fields__ if name not in told
    }
    assert read("") == read("nothing 1\n") == signals.Reading()
    assert read("").in_engine is None


def test_a_sleeping_engine_is_asleep() -> None:
    name = "vllm:engine_sleep_state"
    awake = f'{name}{{sleep_state="awake"}} %d\n{name}{{sleep_state="discard_all"}} %d\n'
    assert read(awake % (0, 1)).asleep
    assert not read(awake % (1, 0)).asleep


def test_adapters_at_work_are_told() -> None:
    reading = read(
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a, b",waiting_lora_adapters=""} 1.7e9\n'
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters="c"} 1.7e9\n'
    )
    assert reading.adapters == {"a", "b", "c"}


@pytest.mark.parametrize(
    "line",
    [
        'vllm:num_requests_running{model_name="a}b{c\\"d\\\\",x="y"} 5',
        "vllm:num_requests_running 5 1795963579000",
        'vllm:num_requests_running{a="b"} 5 # {trace_id="1}2"} 0.67 1.5',
        "vllm:num_requests_running\t5e0",
        "\r\nvllm:num_requests_running 5\r",
        "vllm:num_requests_running_other 9\nvllm:num_requests_running 5",
        "# HELP vllm:num_requests_running 9\nvllm:num_requests_running 5",
        "vllm:num_requests_running what\nvllm:num_requests_running 5",
        "vllm:num_requests_running NaN\nvllm:num_requests_running -1\nvllm:num_requests_running 5",
    ],
)
def test_odd_lines_are_read_right(line: str) -> None:
    assert read(line).running == 5


@pytest.mark.parametrize("value", ["NaN", "-3", "+Inf", "", "five", "0x5"])
def test_impossible_values_count_as_not_told(value: str) -> None:
    assert read(f"vllm:num_requests_running {value}\n").running is None


def test_an_address_that_changes_its_engine_is_read_as_the_new_one() -> None:
    reader = signals.Reader()
    assert reader.read(b"vllm:num_requests_running 1\n").engine is signals.Engine.VLLM
    assert reader.read(b"sglang:num_running_reqs 2\n").running == 2


def test_quantiles_are_linear_within_a_bucket() -> None:
    buckets = ((1.0, 0.0), (2.0, 10.0), (math.inf, 10.0))
    assert signals.quantile(buckets, 0.5) == 1.5
    assert signals.quantile((), 0.5) is signals.quantile(((1.0, 0.0),), 0.5) is None
    assert signals.quantile(((1.0, 5.0), (math.inf, 10.0)), 0.99) == 1.0


def test_served_models_are_read_and_nothing_else() -> None:
    listed = b'{"object":"list","data":[{"id":"base","parent":null},{"id":"adapter","parent":"base"}]}'
    assert signals.read_models(listed) == {"base", "adapter"}
    for junk in (b"", b"{", b"[]", b'{"data":{}}', b'{"data":[{"name":"x"}]}', b"\xff", b'{"data":[1]}'):
        assert signals.read_models(junk) is None
    many = b'{"data":[' + b",".join(b'{"id":"m%d"}' % n for n in range(1000)) + b"]}"
    assert len(signals.read_models(many) or ()) == 256
