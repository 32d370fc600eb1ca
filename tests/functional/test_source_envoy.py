"""The hosts of a cluster of a real Envoy, as members and as health; and of an Envoy that answers badly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from extproc import gateway
from extproc.endpoints import envoy_clusters
from extproc.endpoints.source import FaultError, Problem
from tests.functional.conftest import eventually
from tests.functional.membership import running

CLUSTER = "llm"


def eds(path: Path, endpoints: Mapping[str, str]) -> None:
    """Tell Envoy the cluster's hosts: port -> health status of the control plane."""
    lb_endpoints = [
        {
            "endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": int(port)}}},
            "health_status": status,
            "load_balancing_weight": 3,
        }
        for port, status in endpoints.items()
    ]
    assignment = {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": CLUSTER,
        "endpoints": [{"locality": {}, "lb_endpoints": lb_endpoints}],
    }
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({"version_info": str(time.monotonic()), "resources": [assignment]}))
    beside.rename(path)


def bootstrap(eds_path: Path, cluster: dict[str, Any]) -> dict[str, Any]:
    router = {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "stat_prefix": "llm",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": CLUSTER}}],
                }
            ]
        },
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
    }
    listening = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    return {
        "node": {"id": "test", "cluster": "test"},
        "admin": {"address": listening},
        "static_resources": {
            "listeners": [
                {
                    "name": "llm",
                    "address": listening,
                    "filter_chains": [
                        {
                            "filters": [
                                {
                                    "name": "envoy.filters.network.http_connection_manager",
                                    "typed_config": manager,
                                }
                            ]
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": CLUSTER,
                    "type": "EDS",
                    "connect_timeout": "1s",
                    "eds_cluster_config": {
                        "eds_config": {
                            "resource_api_version": "V3",
                            "path_config_source": {"path": str(eds_path)},
                        }
                    },
                    **cluster,
                }
            ],
        },
    }


@contextlib.asynccontextmanager
async def engine(status: int = 200, text: str = "") -> AsyncIterator[str]:
    """A server on loopback that answers everything so; its port."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield str(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def settings(admin: str, **changes: Any) -> envoy_clusters.Settings:
    quick: dict[str, Any] = {"poll_interval_s": 0.02, "timeout_s": 1, "retry_max_s": 0.05}
    return envoy_clusters.Settings(f"http://{admin}", CLUSTER, **(quick | changes))


def source(admin: str, **changes: Any) -> envoy_clusters.EnvoyClusters:
    return envoy_clusters.EnvoyClusters(settings(admin, **changes), time.monotonic, lambda: 0.5)


@contextlib.asynccontextmanager
async def health_of(admin: str) -> AsyncIterator[list[Mapping[str, bool]]]:
    seen: list[Mapping[str, bool]] = []
    signal = envoy_clusters.Health(settings(admin), time.monotonic, lambda: 0.5)
    task = asyncio.create_task(signal.run(seen.append))
    try:
        yield seen
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.envoy
async def test_members_follow_the_control_plane_of_a_real_envoy(tmp_path):
    path = tmp_path / "eds.json"
    eds(path, {"8001": "HEALTHY", "8002": "HEALTHY"})
    async with gateway.envoy(bootstrap(path, {})) as envoy, running(source(envoy.admin)) as members:
        await members.until(lambda now: now.ready == {"127.0.0.1:8001", "127.0.0.1:8002"})
        assert {member.weight for member in members.now} == {1}
        eds(path, {"8001": "DRAINING", "8002": "HEALTHY", "8003": "UNHEALTHY", "8004": "DEGRADED"})
        await members.until(lambda now: now.ready == {"127.0.0.1:8002", "127.0.0.1:8004"})
        assert len(members.addresses) == 4
        eds(path, {"8004": "HEALTHY"})
        await members.until(lambda now: set(now.addresses) == {"127.0.0.1:8004"})
        assert len(members.history) == 3


@pytest.mark.envoy
async def test_a_host_that_fails_envoys_active_check_is_not_ready_as_member_and_as_health(tmp_path):
    check = {
        "timeout": "1s",
        "interval": "0.05s",
        "no_traffic_interval": "0.05s",
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
        "http_health_check": {"path": "/health"},
    }
    path = tmp_path / "eds.json"
    async with engine() as well, engine(503) as sick:
        eds(path, {well: "HEALTHY", sick: "HEALTHY"})
        async with (
            gateway.envoy(bootstrap(path, {"health_checks": [check]})) as envoy,
            running(source(envoy.admin)) as members,
            health_of(envoy.admin) as seen,
        ):
            await members.until(lambda now: now.ready == {f"127.0.0.1:{well}"})
            assert len(members.addresses) == 2
            await eventually(
                lambda: seen and seen[-1] == {f"127.0.0.1:{well}": True, f"127.0.0.1:{sick}": False}
            )


@pytest.mark.envoy
async def test_a_host_ejected_for_failed_requests_is_unwell(tmp_path):
    outlier = {
        "consecutive_5xx": 1,
        "interval": "0.05s",
        "base_ejection_time": "60s",
        "max_ejection_percent": 100,
        "enforcing_consecutive_5xx": 100,
    }
    path = tmp_path / "eds.json"
    async with engine(500) as sick:
        eds(path, {sick: "HEALTHY"})
        async with (
            gateway.envoy(bootstrap(path, {"outlier_detection": outlier})) as envoy,
            health_of(envoy.admin) as seen,
            aiohttp.ClientSession() as session,
        ):
            await eventually(lambda: seen and seen[-1] == {f"127.0.0.1:{sick}": True})
            async with session.get(envoy.url()) as answer:
                assert answer.status == 500
            await eventually(lambda: seen[-1] == {f"127.0.0.1:{sick}": False})


@pytest.mark.envoy
async def test_when_envoy_is_gone_the_members_stand_and_nothing_is_known_of_health(tmp_path):
    path = tmp_path / "eds.json"
    eds(path, {"8001": "UNHEALTHY"})
    async with contextlib.AsyncExitStack() as stack:
        envoy = await stack.enter_async_context(gateway.envoy(bootstrap(path, {})))
        asked = source(envoy.admin)
        async with running(asked) as members, health_of(envoy.admin) as seen:
            await members.until(lambda now: len(now.addresses) == 1)
            await eventually(lambda: seen and seen[-1] == {"127.0.0.1:8001": False})
            await stack.aclose()
            await eventually(lambda: seen[-1] == {})
            await eventually(lambda: asked.state.problem is Problem.UNREACHABLE)
            assert len(members.history) == 1


@pytest.mark.envoy
async def test_a_cluster_that_envoy_has_not_is_told(tmp_path):
    path = tmp_path / "eds.json"
    eds(path, {"8001": "HEALTHY"})
    async with gateway.envoy(bootstrap(path, {})) as envoy:
        asked = envoy_clusters.EnvoyClusters(
            envoy_clusters.Settings(f"http://{envoy.admin}", "other", 0.02), time.monotonic, lambda: 0.5
        )
        async with running(asked) as members:
            await eventually(lambda: asked.state.problem is Problem.NOT_FOUND)
            assert not members.history


@pytest.mark.parametrize(
    ("status", "text", "problem"),
    [
        (200, "<html>", Problem.MALFORMED),
        (200, "", Problem.MALFORMED),
        (200, '{"cluster_statuses": 3}', Problem.MALFORMED),
        (200, '{"x": ' + "[" * 50_000, Problem.MALFORMED),
        (200, "{}", Problem.NOT_FOUND),
        (200, " " * 70_000 + "{}", Problem.TOO_LARGE),
        (404, "{}", Problem.NOT_FOUND),
        (403, "{}", Problem.FORBIDDEN),
        (500, "{}", Problem.SERVER_ERROR),
        (302, "{}", Problem.MALFORMED),
    ],
)
async def test_a_bad_answer_is_told_and_publishes_nothing(status, text, problem):
    async with engine(status, text) as port:
        asked = source(f"127.0.0.1:{port}", answer_bytes_max=65_536)
        async with running(asked) as members:
            await eventually(lambda: asked.state.faults.get(problem, 0) >= 2)
            assert not members.history
            assert asked.contact_age_s(time.monotonic()) is None


def test_hosts_without_ip_and_port_are_left_out_and_weights_are_reduced():
    statuses = [
        {"address": {"pipe": {"path": "/run/x"}}, "weight": 2},
        {"address": {"socket_address": {"address": "name.example", "port_value": 80}}, "weight": 2},
        {"address": {"socket_address": {"address": "10.0.0.1", "port_value": 0}}, "weight": 2},
        {"address": {"socket_address": {"address": "FD00::1", "port_value": 80}}, "weight": 4096},
        {"address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}}, "weight": 6},
    ]
    data = json.dumps({"cluster_statuses": [{"name": "x"}, {"name": CLUSTER, "host_statuses": statuses}]})
    assert envoy_clusters.hosts(data.encode(), CLUSTER) == [
        envoy_clusters.Host("[fd00::1]:80", 100, well=True),
        envoy_clusters.Host("10.0.0.1:80", 3, well=True),
    ]
    assert envoy_clusters.hosts(data.encode(), "x") == []
    with pytest.raises(FaultError):
        envoy_clusters.hosts(data.encode(), "y")
