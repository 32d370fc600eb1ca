"""A real DNS server on loopback, UDP and TCP, that answers, keeps silent, refuses, truncates and lies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest

from extproc.endpoints import dns as dns_source
from extproc.endpoints.source import Problem
from tests import ports
from tests.functional.conftest import eventually
from tests.functional.membership import Membership, running

NAME = "vllm.llm.svc.cluster.local."


class DnsServer:
    """`records`: (name, type) -> lines of record data; `ttl_s`: of all; `fault`: what befalls every query."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.additional: list[tuple[str, str, str]] = []  # of SRV answers: name, type, data
        self.ttl_s = 300
        self.fault: Callable[[dns.message.Message, str], dns.message.Message | bytes | None] | None = None
        self.udp_bytes_max = 512
        self.asked: Counter[str] = Counter()  # "SRV udp"
        self.asked_s: list[float] = []
        self.port = 0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            port = self.port or ports.own()
            self._tcp = await asyncio.start_server(self._serve_tcp, "127.0.0.1", port)
            try:
                self._udp, _ = await loop.create_datagram_endpoint(
                    lambda: _Datagrams(self), local_addr=("127.0.0.1", port)
                )
            except OSError:  # a port that is free for TCP only
                self._tcp.close()
                if self.port:
                    raise
            else:
                self.port = port
                return

    async def stop(self) -> None:
        self._udp.close()
        self._tcp.close()
        await self._tcp.wait_closed()
        await asyncio.sleep(0)

    def answer(self, wire: bytes, transport: str) -> bytes | None:
        query = dns.message.from_wire(wire)
        question = query.question[0]
        kind = dns.rdatatype.to_text(question.rdtype)
        name = question.name.to_text().lower()
        self.asked[f"{kind} {transport}"] += 1
        self.asked_s.append(time.monotonic())
        if self.fault is not None:
            found = self.fault(query, transport)
            if not isinstance(found, dns.message.Message):
                return found
            return found.to_wire()
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        cname = self.records.get((name, "CNAME"))
        if cname:
            response.answer.append(dns.rrset.from_text(name, 1, "IN", "CNAME", cname[0]))
            name = cname[0]
        lines = self.records.get((name, kind))
        if lines:
            response.answer.append(dns.rrset.from_text(name, self.ttl_s, "IN", kind, *lines))
            for owner, owned_kind, data in self.additional if kind == "SRV" else []:
                response.additional.append(dns.rrset.from_text(owner, self.ttl_s, "IN", owned_kind, data))
        elif lines is None and not any(known == name for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        wire = response.to_wire(max_size=65_535)
        if transport == "udp" and len(wire) > self.udp_bytes_max:
            short = dns.message.make_response(query)
            short.flags |= dns.flags.TC
            return short.to_wire()
        return wire

    async def _serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            length = int.from_bytes(await reader.readexactly(2), "big")
            answer = self.answer(await reader.readexactly(length), "tcp")
            if answer is not None:
                writer.write(len(answer).to_bytes(2, "big") + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self.server = server

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        answer = self.server.answer(data, "udp")
        if answer is not None:
            self.transport.sendto(answer, addr)


def rcode(code: dns.rcode.Rcode) -> Callable[[dns.message.Message, str], dns.message.Message]:
    def fault(query: dns.message.Message, _transport: str) -> dns.message.Message:
        response = dns.message.make_response(query)
        response.set_rcode(code)
        return response

    return fault


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[DnsServer]:
    server = DnsServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def asking(server: DnsServer, **changes: Any) -> dns_source.Dns:
    settings: dict[str, Any] = {
        "name": NAME,
        "port": 8000,
        "nameservers": (f"127.0.0.1:{server.port}",),
        "query_timeout_s": 0.1,
        "refresh_min_s": 0.02,
        "refresh_max_s": 0.02,
        "retry_max_s": 0.05,
    }
    return dns_source.Dns(dns_source.Settings(**(settings | changes)), time.monotonic, lambda: 0.0)


def are(*names: str) -> Callable[[Membership], bool]:
    return lambda members: set(members.addresses) == set(names)


# ---- addresses ----


async def test_every_address_is_a_member_and_changes_are_followed():
    async with serving() as server:
        server.records[NAME, "A"] = ["10.0.0.2", "10.0.0.1"]
        async with running(asking(server)) as members:
            await members.until(are("10.0.0.1:8000", "10.0.0.2:8000"))
            server.records[NAME, "A"] = ["10.0.0.1", "10.0.0.2"]  # servers rotate; that is no news
            await eventually(lambda: server.asked["A udp"] >= 4)
            assert len(members.history) == 1
            server.records[NAME, "A"] = ["10.0.0.3"]
            await members.until(are("10.0.0.3:8000"))


@pytest.mark.parametrize(
    ("family", "expected"), [("ipv4", {"10.0.0.1:8000"}), ("ipv6", {"[fd00::1]:8000", "[fd00::2]:8000"})]
)
async def test_of_a_dual_stack_name_the_preferred_family_is_taken(family, expected):
    async with serving() as server:
        server.records[NAME, "A"] = ["10.0.0.1"]
        server.records[NAME, "AAAA"] = ["fd00:0::1", "fd00::2"]
        async with running(asking(server, family=family)) as members:
            await members.until(are(*expected))


async def test_where_the_preferred_family_has_nothing_the_other_is_taken():
    async with serving() as server:
        server.records[NAME, "AAAA"] = ["fd00::1"]
        async with running(asking(server)) as members:
            await members.until(are("[fd00::1]:8000"))
            server.records[NAME, "A"] = ["10.0.0.1"]
            await members.until(are("10.0.0.1:8000"))


async def test_the_ttl_is_kept_within_its_bounds():
    async with serving() as server:
        server.records[NAME, "A"] = ["10.0.0.1"]
        server.ttl_s = 1
        async with running(asking(server, refresh_max_s=300, query_timeout_s=10)) as members:
            await members.until(are("10.0.0.1:8000"))
            server.records[NAME, "A"] = ["10.0.0.2"]
            await members.until(are("10.0.0.2:8000"))
            assert 0.95 < server.asked_s[1] - server.asked_s[0] < 60
            assert len(server.asked_s) == 2


async def test_the_shortest_ttl_of_a_chain_of_aliases_counts():
    async with serving() as server:
        server.records[NAME, "CNAME"] = ["real.example."]  # TTL 1
        server.records["real.example.", "A"] = ["10.0.0.1"]  # TTL 300
        async with running(asking(server, refresh_max_s=300, query_timeout_s=10)) as members:
            await members.until(are("10.0.0.1:8000"))
            server.records["real.example.", "A"] = ["10.0.0.2"]
            await members.until(are("10.0.0.2:8000"))
            assert 0.95 < server.asked_s[1] - server.asked_s[0] < 60


async def test_an_answer_too_long_for_udp_comes_over_tcp():
    async with serving() as server:
        server.records[NAME, "A"] = [f"10.0.{number // 250}.{number % 250}" for number in range(2000)]
        async with running(asking(server, query_timeout_s=2)) as members:
            await members.until(lambda now: len(now.addresses) == 2000)
            assert server.asked["A tcp"] >= 1


# ---- troubles: the last good members stand ----


def silence(_query: dns.message.Message, _transport: str) -> None:
    return None


def garbage(_query: dns.message.Message, _transport: str) -> bytes:
    return b"\x00\x01garbage"


def another_question(query: dns.message.Message, _transport: str) -> dns.message.Message:
    other = dns.message.make_query("other.example.", "A", id=query.id)
    response = dns.message.make_response(other)
    response.answer.append(dns.rrset.from_text("other.example.", 60, "IN", "A", "10.6.6.6"))
    return response


def truncated_without_tcp(query: dns.message.Message, transport: str) -> dns.message.Message | None:
    if transport == "tcp":
        return None
    response = dns.message.make_response(query)
    response.flags |= dns.flags.TC
    return response


def no_data(query: dns.message.Message, _transport: str) -> dns.message.Message:
    return dns.message.make_response(query)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (rcode(dns.rcode.NXDOMAIN), Problem.NOT_FOUND),
        (no_data, Problem.NOT_FOUND),
        (rcode(dns.rcode.SERVFAIL), Problem.SERVER_ERROR),
        (rcode(dns.rcode.REFUSED), Problem.SERVER_ERROR),
        (silence, Problem.UNREACHABLE),
        (garbage, Problem.UNREACHABLE),
        (another_question, Problem.UNREACHABLE),
        (truncated_without_tcp, Problem.UNREACHABLE),
    ],
    ids=["nxdomain", "nodata", "servfail", "refused", "silence", "garbage", "another", "truncated"],
)
@pytest.mark.parametrize("kind", ["address", "srv"])
async def test_while_dns_fails_the_members_stand_and_age_and_then_follow_again(fault, problem, kind):
    """M05."""
    async with serving() as server:
        server.records[NAME, "A"] = ["10.0.0.1"]
        server.records[NAME, "SRV"] = ["0 1 8000 a.example."]
        server.records["a.example.", "A"] = ["10.0.0.1"]
        source = asking(server, kind=kind, query_timeout_s=0.05 if problem is Problem.UNREACHABLE else 1)
        async with running(source) as members:
            await members.until(lambda now: list(now.addresses.values()) == ["10.0.0.1:8000"])
            server.fault = fault
            await eventually(lambda: source.state.faults.get(problem, 0) >= 1)
            assert source.state.problem is problem, source.state
            contact_s = source.state.contact_s
            await eventually(lambda: source.state.faults[problem] >= 2)
            assert source.state.contact_s == contact_s
            assert len(members.history) == 1
            server.fault = None
            server.records[NAME, "A"] = server.records["a.example.", "A"] = ["10.0.0.2"]
            await members.until(lambda now: list(now.addresses.values()) == ["10.0.0.2:8000"])
            await eventually(lambda: source.state.problem is None)


