"""Kubernetes sources against kmock, a double that others wrote: it shares no mistake with ours.

It has no resource versions, pages or compaction: those are `kube_double`'s. Here: objects that are made,
changed and deleted over HTTP, and watches whose events are written down, each ending in its own way.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import kmock
import pytest

from extproc.endpoints import inference_pool, slices
from extproc.endpoints.source import Problem
from tests.functional.membership import running
from tests.functional.test_source_kubernetes import (
    PODS,
    POOLS,
    SLICES,
    access,
    are,
    pod_of,
    pool_of,
    slice_of,
)

A = slice_of("s1", {"a": "10.0.0.1"})
B = slice_of("s2", {"b": "10.0.0.2"})
C = slice_of("s3", {"c": "10.0.0.3"})


@contextlib.asynccontextmanager
async def emulated() -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """Where an API server is that keeps what is sent to it, and a client of it."""
    handler = kmock.KubernetesEmulator()
    async with handler, kmock.Server(handler) as server:
        yield str(server.url).rstrip("/"), server.client


async def test_objects_that_come_change_and_go_are_followed() -> None:
    async with emulated() as (url, client):
        await client.post(SLICES, json=A)
        source = slices.Slices(slices.Settings("llm", "vllm"), access(url), time.monotonic, lambda: 0.0)
        async with running(source) as members:
            await members.until(are("a"))
            await client.post(SLICES, json=B)
            await members.until(are("a", "b"))
            terminating = {"ready": False, "serving": True, "terminating": True}
            await client.patch(f"{SLICES}/s1", json=slice_of("s1", {"a": "10.0.0.1"}, conditions=terminating))
            await members.until(lambda now: now.ready == {"b:8000"})
            await client.delete(f"{SLICES}/s1")
            await members.until(are("b"))
            assert source.state.problem is None


async def test_the_pods_of_a_pool_are_followed() -> None:
    async with emulated() as (url, client):
        settings = inference_pool.Settings("llm", "vllm")
        source = inference_pool.InferencePool(settings, access(url), time.monotonic, lambda: 0.0)
        await client.post(POOLS, json=pool_of({"app": "vllm"}, 8000, 8001))
        await client.post(PODS, json=pod_of("a", "10.0.0.1"))
        async with running(source) as members:
            await members.until(lambda now: now.ready == {"a:8000", "a:8001"})
            await client.post(PODS, json=pod_of("b", "10.0.0.2", ready=False))
            await members.until(lambda now: len(now.addresses) == 4 and len(now.ready) == 2)
            await client.delete(f"{PODS}/a")
            await members.until(lambda now: set(now.addresses) == {"b:8000", "b:8001"})


# ---- watches as written down: what they say, and how they end ----


def event(kind: str, item: dict[str, Any], version: int) -> dict[str, Any]:
    metadata = item["metadata"] | {"resourceVersion": str(version)}
    return {"type": kind, "object": item | {"metadata": metadata}}


def bookmark(version: int) -> dict[str, Any]:
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}


async def silence() -> None:
    """The watch goes on and says nothing more."""
    await asyncio.Event().wait()


def abort(request: kmock.Request) -> None:
    """RST, or as near to it as a transport can come."""
    assert request._raw_request is not None
    assert request._raw_request.transport is not None
    request._raw_request.transport.abort()


GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
HALF_AN_EVENT = b'{"type":"ADDED","object":{"metadata":{"name":"half",'

# What the watches answer, one after the other (a number: that status), while B is deleted during the first;
# the versions they are asked for; how many lists that takes; the problem that is counted. Then C is added.
ENDINGS: dict[str, tuple[list[Any], list[str], int, Problem | None]] = {
    "an end as it should be, the deletion in the next watch": (
        [(bookmark(12),), (event("DELETED", B, 13),)],
        ["11", "12", "13"],
        1,
        None,
    ),
    "the deletion missed, 410 as status": (
        [(bookmark(12),), 410],
        ["11", "12", "11"],
        2,
        Problem.EXPIRED,
    ),
    "the deletion missed, 410 as event": ([(bookmark(12), GONE)], ["11", "11"], 2, Problem.EXPIRED),
    "a reset": ([(bookmark(12), abort)], ["11", "11"], 2, Problem.UNREACHABLE),
    "half open": ([(bookmark(12), silence)], ["11", "11"], 2, Problem.UNREACHABLE),
    "an end within an event": ([(bookmark(12), HALF_AN_EVENT)], ["11", "11"], 2, Problem.MALFORMED),
    "a server that is ill": ([503], ["11", "11"], 2, Problem.SERVER_ERROR),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_however_a_watch_ends_the_members_are_those_that_exist(ending: str) -> None:
    answers, versions, lists, told = ENDINGS[ending]
    left, exist = deque(answers), {"s1": A, "s2": B}
    handler = kmock.KubernetesScaffold()

    def listed() -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "11"}, "items": [*exist.values()]}

    def watched() -> Any:
        exist.pop("s2", None)
        answer = left.popleft() if left else (event("ADDED", C, 21), silence)
        # with its status always, for kmock gives an answer without one that of the last
        if isinstance(answer, int):
            return kmock.Response(status=answer)
        return kmock.Response(status=200, payload=answer)

    handler[kmock.action.LIST] << listed
    handler[kmock.action.WATCH] << watched
    async with handler, kmock.Server(handler) as server:
        quick = access(str(server.url).rstrip("/"), watch_timeout_s=1, slack_s=0.2)
        source = slices.Slices(slices.Settings("llm", "vllm"), quick, time.monotonic, lambda: 0.0)
        async with running(source) as members:
            await members.until(are("a", "c"))
        assert set(members.history[0]) > set(members.history[1])  # B was a member, and then was none
        assert [request.params["resourceVersion"] for request in handler[kmock.action.WATCH]] == versions
        assert len(handler[kmock.action.LIST]) == lists
        assert set(source.state.faults) == ({told} if told else set())
