"""Slices: the endpoints of a Kubernetes Service, merged from all of its EndpointSlices.

A Service has a slice for every hundred endpoints and for each IP family, and an endpoint may stand in two
while it moves from one to the other.

    name      "pod:port": stays while a StatefulSet's pod changes its address; without a pod "ip:port"
    ready     ready and serving (nil counts as yes) and not terminating
    of two copies of a member    at one address: not ready if one is terminating; else ready if one is
                                 at two addresses: the ready one, then the preferred family's

`serving` is asked too, because publishNotReadyAddresses makes every endpoint `ready`. Slices of type FQDN
are left out: Envoy can be told addresses only.

Never: a terminating endpoint ready. Called by: the fleet.
Source: Kubernetes EndpointSlice v1, "Duplicate endpoints" and "Conditions".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from extproc import pool
from extproc.endpoints import api_server, kubernetes, source
from extproc.endpoints.source import FaultError, Problem

__all__ = ["EndpointSlice", "Settings", "Slices", "members"]

_FAMILIES: dict[str, source.Family] = {"IPv4": "ipv4", "IPv6": "ipv6"}


@dataclass(frozen=True, slots=True)
class Settings:
    """Which Service: its namespace and name; port: name or number, none for its only one; family: which
    address of a dual-stack endpoint is taken.
    """

    namespace: str
    service: str
    port: str | None = None
    family: source.Family = "ipv4"


class _Conditions(msgspec.Struct, frozen=True):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Reference(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""


class _Endpoint(msgspec.Struct, frozen=True, rename="camel"):
    addresses: list[str]
    conditions: _Conditions = _Conditions()
    target_ref: _Reference | None = None


class _Port(msgspec.Struct, frozen=True):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(kubernetes.Resource, frozen=True, rename="camel"):
    """What is needed of a discovery.k8s.io/v1 EndpointSlice."""

    address_type: str = ""
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


class _Copy(NamedTuple):
    """A member as one slice has it."""

    name: str
    address: str
    preferred: bool
    ready: bool
    terminating: bool


class Slices:
    """A source that watches the EndpointSlices of a Service."""

    def __init__(
        self,
        settings: Settings,
        access: api_server.Access,
        clock: source.Clock,
        chance: Callable[[], float],
    ) -> None:
        """`clock` is monotonic [s], `chance` uniform in [0, 1)."""
        self._settings = settings
        self._interval_s = access.publish_interval_s
        what = f"{settings.namespace}/{settings.service}"
        self._watched = source.Contact("kubernetes_service", what, clock)
        self._own = source.Contact("kubernetes_service", what, clock)
        self._dirty = asyncio.Event()
        self._published: tuple[pool.Endpoint, ...] | None = None
        path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(settings.namespace, safe='')}/endpointslices"
        self._mirror = kubernetes.Mirror(
            access,
            kubernetes.Query(path, f"kubernetes.io/service-name={settings.service}"),
            EndpointSlice,
            self._dirty.set,
            self._watched,
            clock,
            chance,
        )

    async def run(self, publish: source.Publish) -> None:
        """Publish the Service's endpoints now and on every change, until cancelled."""

        def refresh() -> None:
            found, fault = members(self._mirror.objects.values(), self._settings)
            kept, cut = source.bounded(found)
            self._own.heard(fault or cut)
            if kept != self._published:
                self._published = kept
                publish(kept)

        async with asyncio.TaskGroup() as group:
            group.create_task(self._mirror.run())
            group.create_task(kubernetes.paced(self._dirty, refresh, self._interval_s))

    def contact_age_s(self, now: float) -> float | None:
        """How long ago the API server last spoke [s]; None if it never did."""
        return self._watched.age_s(now)

    @property
    def state(self) -> source.State:
        """How the source fares."""
        return source.combined([self._watched.state], self._own.state)


def members(
    slices: Iterable[EndpointSlice], settings: Settings
) -> tuple[list[pool.Endpoint], FaultError | None]:
    """The members in all slices of a Service, in any order, and what is wrong with the slices, if so."""
    by_name: dict[str, dict[str, list[_Copy]]] = {}
    slices = list(slices)
    fault = None
    for one in slices:
        try:
            for copy in _copies(one, settings):
                by_name.setdefault(copy.name, {}).setdefault(copy.address, []).append(copy)
        except FaultError as error:
            fault = error
    if not slices:
        fault = FaultError(Problem.NOT_FOUND, f"no EndpointSlice of Service {settings.service}")
    return [_best(name, copies) for name, copies in by_name.items()], fault


def _copies(one: EndpointSlice, settings: Settings) -> Iterator[_Copy]:
    """Raises: FaultError."""
    family = _FAMILIES.get(one.address_type)
    if family is None or not one.endpoints:
        return
    number = _number(one, settings)
    for endpoint in one.endpoints:
        try:
            address = source.address(endpoint.addresses[0], number)  # the API gives the others no meaning
        except (IndexError, ValueError):
            continue
        pod = endpoint.target_ref
        name = f"{pod.name}:{number}" if pod is not None and pod.kind == "Pod" and pod.name else address
        asked = endpoint.conditions
        terminating = asked.terminating is True
        ready = asked.ready is not False and asked.serving is not False and not terminating
        yield _Copy(name, address, family == settings.family, ready, terminating)


def _number(one: EndpointSlice, settings: Settings) -> int:
    """The port's number in this slice; pods may differ in what a named port is. Raises: FaultError."""
    ports = [port for port in one.ports or () if port.port and port.protocol in {None, "TCP"}]
    if settings.port is None:
        found = ports if len(ports) == 1 else []
    else:
        found = [port for port in ports if settings.port in {port.name, str(port.port)}]
    if not found or found[0].port is None:
        wanted = "exactly one TCP port" if settings.port is None else f"a TCP port {settings.port}"
        raise FaultError(Problem.NOT_FOUND, f"slice {one.metadata.name} has not {wanted}")
    return found[0].port


def _best(name: str, copies: dict[str, list[_Copy]]) -> pool.Endpoint:
    judged = (
        (
            any(copy.ready for copy in same) and not any(copy.terminating for copy in same),
            same[0].preferred,
            address,
        )
        for address, same in copies.items()
    )
    ready, _, address = max(judged)
    return pool.Endpoint(pool.EndpointId(name), address, ready=ready)
