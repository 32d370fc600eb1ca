"""Envoy's clusters: what an Envoy itself knows of a cluster's hosts, from its admin interface.

    GET /clusters?format=json     hosts of each cluster with address, weight and every health flag

As a source it gives the members of a cluster; as a health signal it tells which addresses that Envoy holds
for well, whatever source named them: it sees failures of real requests (outlier detection), which no probe
does. A member's name is its address: Envoy's `hostname` is the cluster's, the same for all.

Never: a failed answer taken for news. The last members stand; of health, nothing is known.
Called by: the fleet. Source: Envoy v3 admin API, ClusterStatus and HostHealthStatus.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from extproc import pool
from extproc.endpoints import reply, source
from extproc.endpoints.source import FaultError, Problem

__all__ = ["EnvoyClusters", "Health", "Host", "Settings", "hosts"]

_WEIGHT_MAX = 100
_WELL = {"HEALTHY", "DEGRADED", "UNKNOWN"}  # of EDS; UNKNOWN is what a source that tells nothing gives


@dataclass(frozen=True, slots=True)
class Settings:
    """Which Envoy and cluster, and how often.

    admin: "http://host:port" of the admin interface. cluster: its name there. poll_interval_s: from question
    to question [0.05..60 s]. timeout_s: for an answer [0.05..60 s]. retry_max_s: longest wait after faults
    [0.05..300 s]. answer_bytes_max: [64 KiB..]; a host takes about 1 KB, and all clusters are in the answer.
    """

    admin: str
    cluster: str
    poll_interval_s: float = 1.0
    timeout_s: float = 2.0
    retry_max_s: float = 30.0
    answer_bytes_max: int = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Host:
    """A host of a cluster: address as Envoy writes it, weight [1..100] without what all weights share as a
    factor, whether that Envoy would use it.
    """

    address: str
    weight: int
    well: bool


class _SocketAddress(msgspec.Struct, frozen=True):
    address: str = ""
    port_value: int = 0


class _Address(msgspec.Struct, frozen=True):
    socket_address: _SocketAddress | None = None  # pipes and internal listeners have none


class _HealthStatus(msgspec.Struct, frozen=True):
    failed_active_health_check: bool = False
    failed_outlier_check: bool = False
    pending_dynamic_removal: bool = False
    pending_active_hc: bool = False
    excluded_via_immediate_hc_fail: bool = False
    eds_health_status: str = "HEALTHY"


class _HostStatus(msgspec.Struct, frozen=True):
    address: _Address = _Address()
    health_status: _HealthStatus = _HealthStatus()
    weight: int = 1


class _ClusterStatus(msgspec.Struct, frozen=True):
    name: str = ""
    host_statuses: list[_HostStatus] = []


class _Clusters(msgspec.Struct, frozen=True):
    cluster_statuses: list[_ClusterStatus] = []


class _Poll:
    """Asks again and again; both faces of this module tell what came."""

    def __init__(
        self, kind: str, settings: Settings, clock: source.Clock, chance: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._contact = source.Contact(kind, f"{settings.cluster} of {settings.admin}", clock)
        self._clock = clock
        self._chance = chance
        self._backoff = source.Backoff(settings.poll_interval_s, settings.retry_max_s, chance)

    def contact_age_s(self, now: float) -> float | None:
        """How long ago Envoy last gave a good answer [s]; None if it never did."""
        return self._contact.age_s(now)

    @property
    def state(self) -> source.State:
        """How the source fares."""
        return self._contact.state

    async def _poll(self, take: Callable[[list[Host] | None], FaultError | None]) -> None:
        """For ever: `take` gets the hosts, or None after a fault, and returns what is wrong with them."""
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_s)
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(
            self._settings.admin, timeout=timeout, connector=connector
        ) as session:
            while True:
                try:
                    found = await self._ask(session)
                except FaultError as fault:
                    self._contact.failed(fault.problem, str(fault))
                    take(None)
                    await asyncio.sleep(self._backoff.next_s())
                    continue
                self._contact.resynced()
                self._contact.heard(take(found))
                self._backoff.reset()
                await asyncio.sleep(self._settings.poll_interval_s * (0.95 + 0.1 * self._chance()))

    async def _ask(self, session: aiohttp.ClientSession) -> list[Host]:
        """Raises: FaultError."""
        try:
            async with session.get("/clusters?format=json", allow_redirects=False) as answer:
                if answer.status != 200:
                    raise reply.fault(answer.status)
                data = await reply.read(answer, self._settings.answer_bytes_max)
            return hosts(data, self._settings.cluster)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise FaultError(Problem.UNREACHABLE, type(error).__name__) from error


class EnvoyClusters(_Poll):
    """A source: the hosts of a cluster of an Envoy."""

    def __init__(self, settings: Settings, clock: source.Clock, chance: Callable[[], float]) -> None:
        """`clock` is monotonic [s], `chance` uniform in [0, 1)."""
        super().__init__("envoy_cluster", settings, clock, chance)
        self._published: tuple[pool.Endpoint, ...] | None = None

    async def run(self, publish: source.Publish) -> None:
        """Publish the cluster's hosts now and on every change, until cancelled."""

        def take(found: list[Host] | None) -> FaultError | None:
            if found is None:
                return None
            kept, cut = source.bounded(
                pool.Endpoint(pool.EndpointId(host.address), host.address, host.weight, host.well)
                for host in found
            )
            if kept != self._published:
                self._published = kept
                publish(kept)
            return cut

        await self._poll(take)


