"""Workload: the same requests for every arm, of the sizes promised."""

import itertools
import json

import pytest

from extproc.sim import workload

pytestmark = pytest.mark.timeout(20)


def _first(load, user, count):
    return list(itertools.islice(load.requests(user), count))


def _messages(request):
    return json.loads(request.body)["messages"]


def test_two_workloads_of_one_seed_are_equal_request_by_request():
    one, two = workload.Workload(7, 4), workload.Workload(7, 4)
    for user in range(4):
        assert _first(one, user, 20) == _first(two, user, 20)


def test_a_users_requests_do_not_depend_on_the_order_in_which_users_are_read():
    interleaved = workload.Workload(7, 2)
    streams = [interleaved.requests(0), interleaved.requests(1)]
    mixed = [next(streams[turn % 2]) for turn in range(20)]
    assert mixed[0::2] == _first(workload.Workload(7, 2), 0, 10)
    assert mixed[1::2] == _first(workload.Workload(7, 2), 1, 10)


def test_another_seed_gives_other_prefixes_and_other_requests():
    one, two = workload.Workload(1, 1), workload.Workload(2, 1)
    assert one.prefix_tokens != two.prefix_tokens
    assert _first(one, 0, 1)[0].body != _first(two, 0, 1)[0].body


def test_the_number_of_users_changes_no_users_requests():
    assert _first(workload.Workload(3, 2), 1, 5) == _first(workload.Workload(3, 30), 1, 5)


def test_texts_are_exactly_as_many_tokens_of_4_bytes_as_promised():
    load = workload.Workload(5, 1)
    assert len(load.prefix_tokens) == 5
    assert all(2000 <= tokens <= 8000 for tokens in load.prefix_tokens)
    for request in _first(load, 0, 40):
        system, question = _messages(request)
        assert len(system["content"].encode()) == 4 * load.prefix_tokens[request.prefix]
        assert len(question["content"].encode()) == 4 * workload.QUESTION_TOKENS[request.size][0]


def test_prefixes_are_one_from_each_fifth_of_their_range():
    for seed in range(20):
        lengths = sorted(workload.Workload(seed, 1).prefix_tokens)
        assert all(
            2000 + 1200 * fifth <= tokens <= 2000 + 1200 * (fifth + 1) for fifth, tokens in enumerate(lengths)
        )


def test_the_shared_part_is_nine_tenths_of_a_prompt_or_more_up_to_rounding():
    longest = max(tokens for tokens, _ in workload.QUESTION_TOKENS.values())
    assert 2000 / (2000 + longest) == pytest.approx(0.9, abs=0.015)


def test_classes_come_in_the_articles_shares_and_prefixes_evenly():
    requests = _first(workload.Workload(11, 1), 0, 4000)
    for size, (_, share) in workload.QUESTION_TOKENS.items():
        assert sum(one.size == size for one in requests) / 4000 == pytest.approx(share, abs=0.03)
    for prefix in range(5):
        assert sum(one.prefix == prefix for one in requests) / 4000 == pytest.approx(0.2, abs=0.03)
    assert all(0.5 <= one.think_s <= 2 for one in requests)


def test_questions_are_never_shared():
    load = workload.Workload(2, 5)
    questions = [_messages(one)[1]["content"] for user in range(5) for one in _first(load, user, 100)]
    assert len(set(questions)) == len(questions)


def test_prefixes_differ_from_their_first_block_on():
    load = workload.Workload(2, 1)
    starts = {one.prefix: _messages(one)[0]["content"][:64] for one in _first(load, 0, 60)}
    assert len(starts) == len(set(starts.values())) == 5


def test_a_request_asks_for_a_stream_with_usage_and_100_tokens():
    body = json.loads(_first(workload.Workload(1, 1), 0, 1)[0].body)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_tokens"] == 100


def test_a_user_outside_the_workload_is_refused():
    with pytest.raises(ValueError, match="user 3"):
        workload.Workload(1, 3).requests(3)
    with pytest.raises(ValueError, match="user_count 0"):
        workload.Workload(1, 0)
