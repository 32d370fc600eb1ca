"""DNS: members behind a name, asked for again when the answer's TTL has passed.

    A/AAAA   every address, with one port           name "ip:port": an address record tells nothing else
    SRV      every target of the best priority      name "target:port": it outlives a change of address

Of a dual-stack name or target one family is taken, the preferred if it has any: both would be one endpoint
counted twice. A negative answer (NXDOMAIN, no data) is treated as a failure: a headless Service whose
pods are all unready answers so, and its last members, which health probes judge, are worth more than none.

Never: asked before the TTL (bounded by `refresh_min_s`, `refresh_max_s`) unless the last answer was bad.
Called by: the fleet. Source: RFC 2782 (SRV), RFC 2181 section 5.2 (TTL).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import dns.asyncresolver
import dns.exception
import dns.message
import dns.name
import dns.nameserver
import dns.rdatatype
import dns.resolver

from extproc import pool
from extproc.endpoints import source
from extproc.endpoints.source import Problem

__all__ = ["Dns", "Settings"]

_TTL_LATE = 0.1  # replicas of kvring come back to a server up to this share of a TTL apart
_ATTEMPTS = 3  # servers or repetitions within one lookup
_REFRESH_S_MAX = 30.0  # one refresh, with all lookups of SRV targets
_LOOKUPS_AT_ONCE = 16
_WEIGHT_MAX = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked, whom, and how often.

    name: with a trailing dot taken as it is, else through the search list of /etc/resolv.conf. kind:
    "address" (A, AAAA) or "srv". port: of every address [1..65535]; SRV records bring their own. family:
    preferred. weights: take SRV weights, cut to [1..100], as ring weights; off, as cluster DNS changes the
    weights of all records whenever their number changes. nameservers: "ip", "ip:port" or "[ipv6]:port";
    none: those of /etc/resolv.conf. query_timeout_s: for one server's answer [0.05..30 s], three times in
    one lookup. refresh_min_s, refresh_max_s: bounds of a TTL [0.05..3600 s]; the first is also the first
    wait after a failure, which then doubles up to retry_max_s [0.05..3600 s].
    """

    name: str
    kind: Literal["address", "srv"] = "address"
    port: int | None = None
    family: source.Family = "ipv4"
    weights: bool = False
    nameservers: tuple[str, ...] = ()
    query_timeout_s: float = 2.0
    refresh_min_s: float = 1.0
    refresh_max_s: float = 300.0
    retry_max_s: float = 30.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """Members, for how long they hold [s], and the fault that left some of them as they were."""

    members: tuple[pool.Endpoint, ...]
    ttl_s: float
    fault: source.FaultError | None = None


