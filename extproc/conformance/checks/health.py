"""Health: the gRPC health service that kubelets and gateways ask, in plaintext."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from extproc.bootstrap.address import Address
from extproc.conformance.check import Check, FailedError, Severity
from extproc.conformance.target import Target
from extproc.wire import names

__all__ = ["CHECKS"]

_METHOD = "/grpc.health.v1.Health/Check"
_PORT = 9003  # by convention
_NO_SERVICE = {"UNAVAILABLE", "UNIMPLEMENTED", "DEADLINE_EXCEEDED"}
_NOBODY = "kvring-conformance-no-such-service"


def _where(target: Target) -> list[Address]:
    """Where it may be: as told, or else at its port by convention or beside ext_proc."""
    settings = target.settings
    if settings.health is not None:
        return [settings.health]
    beside = settings.address
    return [beside] if beside.path else [replace(beside, port=_PORT), beside]


async def _status(target: Target, service: str) -> str:
    """What is said of `service`: SERVING, NOT_SERVING, or the gRPC status. Raises: FailedError."""
    places = _where(target)
    said = "none"
    for place in places:
        said = await _ask(str(place), service, target.timeout_s)
        if said not in _NO_SERVICE:
            return said
    where = " nor at ".join(map(str, places))
    raise FailedError(f"no health service at {where} ({said}); --health HOST:PORT says where it is")


async def _ask(place: str, service: str, timeout_s: float) -> str:
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(place, options=options) as channel:
        ask: grpc.aio.UnaryUnaryMultiCallable[Any, bytes] = channel.unary_unary(
            _METHOD, health_pb2.HealthCheckRequest.SerializeToString
        )
        try:
            async with asyncio.timeout(timeout_s):
                data = await ask(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
            status = health_pb2.HealthCheckResponse.FromString(data).status
            return health_pb2.HealthCheckResponse.ServingStatus.Name(status)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        except TimeoutError:
            return "DEADLINE_EXCEEDED"
        except (DecodeError, ValueError) as error:  # no such message, or no such number
            raise FailedError(f"{place} answers what is no HealthCheckResponse") from error


async def _serving(target: Target, service: str) -> None:
    said = await _status(target, service)
    if said != "SERVING":
        raise FailedError(f"{service or 'the empty name'} is {said}")


async def _liveness(target: Target) -> None:
    await _serving(target, "liveness")


async def _readiness(target: Target) -> None:
    await _serving(target, "readiness")


async def _ext_proc(target: Target) -> None:
    await _serving(target, names.SERVICE)


async def _whole(target: Target) -> None:
    await _serving(target, "")


async def _unknown(target: Target) -> None:
    said = await _status(target, _NOBODY)
    if said not in ("NOT_FOUND", "SERVICE_UNKNOWN"):
        raise FailedError(f"a name that nobody has is {said}")


_KUBELET = "Kubernetes restarts the pod, or never sends it traffic, with the probes of the usual charts."
_CHARTS = "grpc.health.v1, names of the picker charts"

CHECKS = (
    Check("health-liveness", Severity.MUST, "Service `liveness` is SERVING.", _KUBELET, _CHARTS, _liveness),
    Check(
        "health-readiness", Severity.MUST, "Service `readiness` is SERVING.", _KUBELET, _CHARTS, _readiness
    ),
    Check(
        "health-ext-proc",
        Severity.MUST,
        f"Service `{names.SERVICE}` is SERVING.",
        "Gateways with an active health check take the picker for down.",
        "grpc.health.v1, Envoy's gRPC health check",
        _ext_proc,
    ),
    Check(
        "health-whole",
        Severity.SHOULD,
        "The empty name is SERVING.",
        "Probes without a service name fail.",
        "grpc.health.v1",
        _whole,
    ),
    Check(
        "health-unknown",
        Severity.SHOULD,
        "An unknown name is NOT_FOUND.",
        "A mistyped probe is always green.",
        "grpc.health.v1",
        _unknown,
    ),
)
