"""InferencePool: the pods that an InferencePool selects, each with each of its target ports.

The pool's object tells selector and ports; both may change, and then the pods are watched anew, or merely
counted anew. A target port is an endpoint of its own: with data-parallel ranks it has its own KV cache.

    name      "pod:port"
    ready     the pod's Ready condition is True, and it is not being deleted
    member    a pod with an address that has not ended (Succeeded, Failed)

Never: the pods of an old selector beside those of a new one; all pods of a namespace for lack of a selector.
Called by: the fleet. Source: Gateway API Inference Extension, InferencePool v1.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

import msgspec

from extproc import pool
from extproc.endpoints import api_server, kubernetes, source
from extproc.endpoints.source import FaultError, Problem

__all__ = ["InferencePool", "Pod", "PoolObject", "Settings", "members"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Which InferencePool: its namespace and name; family: which address of a dual-stack pod is taken."""

    namespace: str
    name: str
    family: source.Family = "ipv4"


class _Selector(msgspec.Struct, frozen=True):
    labels: dict[str, str] = msgspec.field(name="matchLabels", default_factory=dict)


class _TargetPort(msgspec.Struct, frozen=True):
    number: Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    selector: _Selector
    target_ports: list[_TargetPort]


class PoolObject(kubernetes.Resource, frozen=True):
    """What is needed of an inference.networking.k8s.io/v1 InferencePool."""

    spec: _Spec


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _Ip(msgspec.Struct, frozen=True):
    ip: str = ""


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""
    conditions: list[_Condition] | None = None
    ip: str | None = msgspec.field(name="podIP", default=None)
    ips: list[_Ip] | None = msgspec.field(name="podIPs", default=None)


class Pod(kubernetes.Resource, frozen=True):
    """What is needed of a core/v1 Pod."""

    status: _Status = _Status()


class InferencePool:
    """A source that watches an InferencePool and the pods it selects."""

    def __init__(
        self,
        settings: Settings,
        access: api_server.Access,
        clock: source.Clock,
        chance: Callable[[], float],
    ) -> None:
        """`clock` is monotonic [s], `chance` uniform in [0, 1)."""
        self._settings = settings
        self._access = access
        self._clock = clock
        self._chance = chance
        what = f"{settings.namespace}/{settings.name}"
        self._pool_watched, self._pods_watched, self._own = (
            source.Contact("inference_pool", what, clock) for _ in range(3)
        )
        self._pool_changed = asyncio.Event()
        self._pods_changed = asyncio.Event()
        self._published: tuple[pool.Endpoint, ...] | None = None
        self._selector = ""  # of the pods that are watched; empty: none are
        self._pods: kubernetes.Mirror[Pod] | None = None
        group = "/apis/inference.networking.k8s.io/v1"
        self._pools = kubernetes.Mirror(
            access,
            kubernetes.Query(
                f"{group}/namespaces/{quote(settings.namespace, safe='')}/inferencepools",
                field_selector=f"metadata.name={settings.name}",
            ),
            PoolObject,
            self._pool_changed.set,
            self._pool_watched,
            clock,
            chance,
        )

    async def run(self, publish: source.Publish) -> None:
        """Publish the selected pods now and on every change, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pools.run())
            group.create_task(self._select(group))
            group.create_task(
                kubernetes.paced(
                    self._pods_changed, lambda: self._refresh(publish), self._access.publish_interval_s
                )
            )

    async def _select(self, group: asyncio.TaskGroup) -> None:
        """Watch the pods that the pool selects now; the old members stand until those are listed."""
        watching: asyncio.Task[None] | None = None
        self._selector, self._pods = "", None
        if self._pools.synced:  # run once before
            self._pool_changed.set()
        while True:
            await self._pool_changed.wait()
            self._pool_changed.clear()
            self._pods_changed.set()
            selector = _selector(self._object())
            if selector == self._selector:
                continue
            self._selector = selector
            if watching is not None:
                watching.cancel()
            if not selector:
                watching, self._pods = None, None
                continue
            path = f"/api/v1/namespaces/{quote(self._settings.namespace, safe='')}/pods"
            self._pods = kubernetes.Mirror(
                self._access,
                kubernetes.Query(path, selector),
                Pod,
                self._pods_changed.set,
                self._pods_watched,
                self._clock,
                self._chance,
            )
            watching = group.create_task(self._pods.run())

    def _refresh(self, publish: source.Publish) -> None:
        found = self._object()
        fault: FaultError | None = None
        kept: tuple[pool.Endpoint, ...] = ()
        if found is None:
            fault = FaultError(Problem.NOT_FOUND, f"no InferencePool {self._settings.name}")
        elif not found.spec.selector.labels or not found.spec.target_ports:
            self._own.failed(Problem.MALFORMED, f"InferencePool {self._settings.name} selects nothing")
            return
        elif self._pods is None or not self._pods.synced:
            return
        else:
            ports = [port.number for port in found.spec.target_ports]
            kept, fault = source.bounded(members(self._pods.objects.values(), ports, self._settings.family))
        self._own.heard(fault)
        if kept != self._published:
            self._published = kept
            publish(kept)

    def _object(self) -> PoolObject | None:
        return self._pools.objects.get(self._settings.name)

    def contact_age_s(self, now: float) -> float | None:
        """How long ago the API server last spoke, on its more silent watch [s]; None if it never did."""
        state = self.state
        return None if state.contact_s is None else max(0.0, now - state.contact_s)

    @property
    def state(self) -> source.State:
        """How the source fares."""
        watched = [self._pool_watched.state]
        if self._selector:
            watched.append(self._pods_watched.state)
        return source.combined(watched, self._own.state)


def members(pods: Iterable[Pod], ports: Iterable[int], family: source.Family) -> list[pool.Endpoint]:
    """Every pod that has an address and has not ended, with each port, in any order."""
    ports = list(ports)
    found = []
    for one in pods:
        ip = _ip(one, family)
        if ip is None or one.status.phase in {"Succeeded", "Failed"}:
            continue
        ready = one.metadata.deletion_timestamp is None and any(
            condition.type == "Ready" and condition.status == "True"
            for condition in one.status.conditions or ()
        )
        for port in ports:
            name = pool.EndpointId(f"{one.metadata.name}:{port}")
            found.append(pool.Endpoint(name, source.address(ip, port), ready=ready))
    return found


def _ip(one: Pod, family: source.Family) -> str | None:
    """The pod's address of the preferred family, else the other's."""
    ips = [entry.ip for entry in one.status.ips or ()] or [one.status.ip or ""]
    ips = [ip for ip in ips if _is_ip(ip)]
    of_family = [ip for ip in ips if (":" in ip) == (family == "ipv6")]
    return next(iter(of_family or ips), None)


def _is_ip(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _selector(found: PoolObject | None) -> str:
    """As the API writes it; empty if there is none."""
    if found is None:
        return ""
    return ",".join(f"{key}={value}" for key, value in sorted(found.spec.selector.labels.items()))
