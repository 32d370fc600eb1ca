"""Health: what kvring says of itself over gRPC, and what it learns of the endpoints by asking them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc import choice as choices
from extproc import config, metrics, pool, prompt, router, server
from extproc.endpoints import fleet, static
from tests import ext_proc_client
from tests.ext_proc_client import Mode, header_set, headers_removed, steered
from tests.functional.conftest import PATH, WAIT_S, FakeEndpoint, Launch, chat, eventually

MakeEndpoint = Callable[..., FakeEndpoint]
STATUS = health_pb2.HealthCheckResponse
READY_NAMES = ["readiness", "envoy.service.ext_proc.v3.ExternalProcessor", ""]


# ---- kvring's own ----


@pytest.fixture
async def own() -> AsyncIterator[tuple[server.HealthServer, health_pb2_grpc.HealthStub]]:
    served = server.HealthServer("127.0.0.1:0")
    await served.start()
    async with grpc.aio.insecure_channel(served.address) as channel:
        yield served, health_pb2_grpc.HealthStub(channel)
    await served.stop()


def ask(name: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=name)


@pytest.mark.parametrize("name", READY_NAMES)
async def test_readiness_follows_by_check_and_by_watch(
    own: tuple[server.HealthServer, health_pb2_grpc.HealthStub], name: str
) -> None:
    served, stub = own
    watch = stub.Watch(ask(name))
    for ready, status in ((False, STATUS.NOT_SERVING), (True, STATUS.SERVING), (False, STATUS.NOT_SERVING)):
        await served.set_ready(ready=ready)
        async with asyncio.timeout(WAIT_S):
            if not ready or status == STATUS.SERVING:
                assert (await watch.read()).status == status
        assert (await stub.Check(ask(name))).status == status
        assert served.ready is ready
    watch.cancel()


async def test_liveness_serves_ready_or_not(
    own: tuple[server.HealthServer, health_pb2_grpc.HealthStub],
) -> None:
    served, stub = own
    for ready in (False, True, False):
        await served.set_ready(ready=ready)
        assert (await stub.Check(ask("liveness"))).status == STATUS.SERVING


async def test_an_unknown_name_is_not_found_by_check_and_unknown_by_watch(
    own: tuple[server.HealthServer, health_pb2_grpc.HealthStub],
) -> None:
    _, stub = own
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(ask("nobody"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(ask("nobody"))
    async with asyncio.timeout(WAIT_S):
        assert (await watch.read()).status == STATUS.SERVICE_UNKNOWN
    watch.cancel()


# ---- the endpoints' ----


@dataclass
class Probing:
    """A fleet of some endpoints at work, and the router it tells."""

    router: router.Router
    metrics: metrics.Metrics
    fleet: fleet.Fleet
    published: list[pool.Pool] = field(default_factory=list)
    bad_then: list[float] = field(default_factory=list)  # bad probes counted when each was published
    good_then: list[float] = field(default_factory=list)

    def ready(self) -> set[str]:
        return {endpoint.id for endpoint in self.router.pool.ready}

    def probes(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("kvring_health_probes_total", {"result": result}) or 0

    async def becomes(self, *names: str) -> None:
        await eventually(lambda: self.ready() == set(names))


class Telling(router.Router):
    """A router that tells what it is told."""

    told: Callable[[pool.Pool], None]

    def publish(self, pool: pool.Pool) -> None:
        super().publish(pool)
        self.told(pool)


@contextlib.asynccontextmanager
async def probing(settings: config.Health, **endpoints: FakeEndpoint) -> AsyncIterator[Probing]:
    listed = [config.Endpoint(name=name, address=one.address) for name, one in endpoints.items()]
    group = config.Pool(endpoints=listed, health=settings, signals=config.Signals(interval_s=0))
    chooser = Telling(config.static_pool(group), config.router_settings(group))
    counted = metrics.Metrics(chooser, time.monotonic, 0.0)
    members = static.Static(config.static_members(group), time.monotonic)
    made = Probing(
        chooser,
        counted,
        fleet.Fleet(group, chooser, members, counted, time.monotonic, lambda: 0.5),
    )

    def told(new: pool.Pool) -> None:
        made.published.append(new)
        made.bad_then.append(made.probes("bad"))
        made.good_then.append(made.probes("good"))

    chooser.told = told
    running = asyncio.create_task(made.fleet.run())
    try:
        async with asyncio.timeout(100):
            yield made
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def settings(**changed: float) -> config.Health:
    return config.Health(**{"interval_s": 0.05, "timeout_s": 10.0, **changed})  # type: ignore[arg-type]


async def test_an_endpoint_that_refuses_is_out_at_its_first_probe(endpoint: MakeEndpoint) -> None:
    async with probing(settings(interval_s=60, failures=5), dead=endpoint()) as found:
        await found.fleet.settled.wait()
        assert found.ready() == set()
        assert (found.probes("bad"), found.probes("good")) == (1, 0)
        assert found.router.pool.generation == 2


async def test_an_endpoint_that_dies_is_out_at_the_next_probe(endpoint: MakeEndpoint) -> None:
    """M07."""
    one = await endpoint().listen()
    async with probing(settings(failures=5), one=one) as found:
        await one.probed(3)
        assert found.ready() == {"one"}
        assert found.published == [], "nothing changed, nothing published"
        await one.die()
        await found.becomes()
        assert found.bad_then == [1]


async def test_an_endpoint_that_resets_connections_is_out_at_the_next_probe(endpoint: MakeEndpoint) -> None:
    one = await endpoint(resets=True).listen()
    async with probing(settings(interval_s=60, failures=5), one=one) as found:
        await found.fleet.settled.wait()
        assert found.ready() == set()


@pytest.mark.parametrize("status", [500, 503, 404, 302, 429])
async def test_bad_answers_exclude_after_as_many_as_configured(endpoint: MakeEndpoint, status: int) -> None:
    one = await endpoint(status=status).listen()
    async with probing(settings(failures=3), one=one) as found:
        await found.becomes()
        assert found.bad_then == [3]


async def test_a_good_answer_between_bad_ones_starts_the_count_again(endpoint: MakeEndpoint) -> None:
    one = await endpoint(status=500).listen()
    async with probing(settings(failures=3), one=one) as found:
        await eventually(lambda: found.probes("bad") == 2)
        one.status = 204
        await eventually(lambda: found.probes("good") > 0)
        one.status = 500
        await found.becomes()
        assert found.bad_then == [5]


async def test_an_endpoint_that_never_answers_is_out_after_its_timeouts(endpoint: MakeEndpoint) -> None:
    one = await endpoint(silent=True).listen()
    started_s = time.monotonic()
    async with probing(settings(timeout_s=0.2, failures=2), one=one) as found:
        await found.becomes()
        took_s = time.monotonic() - started_s
        assert found.bad_then == [2]
        assert took_s >= 0.4
        assert one.running_max == 1


@pytest.mark.parametrize("successes", [1, 3])
async def test_an_endpoint_is_back_after_its_good_answers(endpoint: MakeEndpoint, successes: int) -> None:
    one = await endpoint(status=500).listen()
    async with probing(settings(failures=1, successes=successes), one=one) as found:
        await found.becomes()
        assert found.probes("good") == 0
        one.status = 200
        await found.becomes("one")
        assert found.good_then[-1] == successes


async def test_an_endpoint_that_starts_to_listen_is_back_at_the_next_probe(endpoint: MakeEndpoint) -> None:
    """M06."""
    one = endpoint()
    async with probing(settings(), one=one) as found:
        await found.becomes()
        await one.listen()
        await found.becomes("one")
        assert found.good_then[-1] == 1
        assert [len(one.ready) for one in found.published] == [0, 1]
        assert [one.generation for one in found.published] == [2, 3]


async def test_one_slow_endpoint_delays_no_probe_of_another(endpoint: MakeEndpoint) -> None:
    slow, quick = await endpoint(silent=True).listen(), await endpoint().listen()
    async with probing(settings(timeout_s=60), slow=slow, quick=quick) as found:
        await quick.probed(6)
        assert (slow.probes, slow.running_max) == (1, 1), "and it is not asked again meanwhile"
        assert found.ready() == {"slow", "quick"}, "slow is not dead before its timeout"
        assert not found.fleet.settled.is_set()


async def test_probes_keep_their_interval_and_never_overlap(endpoint: MakeEndpoint) -> None:
    many = [await endpoint().listen() for _ in range(10)]
    started_s = time.monotonic()  # before the first probe, however long it takes to get there
    async with probing(settings(interval_s=0.1), **{f"e{n}": one for n, one in enumerate(many)}):
        await asyncio.gather(*(one.probed(4) for one in many))
    elapsed_s = time.monotonic() - started_s  # and behind the last
    shortest_s = 0.1 * 0.87  # with all the jitter there is; one after a late probe is not late itself
    assert elapsed_s > 3 * shortest_s
    assert max(one.running_max for one in many) == 1
    assert max(one.probes for one in many) <= elapsed_s / shortest_s + 1


async def test_no_choice_ever_names_an_endpoint_that_is_not_ready(endpoint: MakeEndpoint) -> None:
    many = {f"e{n}": await endpoint().listen() for n in range(5)}
    async with probing(settings(failures=1), **many) as found:

        def named() -> set[str]:
            picked = set()
            for number in range(60):
                read = prompt.read(
                    "/v1/chat/completions",
                    chat(f"{number} " * 200),
                    settings=prompt.Settings(bytes_max=10**6),
                    whole=True,
                )
                answer = found.router.choose(read, time.monotonic(), 0.5)
                assert isinstance(answer, choices.Decision)
                picked.add(str(answer.choice.endpoint.id))
                answer.lease.release()
            return picked

        assert named() == set(many)
        await many["e1"].die()
        many["e3"].status = 503
        await found.becomes("e0", "e2", "e4")
        assert named() == {"e0", "e2", "e4"}
        many["e3"].status = 200
        await found.becomes("e0", "e2", "e3", "e4")
        assert named() == {"e0", "e2", "e3", "e4"}


async def test_with_all_endpoints_dead_the_sidecar_has_no_opinion_until_one_answers(
    sidecar: Launch, endpoint: MakeEndpoint
) -> None:
    first, second = endpoint(), endpoint()
    running = await sidecar(
        {"first": first.address, "second": second.address},
        group={"health": {"interval_s": 0.2, "timeout_s": 2, "failures": 10}},  # refusals count at once
    )

    async with (
        ext_proc_client.connect(running.grpc) as client,
        grpc.aio.insecure_channel(running.health) as channel,
    ):

        async def pick() -> str | None:
            stream = client.open(request_body_mode=Mode.BUFFERED)
            await stream.request_headers(PATH)
            await stream.receive()
            await stream.request_body(chat("x" * 1000))
            reply = await stream.receive()
            assert steered(reply) == header_set(reply)
            assert (headers_removed(reply) == []) == (steered(reply) is not None)
            await stream.half_close()
            assert await stream.rest() == []
            return steered(reply)

        assert await pick() is None
        _, text = await running.get("/metrics")
        assert 'kvring_no_opinion_total{reason="no_endpoint"} 1.0' in text
        assert 'kvring_endpoint_ready{endpoint="first",pool="default"} 0.0' in text
        stub = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(ask("readiness"))).status == STATUS.SERVING, "kvring itself is well"

        async def only(*names: str) -> bool:
            return await running.ready_names() == set(names)

        await first.listen()
        await eventually(lambda: only("first"))
        assert {await pick() for _ in range(5)} == {first.address}
        await second.listen()
        await eventually(lambda: only("first", "second"))
        await first.die()
        await eventually(lambda: only("second"))
        assert {await pick() for _ in range(5)} == {second.address}
    assert await running.open_leases() == 0
    running.signal()
    assert await running.exited() == 0
    changes = [(e["endpoint"], e["event"]) for e in running.events() if "endpoint" in e]
    assert ("first", "endpoint is ready") in changes
    assert changes[-1] == ("first", "endpoint is not ready")