class Health(_Poll):
    """A health signal: what an Envoy holds of addresses."""

    def __init__(self, settings: Settings, clock: source.Clock, chance: Callable[[], float]) -> None:
        """`clock` is monotonic [s], `chance` uniform in [0, 1)."""
        super().__init__("envoy_health", settings, clock, chance)
        self._published: Mapping[str, bool] | None = None

    async def run(self, publish: Callable[[Mapping[str, bool]], None]) -> None:
        """Publish address -> whether it is well, now and on every change, until cancelled.

        After a fault nothing is known and the mapping is empty: an endpoint must not stay excluded because
        an Envoy went away.
        """

        def take(found: list[Host] | None) -> FaultError | None:
            health = {host.address: host.well for host in found or ()}
            if health != self._published:
                self._published = health
                publish(health)
            return None

        await self._poll(take)


def hosts(data: bytes, cluster: str) -> list[Host]:
    """The hosts of `cluster` in an answer of /clusters?format=json; those that are no ip:port left out.

    Raises: FaultError.
    """
    try:
        answer = msgspec.json.decode(data, type=_Clusters)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FaultError(Problem.MALFORMED, str(error)) from error
    statuses = next((one.host_statuses for one in answer.cluster_statuses if one.name == cluster), None)
    if statuses is None:
        raise FaultError(Problem.NOT_FOUND, f"no cluster {cluster}")
    return list(_hosts(statuses))


def _hosts(statuses: Sequence[_HostStatus]) -> Iterable[Host]:
    # Control planes like to give every host the same large weight; a ring point each would be waste.
    shared = math.gcd(*(status.weight for status in statuses)) or 1
    for status in statuses:
        at = status.address.socket_address
        if at is None:
            continue
        try:
            address = source.address(at.address, at.port_value)
        except ValueError:
            continue
        weight = max(1, min(_WEIGHT_MAX, status.weight // shared))
        yield Host(address, weight, _well(status.health_status))


def _well(health: _HealthStatus) -> bool:
    return health.eds_health_status in _WELL and not (
        health.failed_active_health_check
        or health.failed_outlier_check
        or health.pending_dynamic_removal
        or health.pending_active_hc
        or health.excluded_via_immediate_hc_fail
    )