async def test_nobody_listening_is_told_and_waited_for():
    async with serving() as server:
        server.records[NAME, "A"] = ["10.0.0.1"]
        source = asking(server)
        async with running(source) as members:
            await members.until(are("10.0.0.1:8000"))
            await server.stop()
            await eventually(lambda: source.state.problem is Problem.UNREACHABLE)
            assert are("10.0.0.1:8000")(members)
            await server.start()
            server.records[NAME, "A"] = ["10.0.0.2"]
            await members.until(are("10.0.0.2:8000"))


async def test_failures_are_retried_with_growing_waits():
    async with serving() as server:
        server.fault = rcode(dns.rcode.SERVFAIL)
        source = asking(server, refresh_min_s=0.05, retry_max_s=1.6, query_timeout_s=10)
        async with running(source):
            await eventually(lambda: len(server.asked_s) >= 7)
        gaps_s = [after - before for before, after in itertools.pairwise(server.asked_s[:7])]
        shortest_s = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8)  # a busy machine makes them longer, none shorter
        assert all(gap_s >= least_s for gap_s, least_s in zip(gaps_s, shortest_s, strict=True)), gaps_s
        assert gaps_s[0] < shortest_s[-1]


async def test_a_second_server_answers_for_a_silent_first():
    async with serving() as silent, serving() as server:
        silent.fault = silence
        server.records[NAME, "A"] = ["10.0.0.1"]
        both = (f"127.0.0.1:{silent.port}", f"127.0.0.1:{server.port}")
        async with running(asking(server, nameservers=both)) as members:
            await members.until(are("10.0.0.1:8000"))
            assert silent.asked["A udp"] >= 1


