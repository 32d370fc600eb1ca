"""What all sources share: addresses as Envoy writes them, limits, waits, the record of troubles."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc import pool
from extproc.endpoints import source, static
from extproc.endpoints.source import FaultError, Problem


@pytest.mark.parametrize(
    ("ip", "port", "written"),
    [
        ("10.0.0.1", 8000, "10.0.0.1:8000"),
        ("FD00:0:0::1", 8000, "[fd00::1]:8000"),
        ("::ffff:10.0.0.1", 1, "[::ffff:10.0.0.1]:1"),
        ("fd00:0:0:1:0:0:0:1", 65_535, "[fd00:0:0:1::1]:65535"),
    ],
)
def test_an_address_is_written_as_envoy_writes_it(ip, port, written):
    assert source.address(ip, port) == written
    assert source.parse_address(written) == written


@pytest.mark.parametrize(
    ("ip", "port"), [("vllm-0", 8000), ("10.0.0.1", 0), ("10.0.0.1", 65_536), ("fe80::1%eth0", 80), ("", 1)]
)
def test_what_is_no_address_is_refused(ip, port):
    with pytest.raises(ValueError):
        source.address(ip, port)


@pytest.mark.parametrize(
    "text",
    ["10.0.0.1", "10.0.0.1:", "10.0.0.1:8000x", "10.0.0.1:-1", "10.0.0.1:٣", "[10.0.0.1]:80", "fd00::1:80",
     "host:80", ":80", "", "[]:80", "10.0.0.1:000080"],
)  # fmt: skip
def test_text_that_is_no_address_and_port_is_refused(text):
    with pytest.raises(ValueError):
        source.parse_address(text)


@given(st.ip_addresses(), st.integers(1, 65_535))
def test_any_address_survives_being_written_and_read(ip, port):
    written = source.address(str(ip), port)
    assert source.parse_address(written) == written


def _endpoints(count: int) -> list[pool.Endpoint]:
    return [
        pool.Endpoint(pool.EndpointId(f"e{number:05}"), f"10.0.0.1:{number + 1}") for number in range(count)
    ]


def test_members_are_sorted_unique_and_at_most_4096():
    kept, fault = source.bounded(reversed(_endpoints(source.MEMBERS_MAX)))
    assert (len(kept), fault) == (source.MEMBERS_MAX, None)
    assert kept == tuple(_endpoints(source.MEMBERS_MAX))
    kept, fault = source.bounded(_endpoints(source.MEMBERS_MAX + 1) * 2)
    assert kept == tuple(_endpoints(source.MEMBERS_MAX))
    assert fault is not None
    assert fault.problem is Problem.TOO_MANY


@given(st.floats(0.001, 10), st.floats(1, 100), st.lists(st.floats(0, 0.999), min_size=1, max_size=30))
def test_waits_double_up_to_the_most_and_are_never_more_than_half_off(least_s, factor, chances):
    drawn = iter(chances)
    backoff = source.Backoff(least_s, least_s * factor, lambda: next(drawn))
    for number in range(len(chances)):
        whole_s = min(least_s * factor, least_s * 2.0**number)
        assert whole_s / 2 <= backoff.next_s() <= whole_s
    backoff.reset()
    drawn = iter([0.0])
    assert backoff.next_s() == pytest.approx(least_s / 2)


def test_a_source_that_never_spoke_has_no_age_and_one_that_did_ages_until_it_speaks_again():
    now = [10.0]
    contact = source.Contact("dns", "name", lambda: now[0])
    contact.failed(Problem.UNREACHABLE)
    assert contact.age_s(10) is None
    contact.heard()
    now[0] = 15
    contact.failed(Problem.SERVER_ERROR, "why")
    assert contact.age_s(15) == 5
    assert contact.state == source.State(
        10.0, Problem.SERVER_ERROR, "why", {Problem.UNREACHABLE: 1, Problem.SERVER_ERROR: 1}, 0
    )
    contact.heard()
    assert contact.age_s(15) == 0
    assert contact.state.problem is None


def test_a_good_answer_with_a_flaw_is_contact_and_problem():
    contact = source.Contact("dns", "name", lambda: 3.0)
    contact.heard(FaultError(Problem.TOO_MANY, "too many"))
    assert (contact.state.contact_s, contact.state.problem) == (3.0, Problem.TOO_MANY)


def test_trouble_is_logged_when_it_begins_changes_and_ends_not_each_time(caplog):
    caplog.set_level(logging.INFO, "kvring")
    contact = source.Contact("dns", "name", lambda: 3.0)
    for _ in range(5):
        contact.failed(Problem.UNREACHABLE, "x" * 1000)
    contact.failed(Problem.SERVER_ERROR)
    contact.heard()
    contact.heard()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
    assert [record.__dict__["problem"] for record in caplog.records] == [
        "unreachable", "server_error", "server_error",
    ]  # fmt: skip
    assert len(caplog.records[0].__dict__["detail"]) == 200


def test_a_source_of_parts_is_as_old_as_its_older_part_and_counts_all():
    young = source.State(9.0, None, "", {Problem.EXPIRED: 1}, 2)
    old = source.State(4.0, Problem.FORBIDDEN, "d", {Problem.EXPIRED: 2}, 3)
    own = source.State(7.0, Problem.TOO_MANY, "o", {Problem.TOO_MANY: 1}, 0)
    assert source.combined([young, old], own) == source.State(
        4.0, Problem.FORBIDDEN, "d", {Problem.EXPIRED: 3, Problem.TOO_MANY: 1}, 5
    )
    assert source.combined([young], own).problem is Problem.TOO_MANY
    never = source.State(None, None, "", {}, 0)
    assert source.combined([young, never], own).contact_s is None


def test_written_members_are_never_out_of_date():
    written = static.Static(_endpoints(2), lambda: 5.0)
    assert written.contact_age_s(1e9) == 0
    assert written.state.problem is None
