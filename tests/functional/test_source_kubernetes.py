"""EndpointSlices and InferencePools against an API server that fails in every way known.

The law of every test: when the fault is over, the members are exactly those that exist; while it lasts, they
are those last known.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import random
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.endpoints import api_server, inference_pool, slices
from extproc.endpoints.source import MEMBERS_MAX, Problem
from tests.functional.conftest import eventually
from tests.functional.kube_double import ApiServer, Fault
from tests.functional.membership import Membership, running

SLICES = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"
PODS = "/api/v1/namespaces/llm/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools"
MARKER = "a-mark-that-must-not-be-seen"


def slice_of(
    name: str,
    pods: dict[str, str],
    service: str = "vllm",
    family: str = "IPv4",
    conditions: dict[str, bool] | None = None,
    port: int = 8000,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "llm",
            "labels": {"kubernetes.io/service-name": service},
            "annotations": annotations or {},
        },
        "addressType": family,
        "endpoints": [
            {
                "addresses": [address],
                "conditions": conditions or {},
                "targetRef": {"kind": "Pod", "name": pod, "namespace": "llm"},
            }
            for pod, address in pods.items()
        ]
        or None,
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
    }


def access(url: str, **changes: Any) -> api_server.Access:
    quick = api_server.Access(
        url,
        watch_timeout_s=30,
        request_timeout_s=10,
        retry_min_s=0.01,
        retry_max_s=0.05,
        publish_interval_s=0.001,
    )
    return dataclasses.replace(quick, **changes)


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[ApiServer, str]]:
    server = ApiServer(**options)
    url = await server.start()
    try:
        yield server, url
    finally:
        await server.stop()


def watching(url: str, port: str | None = None, **changes: Any) -> slices.Slices:
    settings = slices.Settings("llm", "vllm", port)
    return slices.Slices(settings, access(url, **changes), time.monotonic, lambda: 0.0)


def are(*names: str) -> Callable[[Membership], bool]:
    return lambda members: set(members.addresses) == {f"{name}:8000" for name in names}


# ---- the good days ----


async def test_all_slices_of_the_service_are_one_membership_that_follows_every_change():
    async with serving() as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1", "b": "10.0.0.2"}))
        server.put(SLICES, slice_of("s2", {"c": "10.0.0.3"}))
        server.put(SLICES, slice_of("other", {"x": "10.0.0.9"}, service="other"))
        async with running(watching(url)) as members:
            await members.until(are("a", "b", "c"))
            assert members.addresses["a:8000"] == "10.0.0.1:8000"
            await server.until_watched()
            server.put(SLICES, slice_of("s2", {"c": "10.0.0.3", "d": "10.0.0.4"}))
            await members.until(are("a", "b", "c", "d"))
            server.delete(SLICES, "s1")
            await members.until(are("c", "d"))
        assert len(server.lists) == 1
        assert server.watched[0].query["allowWatchBookmarks"] == "true"
        assert server.lists[0].query["labelSelector"] == "kubernetes.io/service-name=vllm"


async def test_a_list_in_pages_is_one_membership():
    async with serving() as (server, url):
        for number in range(7):
            server.put(SLICES, slice_of(f"s{number}", {f"p{number}": f"10.0.0.{number + 1}"}))
        async with running(watching(url, page_objects=3)) as members:
            await members.until(are(*(f"p{number}" for number in range(7))))
            assert len(members.history) == 1  # never half of it
        assert len(server.lists) == 3


async def test_a_terminating_pod_stays_a_member_that_is_not_chosen():
    """M03."""
    async with serving() as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
        server.put(SLICES, slice_of("s2", {"b": "10.0.0.2"}))
        async with running(watching(url)) as members:
            await members.until(are("a", "b"))
            terminating = {"ready": False, "serving": True, "terminating": True}
            server.put(SLICES, slice_of("s2", {"b": "10.0.0.2"}, conditions=terminating))
            await members.until(lambda now: now.ready == {"a:8000"})
            assert set(members.addresses) == {"a:8000", "b:8000"}


async def test_a_change_that_alters_no_member_is_not_published():
    async with serving() as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
        async with running(watching(url)) as members:
            await members.until(are("a"))
            await server.until_watched()
            server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}, annotations={"touched": "1"}))
            server.put(SLICES, slice_of("s2", {"b": "10.0.0.2"}))
            await members.until(are("a", "b"))
            assert len(members.history) == 2


async def test_a_burst_of_changes_is_published_as_few():
    async with serving() as (server, url):
        server.put(SLICES, slice_of("s", {"a": "10.0.0.1"}))
        async with running(watching(url, publish_interval_s=0.2)) as members:
            await members.until(are("a"))
            await server.until_watched()
            before, since_s = len(members.history), time.monotonic()
            for number in range(100):
                server.put(SLICES, slice_of("s", {f"p{number}": "10.0.0.1"}))
                await asyncio.sleep(0.001)
            await members.until(are("p99"))
            took_s = time.monotonic() - since_s  # a busy machine spreads the burst
            assert len(members.history) - before <= took_s / 0.2 + 2


async def test_nothing_is_published_before_the_first_list():
    async with serving() as (server, url):
        server.on_list.extend([Fault(500), Fault(reset=True), Fault(503)])
        source = watching(url)
        async with running(source) as members:
            assert source.contact_age_s(time.monotonic()) is None
            await members.until(lambda now: now.addresses == {})  # the Service has no slice: that is a truth
            assert len(members.history) == 1
            assert len(server.lists) == 4
            assert source.state.problem is Problem.NOT_FOUND
            server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
            await members.until(are("a"))
            assert source.state.problem is None
        assert source.state.faults[Problem.SERVER_ERROR] == 2


# ---- the bad days: each ends with exactly what exists ----


async def on_clean_close_with_a_delete(server: ApiServer) -> None:
    server.watches[0].close()
    server.delete(SLICES, "s2")


async def on_reset(server: ApiServer) -> None:
    server.watches[0].reset()
    server.delete(SLICES, "s2")


async def on_delete_while_away_and_410(server: ApiServer) -> None:
    server.on_watch.append(Fault(503))
    server.watches[0].reset()
    server.delete(SLICES, "s2")
    server.compact()


async def on_clean_close_and_410(server: ApiServer) -> None:
    server.elsewhere()
    server.delete(SLICES, "s2")
    server.elsewhere()
    server.compact()
    server.watches[0].close()
    server.watches[0].starved = True


async def on_410_as_event_in_an_open_watch(server: ApiServer) -> None:
    server.watches[0].starved = True
    server.delete(SLICES, "s2")
    server.watches[0].starved = False
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    await server.watches[0].send({"type": "ERROR", "object": gone})


async def on_another_error_event(server: ApiServer) -> None:
    server.watches[0].starved = True
    server.delete(SLICES, "s2")
    server.watches[0].starved = False
    await server.watches[0].send({"type": "ERROR", "object": {"kind": "Status", "code": 500}})


async def on_server_down(server: ApiServer) -> None:
    await server.stop()
    server.delete(SLICES, "s2")
    server.compact()
    await asyncio.sleep(0.6)
    await server.start()


async def on_half_open(server: ApiServer) -> None:
    server.watches[0].starved = True  # and the kernel still acknowledges
    server.delete(SLICES, "s2")


async def on_end_within_an_event(server: ApiServer) -> None:
    watch = server.watches[0]
    await watch.raw(b'{"type":"ADDED","object":{"metadata":{"name":"half",')
    watch.starved = True
    server.delete(SLICES, "s2")
    watch.close()


async def on_garbage(server: ApiServer) -> None:
    await server.watches[0].raw(b"<html>proxy error</html>\n")
    server.delete(SLICES, "s2")


async def on_deep_nesting(server: ApiServer) -> None:
    await server.watches[0].raw(b'{"type":"ADDED","object":' + b"[" * 100_000 + b"\n")
    server.delete(SLICES, "s2")


async def on_unknown_event(server: ApiServer) -> None:
    item = slice_of("s9", {"z": "10.0.0.9"})
    await server.watches[0].send({"type": "RENAMED", "object": item})
    server.delete(SLICES, "s2")


async def on_endless_line(server: ApiServer) -> None:
    await server.watches[0].raw(b'{"type":"' + b"x" * 300_000)
    server.delete(SLICES, "s2")


async def on_errors_when_listing(server: ApiServer) -> None:
    server.on_list.extend([Fault(500), Fault(503), Fault(429), Fault(reset=True), Fault(200, body=b"{")])
    server.watches[0].reset()
    server.delete(SLICES, "s2")


async def on_errors_when_watching(server: ApiServer) -> None:
    server.on_watch.extend([Fault(500), Fault(504), Fault(reset=True), Fault(404), Fault(302)])
    server.watches[0].reset()
    await eventually(lambda: not server.on_watch)
    server.delete(SLICES, "s2")


async def on_slow_lists(server: ApiServer) -> None:
    server.on_list.extend([Fault(delay_s=0.6)])
    server.watches[0].reset()
    server.delete(SLICES, "s2")


async def on_forbidden(server: ApiServer) -> None:
    server.on_list.extend([Fault(403), Fault(401)])
    server.watches[0].reset()
    server.delete(SLICES, "s2")


async def on_watch_that_ends_at_once_again_and_again(server: ApiServer) -> None:
    for _ in range(5):
        closing = server.watches[0]
        closing.close()
        await eventually(lambda closing=closing: server.watches and server.watches[0] is not closing)
    server.delete(SLICES, "s2")


TOLD = {
    "on_reset": Problem.UNREACHABLE,
    "on_delete_while_away_and_410": Problem.UNREACHABLE,
    "on_clean_close_and_410": Problem.EXPIRED,
    "on_410_as_event_in_an_open_watch": Problem.EXPIRED,
    "on_another_error_event": Problem.SERVER_ERROR,
    "on_server_down": Problem.UNREACHABLE,
    "on_half_open": Problem.UNREACHABLE,
    "on_end_within_an_event": Problem.MALFORMED,
    "on_garbage": Problem.MALFORMED,
    "on_deep_nesting": Problem.MALFORMED,
    "on_unknown_event": Problem.MALFORMED,
    "on_endless_line": Problem.TOO_LARGE,
    "on_errors_when_listing": Problem.SERVER_ERROR,
    "on_errors_when_watching": Problem.NOT_FOUND,
    "on_slow_lists": Problem.UNREACHABLE,
    "on_forbidden": Problem.FORBIDDEN,
}


@pytest.mark.parametrize("gone_as_event", [False, True], ids=["410", "event410"])
@pytest.mark.parametrize(
    "fault",
    [value for name, value in sorted(globals().items()) if name.startswith("on_")],
    ids=lambda fault: fault.__name__,
)
async def test_after_a_fault_the_members_are_exactly_those_that_exist(fault, gone_as_event):
    async with serving(gone_as_event=gone_as_event) as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
        server.put(SLICES, slice_of("s2", {"b": "10.0.0.2"}))
        source = watching(
            url,
            watch_timeout_s=1,
            slack_s=0.2 if fault is on_half_open else 10,
            request_timeout_s=0.4 if fault is on_slow_lists else 10,
            line_bytes_max=256 * 1024,
        )
        async with running(source) as members:
            await members.until(are("a", "b"))
            await server.until_watched()
            await fault(server)
            await members.until(are("a"))
            server.put(SLICES, slice_of("s3", {"c": "10.0.0.3"}))
            await members.until(are("a", "c"))
            await eventually(lambda: source.state.problem is None)
            told = TOLD.get(fault.__name__)
            assert (told in source.state.faults) if told else not source.state.faults
            # Nothing was lost or made up on the way either.
            allowed = [{"a:8000", "b:8000"}, {"a:8000"}, {"a:8000", "c:8000"}]
            assert [set(map(str, (m.id for m in step))) for step in members.history] == allowed


async def test_while_the_server_is_down_the_members_stand_and_their_age_shows():
    """M05."""
    async with serving() as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
        source = watching(url)
        async with running(source) as members:
            await members.until(are("a"))
            await server.until_watched()
            await server.stop()
            await eventually(lambda: source.state.faults.get(Problem.UNREACHABLE, 0) >= 3)
            assert len(members.history) == 1
            assert source.state.problem is Problem.UNREACHABLE
            first_s = source.contact_age_s(time.monotonic())
            assert first_s is not None
            assert source.contact_age_s(time.monotonic() + 60) >= first_s + 60
            await server.start()
            await eventually(lambda: source.state.problem is None)
            assert source.contact_age_s(time.monotonic()) < 5
            assert source.state.resyncs >= 2


async def test_a_server_that_closes_every_watch_at_once_is_not_asked_without_pause():
    async with serving() as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
        server.on_watch.extend([Fault(200, body=b"")] * 1000)
        source = watching(url, retry_min_s=0.05, retry_max_s=0.2)
        async with running(source) as members:
            await members.until(are("a"))
            before, since_s = len(server.watched), time.monotonic()
            await eventually(lambda: len(server.watched) >= before + 4)
            assert len(server.watched) - before <= (time.monotonic() - since_s) / 0.05 + 1
            assert len(server.lists) == 1
            assert source.state.problem is None


async def test_a_bookmark_moves_the_version_so_that_a_compaction_costs_no_list():
    async with serving() as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
        async with running(watching(url)) as members:
            await members.until(are("a"))
            await server.until_watched()
            for _ in range(10):
                server.elsewhere()
            server.compact()
            await server.bookmark()
            server.watches[0].close()
            await eventually(lambda: len(server.watched) == 2)
            server.put(SLICES, slice_of("s2", {"b": "10.0.0.2"}))
            await members.until(are("a", "b"))
            assert len(server.lists) == 1


async def test_bookmarks_keep_the_age_low_where_nothing_changes():
    async with serving() as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
        source = watching(url)
        async with running(source) as members:
            await members.until(are("a"))
            await server.until_watched()
            before_s = source.state.contact_s
            await server.bookmark()
            await eventually(lambda: source.state.contact_s > before_s)


@pytest.mark.parametrize("chunk_bytes", [7, 1000, 70_000])
async def test_events_of_any_length_cut_anywhere_are_read_whole(chunk_bytes):
    async with serving() as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
        async with running(watching(url)) as members:
            await members.until(are("a"))
            await server.until_watched()
            server.watches[0].chunk_bytes = chunk_bytes
            long = {"note": "ünïcödé ☃ " * (300 if chunk_bytes == 7 else 20_000)}
            server.put(SLICES, slice_of("s2", {"b": "10.0.0.2"}, annotations=long))
            server.put(SLICES, slice_of("s3", {"c": "10.0.0.3"}))
            await members.until(are("a", "b", "c"))
            assert len(server.lists) == 1


async def test_many_events_in_one_chunk_are_all_applied():
    async with serving() as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
        async with running(watching(url)) as members:
            await members.until(are("a"))
            await server.until_watched()
            lines = []
            for number in range(2, 12):
                item = slice_of(f"s{number}", {f"p{number}": f"10.0.0.{number}"})
                item["metadata"]["resourceVersion"] = str(1000 + number)
                lines.append(json.dumps({"type": "ADDED", "object": item}))
            await server.watches[0].raw("\n".join([*lines, "", ""]).encode())
            await members.until(are("a", *(f"p{number}" for number in range(2, 12))))


async def test_a_list_whose_next_page_has_expired_begins_anew():
    async with serving() as (server, url):
        for number in range(4):
            server.put(SLICES, slice_of(f"s{number}", {f"p{number}": f"10.0.0.{number + 1}"}))
        server.on_list.extend([Fault(), Fault(410)])
        async with running(watching(url, page_objects=2)) as members:
            await members.until(are("p0", "p1", "p2", "p3"))
            assert len(members.history) == 1
        assert len(server.lists) == 4


async def test_the_token_is_read_again_when_it_is_old_and_when_it_is_refused(tmp_path):
    file = tmp_path / "token"
    file.write_text("first\n")
    async with serving(tokens={"first"}) as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
        source = watching(url, token_file=file, token_age_max_s=3600)
        async with running(source) as members:
            await members.until(are("a"))
            await server.until_watched()
            server.tokens = {"second"}
            server.watches[0].reset()
            await eventually(lambda: source.state.faults.get(Problem.FORBIDDEN, 0) >= 2)
            assert are("a")(members)
            file.write_text("second")
            server.put(SLICES, slice_of("s2", {"b": "10.0.0.2"}))
            await members.until(are("a", "b"))  # refused, so not kept for an hour
        source = watching(url, token_file=file, token_age_max_s=0)
        async with running(source) as members:
            await members.until(are("a", "b"))
            await server.until_watched()
            file.write_text("third")
            server.tokens = {"second", "third"}
            server.watches[0].close()
            await eventually(lambda: server.watched[-1].token == "third")  # noqa: S105


async def test_without_a_token_file_the_members_stand_and_the_reason_shows(tmp_path):
    async with serving(tokens={"t"}) as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
        source = watching(url, token_file=tmp_path / "token")
        async with running(source) as members:
            await eventually(lambda: source.state.problem is Problem.FORBIDDEN)
            assert server.lists == []
            (tmp_path / "token").write_bytes(b"\xff\xfe")
            await eventually(lambda: "UnicodeDecodeError" in source.state.detail)
            (tmp_path / "token").write_text("t")
            await members.until(are("a"))


async def test_a_token_is_in_no_log_and_in_no_state(tmp_path, caplog):
    file = tmp_path / "token"
    file.write_text(MARKER)
    caplog.set_level(logging.DEBUG)
    async with serving(tokens=set()) as (server, url):
        server.on_list.extend([Fault(reset=True), Fault(500)])
        source = watching(url, token_file=file)
        async with running(source):
            await eventually(lambda: source.state.faults.get(Problem.FORBIDDEN, 0) >= 2)
        assert server.lists[0].token == MARKER
        assert MARKER not in repr(source.state)
    assert caplog.records
    assert MARKER not in "".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)


async def test_answers_over_a_limit_leave_the_members_as_they_are():
    async with serving() as (server, url):
        server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
        source = watching(url, page_bytes_max=20_000, objects_max=3)
        async with running(source) as members:
            await members.until(are("a"))
            await server.until_watched()
            for number in range(4):
                server.put(SLICES, slice_of(f"t{number}", {f"t{number}": "10.0.1.1"}))
            await eventually(lambda: source.state.problem is Problem.TOO_MANY)
            for number in range(4):
                server.delete(SLICES, f"t{number}")
            await members.until(are("a"))
            await eventually(lambda: source.state.problem is None)
            server.put(SLICES, slice_of("big", {"b": "10.0.0.2"}, annotations={"note": "x" * 30_000}))
            await members.until(are("a", "b"))
            await eventually(lambda: bool(server.watches))
            server.watches[0].reset()
            await eventually(lambda: source.state.problem is Problem.TOO_LARGE)
            assert are("a", "b")(members)


async def test_more_members_than_allowed_are_cut_by_name_and_counted():
    async with serving() as (server, url):
        for number in range(5):
            pods = {f"p{number}-{pod:03}": f"10.{number}.{pod // 250}.{pod % 250}" for pod in range(1000)}
            server.put(SLICES, slice_of(f"s{number}", pods))
        source = watching(url)
        async with running(source) as members:
            await members.until(lambda now: len(now.addresses) == MEMBERS_MAX)
            assert "p0-000:8000" in members.addresses
            assert source.state.problem is Problem.TOO_MANY
            server.delete(SLICES, "s4")
            await members.until(lambda now: len(now.addresses) == 4000)
            assert source.state.problem is None


async def test_any_order_of_changes_and_faults_ends_with_what_exists():
    """M04: adds, deletes and lost events race; what counts is where it ends."""
    async with serving() as (server, url):
        rng = random.Random(4)
        source = watching(url, watch_timeout_s=1, slack_s=0.2, request_timeout_s=0.3, page_objects=4)
        server.put(SLICES, slice_of("s0", {"p0": "10.0.0.1"}))
        async with running(source) as members:
            await members.until(are("p0"))
            for step in range(150):
                server.gone_as_event = rng.random() < 0.5
                name = f"s{rng.randrange(12)}"
                match rng.randrange(8):
                    case 0 | 1 | 2:
                        server.put(SLICES, slice_of(name, {f"p{step}": f"10.0.1.{step}"}))
                    case 3 | 4:
                        if name in server.names(SLICES):
                            server.delete(SLICES, name)
                    case 5:
                        server.compact()
                    case 6:
                        for watch in list(server.watches):
                            rng.choice([watch.reset, watch.close])()
                    case _:
                        server.on_list.append(rng.choice([Fault(500), Fault(410), Fault(reset=True)]))
                await asyncio.sleep(rng.choice([0, 0, 0.002, 0.02]))
            server.on_list.clear()
            server.put(SLICES, slice_of("last", {"last": "10.0.2.1"}))
            exist = {
                f"{endpoint['targetRef']['name']}:8000"
                for item in server._objects[SLICES].values()
                for endpoint in item["endpoints"]
            }
            await members.until(lambda now: set(now.addresses) == exist)


async def test_a_server_behind_tls_is_trusted_by_its_ca_alone(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += [
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=kube-apiserver",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = ApiServer()
    url = await server.start(context)
    server.put(SLICES, slice_of("s1", {"a": "10.0.0.1"}))
    try:
        stranger = watching(url)
        async with running(stranger) as members:
            await eventually(lambda: stranger.state.problem is Problem.UNREACHABLE)
            assert "Certificate" in stranger.state.detail
        async with running(watching(url, ca_file=tmp_path / "none.crt")) as members:
            await asyncio.sleep(0)
            assert not members.history
        async with running(watching(url, ca_file=certificate)) as members:
            await members.until(are("a"))
            await server.until_watched()
            server.delete(SLICES, "s1")
            await members.until(are())
    finally:
        await server.stop()
        await asyncio.sleep(0)


# ---- InferencePool ----


def pool_of(labels: dict[str, str], *ports: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "vllm", "namespace": "llm"},
        "spec": {
            "selector": {"matchLabels": labels},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "kvring", "port": {"number": 9002}, "failureMode": "FailOpen"},
        },
        "status": {"parents": []},
    }


def pod_of(name: str, ip: str, app: str = "vllm", *, ready: bool = True, **changes: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    ips = {"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}
    return {
        "metadata": {"name": name, "namespace": "llm", "labels": {"app": app, "stage": "prod"}, **changes},
        "spec": {"containers": [{"name": "vllm"}]},
        "status": {"phase": "Running", "conditions": [condition], **ips},
    }


def selecting(url: str) -> inference_pool.InferencePool:
    settings = inference_pool.Settings("llm", "vllm")
    return inference_pool.InferencePool(settings, access(url), time.monotonic, lambda: 0.0)


async def test_every_target_port_of_every_selected_pod_is_a_member():
    async with serving() as (server, url):
        server.put(POOLS, pool_of({"app": "vllm", "stage": "prod"}, 8000, 8001))
        server.put(POOLS, pool_of({"app": "x"}, 1) | {"metadata": {"name": "other"}})
        server.put(PODS, pod_of("a", "10.0.0.1"))
        server.put(PODS, pod_of("b", "10.0.0.2", ready=False))
        server.put(PODS, pod_of("x", "10.0.0.9", "x"))
        server.put(PODS, pod_of("pending", ""))
        async with running(selecting(url)) as members:
            await members.until(lambda now: len(now.addresses) == 4)
            assert members.addresses == {
                "a:8000": "10.0.0.1:8000",
                "a:8001": "10.0.0.1:8001",
                "b:8000": "10.0.0.2:8000",
                "b:8001": "10.0.0.2:8001",
            }
            assert members.ready == {"a:8000", "a:8001"}
            await server.until_watched(2)
            server.put(PODS, pod_of("b", "10.0.0.2"))
            await members.until(lambda now: len(now.ready) == 4)
            server.put(PODS, pod_of("a", "10.0.0.1", deletionTimestamp="2026-01-01T00:00:00Z"))
            await members.until(lambda now: now.ready == {"b:8000", "b:8001"})
            server.delete(PODS, "a")
            await members.until(lambda now: len(now.addresses) == 2)
        assert server.lists[1].query["labelSelector"] == "app=vllm,stage=prod"
        assert server.lists[0].query["fieldSelector"] == "metadata.name=vllm"


async def test_a_new_selector_and_new_ports_replace_the_old_ones_without_a_gap():
    async with serving() as (server, url):
        server.put(POOLS, pool_of({"app": "blue"}, 8000))
        server.put(PODS, pod_of("b", "10.0.0.1", "blue"))
        server.put(PODS, pod_of("g", "10.0.0.2", "green"))
        async with running(selecting(url)) as members:
            await members.until(are("b"))
            await server.until_watched(2)
            server.put(POOLS, pool_of({"app": "green"}, 8000))
            await members.until(are("g"))
            await server.until_watched(2)  # the old pods are watched no more
            server.put(POOLS, pool_of({"app": "green"}, 9000))
            await members.until(lambda now: set(now.addresses) == {"g:9000"})
            server.put(PODS, pod_of("b2", "10.0.0.3", "blue"))
            server.put(PODS, pod_of("g2", "10.0.0.4", "green"))
            await members.until(lambda now: set(now.addresses) == {"g:9000", "g2:9000"})
            assert all(members.history)


async def test_a_pool_that_is_deleted_has_no_members_and_comes_back():
    async with serving() as (server, url):
        server.put(POOLS, pool_of({"app": "vllm"}, 8000))
        server.put(PODS, pod_of("a", "10.0.0.1"))
        source = selecting(url)
        async with running(source) as members:
            await members.until(are("a"))
            await server.until_watched(2)
            server.delete(POOLS, "vllm")
            await members.until(are())
            assert source.state.problem is Problem.NOT_FOUND
            await server.until_watched(1)
            server.put(POOLS, pool_of({"app": "vllm"}, 8000))
            await members.until(are("a"))
            await eventually(lambda: source.state.problem is None)


async def test_a_pool_that_selects_nothing_does_not_select_everything():
    async with serving() as (server, url):
        server.put(POOLS, pool_of({"app": "vllm"}, 8000))
        server.put(PODS, pod_of("a", "10.0.0.1"))
        server.put(PODS, pod_of("x", "10.0.0.2", "x"))
        source = selecting(url)
        async with running(source) as members:
            await members.until(are("a"))
            await server.until_watched(2)
            server.put(POOLS, pool_of({}, 8000))
            await eventually(lambda: source.state.problem is Problem.MALFORMED)
            assert are("a")(members)
            server.put(POOLS, pool_of({"app": "x"}, 8000))
            await members.until(are("x"))


async def test_when_either_watch_fails_the_members_stand_and_the_older_contact_shows():
    async with serving() as (server, url):
        server.put(POOLS, pool_of({"app": "vllm"}, 8000))
        server.put(PODS, pod_of("a", "10.0.0.1"))
        source = selecting(url)
        async with running(source) as members:
            await members.until(are("a"))
            await server.until_watched(2)
            server.on_list.extend([Fault(500)] * 5)
            next(watch for watch in server.watches if watch.request.path == PODS).reset()
            await eventually(lambda: source.state.problem is Problem.SERVER_ERROR)
            assert are("a")(members)
            server.delete(PODS, "a")
            server.put(PODS, pod_of("b", "10.0.0.2"))
            await members.until(are("b"))
            await eventually(lambda: source.state.problem is None)
            await server.stop()
            await eventually(lambda: source.state.faults.get(Problem.UNREACHABLE, 0) >= 4)
            assert are("b")(members)


async def test_a_missing_crd_is_told_and_waited_for():
    async with serving() as (server, url):
        server.on_list.extend([Fault(404)] * 3)
        source = selecting(url)
        async with running(source) as members:
            await eventually(lambda: source.state.faults.get(Problem.NOT_FOUND, 0) >= 3)
            server.put(POOLS, pool_of({"app": "vllm"}, 8000))
            server.put(PODS, pod_of("a", "10.0.0.1"))
            await members.until(are("a"))


# ---- access ----


async def test_the_documented_roles_allow_exactly_what_is_asked():
    page = (Path(__file__).parents[2] / "docs/endpoints.md").read_text()
    documents = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    roles = {item["metadata"]["name"]: item["rules"] for item in documents if item.get("kind") == "Role"}
    async with serving() as (server, url):
        server.put(POOLS, pool_of({"app": "vllm"}, 8000))
        for role, source in (("kvring-service", watching(url)), ("kvring-inference-pool", selecting(url))):
            server.lists.clear()
            async with running(source) as members:
                await members.until(lambda _: True)
            asked = set()
            for seen in server.lists:
                group = re.match(r"/apis?/(?:([^/]+)/)?v1/namespaces/llm/(\w+)$", seen.path)
                assert group, seen.path
                named = seen.query.get("fieldSelector", "").removeprefix("metadata.name=")
                asked.add((group[1] or "", group[2], named))
            allowed = {
                (rule["apiGroups"][0], rule["resources"][0], "".join(rule.get("resourceNames", [])))
                for rule in roles[role]
            }
            assert asked == allowed
            assert {verb for rule in roles[role] for verb in rule["verbs"]} == {"list", "watch"}


def test_in_a_cluster_everything_is_known_from_environment_and_mount(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("llm\n")
    found = api_server.in_cluster(
        {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path
    )
    assert found.server == "https://[fd00::1]:6443"
    assert (found.token_file, found.ca_file) == (tmp_path / "token", tmp_path / "ca.crt")
    assert api_server.namespace(tmp_path) == "llm"
    assert api_server.namespace(tmp_path / "none") is None
    with pytest.raises(ValueError, match="KUBERNETES_SERVICE_HOST"):
        api_server.in_cluster({}, tmp_path)