async def test_cancelled_at_any_moment_it_ends():
    async with serving() as server:
        server.records[NAME, "SRV"] = ["0 1 8000 a.example."]
        server.records["a.example.", "A"] = ["10.0.0.1"]
        rng = random.Random(1)
        for _ in range(100):  # in one of nine, Python 3.11's asyncio.wait_for swallows the cancellation
            source = asking(server, kind="srv", refresh_min_s=0.0001, refresh_max_s=0.0001)
            task = asyncio.create_task(source.run(Membership().publish))
            await asyncio.sleep(rng.random() * 0.01)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=5)
            assert done
            assert task.cancelled()


# ---- SRV ----


async def test_targets_are_members_by_their_name_whatever_their_address():
    async with serving() as server:
        server.records[NAME, "SRV"] = ["0 50 8000 vllm-0.llm.", "0 50 8001 VLLM-1.llm."]
        server.records["vllm-0.llm.", "A"] = ["10.0.0.1"]
        server.records["vllm-1.llm.", "AAAA"] = ["fd00::2"]
        async with running(asking(server, kind="srv", port=None)) as members:
            await members.until(are("vllm-0.llm:8000", "vllm-1.llm:8001"))
            assert members.addresses["vllm-1.llm:8001"] == "[fd00::2]:8001"
            server.records["vllm-0.llm.", "A"] = ["10.0.0.9"]
            await members.until(lambda now: now.addresses["vllm-0.llm:8000"] == "10.0.0.9:8000")
            assert len(members.history) == 2
            assert {member.weight for member in members.now} == {1}


async def test_addresses_told_with_the_answer_are_not_asked_for():
    async with serving() as server:
        server.records[NAME, "SRV"] = ["0 1 8000 vllm-0.llm.", "0 1 8000 vllm-1.llm."]
        server.records["vllm-1.llm.", "A"] = ["10.0.0.2"]
        server.additional = [("vllm-0.llm.", "A", "10.0.0.1"), ("vllm-1.llm.", "AAAA", "fd00::9")]
        async with running(asking(server, kind="srv", refresh_max_s=300, query_timeout_s=10)) as members:
            await members.until(are("vllm-0.llm:8000", "vllm-1.llm:8000"))
            assert members.addresses["vllm-1.llm:8000"] == "10.0.0.2:8000"
        assert server.asked == {"SRV udp": 1, "A udp": 1}


