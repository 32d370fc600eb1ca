"""Members of EndpointSlices and of pods, as values: merging, families, ports, conditions."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from extproc.endpoints import inference_pool, slices
from extproc.endpoints.source import Problem

NOWHERE = slices.Settings("llm", "vllm")


def a_slice(*endpoints: dict[str, Any], family: str = "IPv4", ports: Any = None, name: str = "s") -> Any:
    raw = {
        "metadata": {"name": name},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"port": 8000}] if ports is None else ports,
    }
    return msgspec.json.decode(msgspec.json.encode(raw), type=slices.EndpointSlice)


def pod(name: str, ip: str, **conditions: bool | None) -> dict[str, Any]:
    return {"addresses": [ip], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


def members(*parts: Any, **changes: Any) -> dict[str, tuple[str, bool]]:
    settings = slices.Settings("llm", "vllm", **changes)
    found, _ = slices.members(parts, settings)
    assert len({member.id for member in found}) == len(found)
    return {str(member.id): (member.address, member.ready) for member in found}


@pytest.mark.parametrize("ready", [None, True, False])
@pytest.mark.parametrize("serving", [None, True, False])
@pytest.mark.parametrize("terminating", [None, True, False])
def test_ready_is_ready_and_serving_and_not_terminating_where_nil_is_yes(ready, serving, terminating):
    found = members(a_slice(pod("a", "10.0.0.1", ready=ready, serving=serving, terminating=terminating)))
    expected = ready is not False and serving is not False and not terminating
    assert found == {"a:8000": ("10.0.0.1:8000", expected)}


def test_without_conditions_an_endpoint_is_ready_and_without_a_pod_its_address_is_its_name():
    found = members(a_slice({"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"], "targetRef": None}))
    assert found == {"10.0.0.1:8000": ("10.0.0.1:8000", True), "10.0.0.2:8000": ("10.0.0.2:8000", True)}


def test_of_a_dual_stack_pod_the_preferred_family_is_taken_and_the_other_where_there_is_none():
    four, six = (
        a_slice(pod("a", "10.0.0.1")),
        a_slice(pod("a", "fd00::1"), pod("b", "fd00::2"), family="IPv6"),
    )
    assert members(four, six) == {"a:8000": ("10.0.0.1:8000", True), "b:8000": ("[fd00::2]:8000", True)}
    assert members(four, six, family="ipv6")["a:8000"] == ("[fd00::1]:8000", True)


def test_copies_of_a_moving_endpoint_are_one_in_whatever_order_they_come():
    copies = [
        a_slice(pod("a", "10.0.0.1", ready=True)),
        a_slice(pod("a", "10.0.0.1", ready=False, serving=True, terminating=True)),
    ]
    for order in itertools.permutations(copies):
        assert members(*order) == {"a:8000": ("10.0.0.1:8000", False)}  # terminating is told once
    copies = [a_slice(pod("a", "10.0.0.1", ready=False)), a_slice(pod("a", "10.0.0.1", ready=True))]
    for order in itertools.permutations(copies):
        assert members(*order) == {"a:8000": ("10.0.0.1:8000", True)}


def test_a_pod_that_was_made_anew_under_its_name_is_known_by_its_new_address():
    copies = [
        a_slice(pod("vllm-0", "10.0.0.9", ready=False, serving=False, terminating=True)),
        a_slice(pod("vllm-0", "10.0.0.1", ready=True)),
    ]
    for order in itertools.permutations(copies):
        assert members(*order) == {"vllm-0:8000": ("10.0.0.1:8000", True)}


def test_a_named_port_may_be_another_number_in_another_slice():
    blue = a_slice(pod("a", "10.0.0.1"), ports=[{"name": "http", "port": 8000}, {"name": "m", "port": 9}])
    green = a_slice(pod("b", "10.0.0.2"), ports=[{"name": "http", "port": 9000}])
    assert set(members(blue, green, port="http")) == {"a:8000", "b:9000"}
    assert set(members(blue, green, port="9")) == {"a:9"}
    assert set(members(blue, green)) == {"b:9000"}  # blue has two, and none was named


@pytest.mark.parametrize(
    "ports", [[], None, [{"name": "other", "port": 1}], [{"name": "http", "port": 1, "protocol": "UDP"}],
              [{"name": "http"}]]
)  # fmt: skip
def test_a_slice_without_the_port_has_no_members_and_that_is_told(ports):
    raw = {
        "metadata": {"name": "s"},
        "addressType": "IPv4",
        "endpoints": [pod("a", "10.0.0.1")],
        "ports": ports,
    }
    one = msgspec.json.decode(msgspec.json.encode(raw), type=slices.EndpointSlice)
    found, fault = slices.members([one], slices.Settings("llm", "vllm", "http"))
    assert found == []
    assert fault is not None
    assert fault.problem is Problem.NOT_FOUND


def test_a_placeholder_slice_is_no_fault_and_no_slice_is():
    empty = msgspec.json.decode(
        b'{"metadata":{"name":"s"},"addressType":"IPv4","endpoints":null,"ports":null}',
        type=slices.EndpointSlice,
    )
    assert slices.members([empty], NOWHERE) == ([], None)
    found, fault = slices.members([], NOWHERE)
    assert found == []
    assert fault is not None


def test_names_and_nonsense_are_left_out_and_the_rest_stays():
    fqdn = a_slice(pod("x", "vllm.example.com"), family="FQDN")
    broken = a_slice(pod("a", "nonsense"), {"addresses": []}, pod("b", "10.0.0.2"))
    assert members(fqdn, broken) == {"b:8000": ("10.0.0.2:8000", True)}


def test_of_several_addresses_only_the_first_counts():
    assert members(a_slice({"addresses": ["10.0.0.1", "10.0.0.2"]})) == {
        "10.0.0.1:8000": ("10.0.0.1:8000", True)
    }


def a_pod(name: str = "a", **status: Any) -> inference_pool.Pod:
    ready = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}]
    raw = {"metadata": {"name": name}, "status": {"phase": "Running", "conditions": ready, **status}}
    return msgspec.json.decode(msgspec.json.encode(raw), type=inference_pool.Pod)


def test_eight_ranks_of_a_pod_are_eight_endpoints():
    found = inference_pool.members([a_pod(podIP="10.0.0.1")], range(8000, 8008), "ipv4")
    assert [member.id for member in found] == [f"a:{port}" for port in range(8000, 8008)]
    assert {member.address for member in found} == {f"10.0.0.1:{port}" for port in range(8000, 8008)}


def test_of_a_dual_stack_pod_the_preferred_address_is_taken():
    both = a_pod(podIP="10.0.0.1", podIPs=[{"ip": "10.0.0.1"}, {"ip": "fd00::1"}])
    for family, address in (("ipv4", "10.0.0.1:1"), ("ipv6", "[fd00::1]:1")):
        assert [member.address for member in inference_pool.members([both], [1], family)] == [address]
    only = a_pod(podIP="10.0.0.1", podIPs=[{"ip": "10.0.0.1"}])
    assert [member.address for member in inference_pool.members([only], [1], "ipv6")] == ["10.0.0.1:1"]


@pytest.mark.parametrize(
    "status",
    [{}, {"podIP": ""}, {"podIPs": None}, {"podIP": "nonsense"}, {"podIP": "10.0.0.1", "phase": "Succeeded"},
     {"podIP": "10.0.0.1", "phase": "Failed"}],
)  # fmt: skip
def test_a_pod_without_address_or_at_its_end_is_no_member(status):
    assert inference_pool.members([a_pod(**status)], [1], "ipv4") == []


@pytest.mark.parametrize(
    "conditions", [None, [], [{"type": "Ready", "status": "False"}], [{"type": "Ready", "status": "Unknown"}],
                   [{"type": "Initialized", "status": "True"}]]
)  # fmt: skip
def test_a_pod_that_does_not_say_it_is_ready_is_a_member_that_is_not(conditions):
    found = inference_pool.members([a_pod(podIP="10.0.0.1", conditions=conditions)], [1], "ipv4")
    assert [member.ready for member in found] == [False]