class Dns:
    """A source that asks DNS."""

    def __init__(self, settings: Settings, clock: source.Clock, chance: Callable[[], float]) -> None:
        """`clock` is monotonic [s], `chance` uniform in [0, 1).

        Raises: ValueError if name or nameservers can't be, or a port is missing.
        """
        try:
            self._name = dns.name.from_text(settings.name, None)
        except dns.exception.DNSException as error:
            raise ValueError(f"{settings.name[:260]!r} is not a DNS name: {error}") from error
        if settings.kind == "address" and settings.port is None:
            raise ValueError("address records need a port")
        self._nameservers = [_nameserver(text) for text in settings.nameservers]
        self._settings = settings
        self._contact = source.Contact("dns", settings.name, clock)
        self._chance = chance
        self._backoff = source.Backoff(settings.refresh_min_s, settings.retry_max_s, chance)
        self._ips: dict[dns.name.Name, str] = {}  # of each SRV target, the one in use
        self._published: tuple[pool.Endpoint, ...] | None = None

    async def run(self, publish: source.Publish) -> None:
        """Publish what DNS answers now and whenever it changes, until cancelled."""
        while True:
            wait_s = await self._refresh(publish)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # Before Python 3.12 asyncio.wait_for, on which dnspython waits, can lose a cancellation that
                # comes together with the answer (python/cpython#86296): the task would never end.
                raise asyncio.CancelledError
            await asyncio.sleep(wait_s)

    async def _refresh(self, publish: source.Publish) -> float:
        """How long the answer, or the lack of one, holds [s]."""
        try:
            async with asyncio.timeout(_REFRESH_S_MAX):
                answer = await self._ask()
        except TimeoutError:
            self._contact.failed(Problem.UNREACHABLE, f"no full answer in {_REFRESH_S_MAX:g} s")
            return self._backoff.next_s()
        except source.FaultError as fault:
            self._contact.failed(fault.problem, str(fault))
            return self._backoff.next_s()
        self._contact.resynced()
        members, cut = source.bounded(answer.members)
        if members != self._published:
            self._published = members
            publish(members)
        if answer.fault is not None:
            self._contact.failed(answer.fault.problem, str(answer.fault))
            return self._backoff.next_s()
        self._contact.heard(cut)
        self._backoff.reset()
        least_s, most_s = self._settings.refresh_min_s, self._settings.refresh_max_s
        return min(max(answer.ttl_s, least_s), most_s) * (1 + _TTL_LATE * self._chance())

    def contact_age_s(self, now: float) -> float | None:
        """How long ago DNS last gave a good and full answer [s]; None if it never did."""
        return self._contact.age_s(now)

    @property
    def state(self) -> source.State:
        """How the source fares."""
        return self._contact.state

    async def _ask(self) -> _Answer:
        """Raises: FaultError."""
        resolver = self._resolver()
        if self._settings.kind == "srv":
            return await self._ask_srv(resolver)
        ips, ttl_s = await self._ips_of(resolver, self._name)
        addresses = [source.address(ip, self._settings.port or 0) for ip in ips]
        return _Answer(tuple(pool.Endpoint(pool.EndpointId(a), a) for a in addresses), ttl_s)

    async def _ask_srv(self, resolver: dns.asyncresolver.Resolver) -> _Answer:
        answer = await self._lookup(resolver, self._name, "SRV")
        records = [record for record in answer if record.target != dns.name.root and record.port]
        best = min((record.priority for record in records), default=0)
        records = [record for record in records if record.priority == best]  # others only if these are gone
        targets = {record.target for record in records}
        told = _told(answer.response, targets, self._settings.family)
        ttls_s: list[float] = [answer.chaining_result.minimum_ttl]
        faults: list[source.FaultError] = []
        at_once = asyncio.Semaphore(_LOOKUPS_AT_ONCE)

        async def find(target: dns.name.Name) -> None:
            try:
                async with at_once:
                    ips, ttl_s = told.get(target) or await self._ips_of(resolver, target)
            except source.FaultError as fault:
                faults.append(fault)  # the target keeps its address, if it had one
                return
            ttls_s.append(ttl_s)
            if self._ips.get(target) not in ips:  # one that is still true stays: no flapping
                self._ips[target] = ips[0]

        async with asyncio.TaskGroup() as group:
            for target in targets:
                group.create_task(find(target))
        self._ips = {target: ip for target, ip in self._ips.items() if target in targets}
        if faults and not self._ips:
            raise faults[0]
        members = {
            (name := pool.EndpointId(f"{_text(record.target)}:{record.port}")): pool.Endpoint(
                name,
                source.address(self._ips[record.target], record.port),
                max(1, min(_WEIGHT_MAX, record.weight)) if self._settings.weights else 1,
            )
            for record in records
            if record.target in self._ips
        }
        return _Answer(tuple(members.values()), min(ttls_s), faults[0] if faults else None)

    async def _ips_of(
        self, resolver: dns.asyncresolver.Resolver, name: dns.name.Name
    ) -> tuple[list[str], float]:
        """Addresses of the preferred family, in numeric order, else of the other, and their TTL [s].

        Raises: FaultError.
        """
        kinds = _kinds(self._settings.family)
        for kind in kinds:
            try:
                answer = await self._lookup(resolver, name, kind)
            except source.FaultError as fault:
                if isinstance(fault.__cause__, dns.resolver.NoAnswer) and kind != kinds[-1]:
                    continue
                raise
            return _sorted(record.address for record in answer), answer.chaining_result.minimum_ttl
        raise AssertionError("the last kind answers or fails")

    async def _lookup(
        self, resolver: dns.asyncresolver.Resolver, name: dns.name.Name, kind: str
    ) -> dns.resolver.Answer:
        """Raises: FaultError."""
        try:
            return await resolver.resolve(name, kind, search=not name.is_absolute())
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer) as error:
            word = "no such name" if isinstance(error, dns.resolver.NXDOMAIN) else "no such record"
            raise source.FaultError(Problem.NOT_FOUND, f"{kind} {_text(name)}: {word}") from error
        except dns.exception.Timeout as error:
            raise source.FaultError(Problem.UNREACHABLE, f"{kind} {_text(name)}: no answer") from error
        except dns.resolver.NoNameservers as error:
            answered = any(response is not None for *_, response in error.kwargs.get("errors", ()))
            problem = Problem.SERVER_ERROR if answered else Problem.UNREACHABLE
            raise source.FaultError(problem, f"{kind} {_text(name)}: every server failed") from error
        except OSError as error:
            raise source.FaultError(Problem.UNREACHABLE, type(error).__name__) from error
        except dns.exception.DNSException as error:
            raise source.FaultError(Problem.MALFORMED, type(error).__name__) from error

    def _resolver(self) -> dns.asyncresolver.Resolver:
        """Made anew each time: /etc/resolv.conf may have changed. Raises: FaultError."""
        try:
            resolver = dns.asyncresolver.Resolver(configure=not self._nameservers)
        except dns.resolver.NoResolverConfiguration as error:
            raise source.FaultError(Problem.UNREACHABLE, "/etc/resolv.conf names no server") from error
        if self._nameservers:
            resolver.nameservers = self._nameservers
        resolver.timeout = self._settings.query_timeout_s
        resolver.lifetime = self._settings.query_timeout_s * _ATTEMPTS
        return resolver


def _kinds(family: source.Family) -> tuple[str, str]:
    return ("A", "AAAA") if family == "ipv4" else ("AAAA", "A")


def _text(name: dns.name.Name) -> str:
    return name.to_text(omit_final_dot=True).lower()


def _sorted(ips: Iterable[str]) -> list[str]:
    return sorted(ips, key=lambda ip: ipaddress.ip_address(ip).packed)


def _told(
    response: dns.message.Message, targets: Iterable[dns.name.Name], family: source.Family
) -> dict[dns.name.Name, tuple[list[str], float]]:
    """What an SRV answer tells, unasked, of its targets' addresses of the preferred family."""
    kind = dns.rdatatype.from_text(_kinds(family)[0])
    sets = {rrset.name: rrset for rrset in response.additional if rrset.rdtype == kind and len(rrset)}
    return {
        target: (_sorted(record.address for record in sets[target]), float(sets[target].ttl))
        for target in targets
        if target in sets
    }


def _nameserver(text: str) -> dns.nameserver.Nameserver:
    """Raises: ValueError."""
    try:
        return dns.nameserver.Do53Nameserver(str(ipaddress.ip_address(text)), 53)
    except ValueError:
        ip, _, port = source.parse_address(text).rpartition(":")
        return dns.nameserver.Do53Nameserver(ip.strip("[]"), int(port))