async def test_only_the_best_priority_counts_and_weights_only_if_wanted():
    async with serving() as server:
        server.records[NAME, "SRV"] = [
            "10 0 8000 a.llm.",
            "10 300 8000 b.llm.",
            "10 7 8000 c.llm.",
            "20 1 8000 spare.llm.",
            "5 1 8000 .",  # "not available here"
        ]
        for number, name in enumerate(["a.llm.", "b.llm.", "c.llm.", "spare.llm."], 1):
            server.records[name, "A"] = [f"10.0.0.{number}"]
        for weights, expected in ((False, {1}), (True, {1, 7, 100})):
            async with running(asking(server, kind="srv", weights=weights)) as members:
                await members.until(are("a.llm:8000", "b.llm:8000", "c.llm:8000"))
                assert {member.weight for member in members.now} == expected


async def test_a_target_of_several_addresses_is_one_member_and_keeps_one():
    async with serving() as server:
        server.records[NAME, "SRV"] = ["0 1 8000 a.llm."]
        server.records["a.llm.", "A"] = ["10.0.0.10", "10.0.0.9"]
        async with running(asking(server, kind="srv")) as members:
            await members.until(lambda now: now.addresses == {"a.llm:8000": "10.0.0.9:8000"})
            server.records["a.llm.", "A"] = ["10.0.0.1", "10.0.0.9"]
            await eventually(lambda: server.asked["A udp"] >= 4)
            assert len(members.history) == 1  # the lowest first, but one that is still true stays
            server.records["a.llm.", "A"] = ["10.0.0.1"]
            await members.until(lambda now: now.addresses == {"a.llm:8000": "10.0.0.1:8000"})


async def test_a_target_that_fails_keeps_its_address_while_the_others_follow():
    async with serving() as server:
        server.records[NAME, "SRV"] = ["0 1 8000 a.llm.", "0 1 8000 b.llm."]
        server.records["a.llm.", "A"] = ["10.0.0.1"]
        server.records["b.llm.", "A"] = ["10.0.0.2"]
        source = asking(server, kind="srv")
        async with running(source) as members:
            await members.until(are("a.llm:8000", "b.llm:8000"))
            del server.records["a.llm.", "A"]
            server.records["b.llm.", "A"] = ["10.0.0.3"]
            await members.until(lambda now: now.addresses["b.llm:8000"] == "10.0.0.3:8000")
            assert members.addresses["a.llm:8000"] == "10.0.0.1:8000"
            await eventually(lambda: source.state.problem is Problem.NOT_FOUND)
            server.records[NAME, "SRV"] = ["0 1 8000 b.llm."]
            await members.until(are("b.llm:8000"))
            await eventually(lambda: source.state.problem is None)


async def test_an_answer_of_two_thousand_targets_is_read():
    async with serving() as server:  # 64 KiB, the most that DNS can carry, is less than MEMBERS_MAX records
        server.records[NAME, "SRV"] = [f"0 1 {port} a.llm." for port in range(1, 2001)]
        server.records["a.llm.", "A"] = ["10.0.0.1"]
        async with running(asking(server, kind="srv", query_timeout_s=5)) as members:
            await members.until(lambda now: len(now.addresses) == 2000)


# ---- settings ----


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "a..b"},
        {"name": "x" * 64},
        {"name": "a." * 200},
        {"port": None},
        {"nameservers": ("dns.example",)},
        {"nameservers": ("10.0.0.1:0",)},
        {"nameservers": ("10.0.0.1:99999",)},
    ],
)
def test_what_can_not_be_asked_is_refused_at_the_start(changes):
    settings = dns_source.Settings(**({"name": NAME, "port": 8000} | changes))
    with pytest.raises(ValueError):
        dns_source.Dns(settings, time.monotonic, lambda: 0.0)


async def test_a_relative_name_goes_through_the_search_list(monkeypatch):
    async with serving() as server:
        server.records[NAME, "A"] = ["10.0.0.1"]
        source = asking(server, name="vllm.llm")
        resolver = source._resolver

        def with_search_list():
            made = resolver()
            made.search = [
                dns.name.from_text("llm.svc.cluster.local."),
                dns.name.from_text("svc.cluster.local."),
            ]
            made.ndots = 5
            return made

        monkeypatch.setattr(source, "_resolver", with_search_list)
        async with running(source) as members:
            await members.until(are("10.0.0.1:8000"))
