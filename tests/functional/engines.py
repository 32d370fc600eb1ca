"""Engines: model servers as kvring sees them: health, metrics, models; all may be changed at work.

async with engines.running({"e0": engines.Engine()}) as running: ...
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from extproc import choice, config, metrics, pool, prompt, router
from extproc.endpoints import fleet as fleets
from extproc.endpoints import source
from tests import ports
from tests.functional.conftest import eventually

QUICK = config.Signals(interval_s=0.05, age_max_s=5.0, models_interval_s=0.05)
PROBES = config.Health(interval_s=0.05, timeout_s=10.0, failures=1)


@dataclass
class Engine:
    """A model server. `counters`: of vLLM, by name without prefix; `delay_s`: of its metrics."""

    health: int = 200
    metrics_status: int = 200
    models_status: int = 200
    models: list[str] = field(default_factory=lambda: ["base"])
    started_s: float = 1000.0
    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0
    kv_tokens: int | None = 100_000
    asleep: bool = False
    adapters: str = ""
    posts: dict[str, float] = field(default_factory=lambda: {"2xx": 0.0, "5xx": 0.0})
    counters: dict[str, float] = field(default_factory=dict)
    delay_s: float = 0.0
    scrapes: int = 0
    scraping: int = 0
    scraping_max: int = 0
    address: str = field(default_factory=lambda: f"127.0.0.1:{ports.own()}")
    _runner: web.AppRunner | None = None

    async def start(self) -> Engine:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0, handler_cancellation=True)
        await self._runner.setup()
        host, _, port = self.address.rpartition(":")
        await web.TCPSite(self._runner, host, int(port), reuse_address=True).start()
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await ports.leave(self._runner)
            self._runner = None

    async def restart(self) -> None:
        """Another process under the address, within one breath."""
        await self.stop()
        self.started_s += 100.0
        self.counters = dict.fromkeys(self.counters, 0.0)
        self.posts = dict.fromkeys(self.posts, 0.0)
        await self.start()

    def exposition(self) -> str:
        lines = [
            f"process_start_time_seconds {self.started_s}",
            f"vllm:num_requests_running {self.running}",
            f"vllm:num_requests_waiting {self.waiting}",
            f"vllm:kv_cache_usage_perc {self.kv_usage}",
            f'vllm:engine_sleep_state{{sleep_state="awake"}} {float(not self.asleep)}',
        ]
        if self.adapters:
            lines.append(f'vllm:lora_requests_info{{running_lora_adapters="{self.adapters}"}} 1.7e9')
        if self.kv_tokens is not None:
            lines.append(f'vllm:cache_config_info{{kv_cache_size_tokens="{self.kv_tokens}"}} 1.0')
        lines += [
            f'http_requests_total{{handler="/v1/chat/completions",method="POST",status="{status}"}} {count}'
            for status, count in self.posts.items()
        ]
        return "\n".join([*lines, *(f"vllm:{name} {value}" for name, value in self.counters.items())])

    async def scraped(self, more: int = 2) -> None:
        """Return after this many further scrapes; two, and the first of them was asked for after now."""
        goal = self.scrapes + more
        await eventually(lambda: self.scrapes >= goal)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _models(self, _: web.Request) -> web.Response:
        listed = {"object": "list", "data": [{"id": name} for name in self.models]}
        return web.json_response(listed, status=self.models_status)

    async def _metrics(self, _: web.Request) -> web.Response:
        self.scraping += 1
        self.scraping_max = max(self.scraping_max, self.scraping)
        try:
            await asyncio.sleep(self.delay_s)
            return web.Response(text=self.exposition(), status=self.metrics_status)
        finally:
            self.scraping -= 1
            self.scrapes += 1


class Script:
    """A source that lists what it is told to."""

    def __init__(self) -> None:
        self.listed: list[pool.Endpoint] = []
        self.faults: list[Exception] = []  # of the source's own, to be raised at the next changes
        self._changed = asyncio.Event()

    def list(self, *endpoints: pool.Endpoint) -> None:
        self.listed = [*endpoints]
        self._changed.set()

    async def run(self, publish: source.Publish) -> None:
        while True:
            publish(self.listed)
            await self._changed.wait()
            self._changed.clear()
            if self.faults:
                raise self.faults.pop()

    def contact_age_s(self, now: float) -> float | None:  # noqa: ARG002
        return 0.0

    @property
    def state(self) -> source.State:
        return source.State(0.0, None, "", {}, 0)


@dataclass
class Running:
    """A fleet at work."""

    fleet: fleets.Fleet
    router: router.Router
    metrics: metrics.Metrics
    script: Script
    engines: dict[str, Engine]

    def member(self, name: str, **fields: Any) -> pool.Endpoint:
        return pool.Endpoint(pool.EndpointId(name), self.engines[name].address, **fields)

    def ready(self) -> set[str]:
        return {endpoint.id for endpoint in self.router.pool.ready}

    async def becomes(self, *names: str) -> None:
        await eventually(lambda: self.ready() == set(names))

    def against(self, name: str) -> set[str]:
        (view,) = (one for one in self.fleet.view(time.monotonic()).endpoints if one.endpoint.id == name)
        return {reason.value for reason in view.known.against}

    def events(self, event: str) -> float:
        return (
            self.metrics.registry.get_sample_value(
                "kvring_endpoint_events_total", {"pool": "default", "event": event}
            )
            or 0.0
        )

    def choose(self, text: str, model: str = "base") -> choice.Decision | choice.NoEndpoint:
        body = prompt.Prompt("/chat/completions", model, (model.encode(),), text.encode())
        return self.router.choose(body, time.monotonic(), 0.5)

    def send(self, text: str, model: str = "base") -> choice.Choice:
        """Choose, and let the request be over at once."""
        decided = self.choose(text, model)
        assert isinstance(decided, choice.Decision)
        self.metrics.record(decided.choice)
        decided.lease.release()
        return decided.choice


@contextlib.asynccontextmanager
async def running(
    engines: dict[str, Engine], chance: Callable[[], float] = lambda: 0.5, **group: Any
) -> AsyncIterator[Running]:
    """A fleet of started `engines`, settled; `group`: settings of its pool."""
    settings = config.Pool(**{"endpoints": [], "signals": QUICK, "health": PROBES, **group})
    chooser = router.Router(pool.make("default", ()), config.router_settings(settings))
    counted = metrics.Metrics(chooser, time.monotonic, 0.0)
    counted.add_pool("default")
    script = Script()
    made = Running(
        fleets.Fleet(settings, chooser, script, counted, time.monotonic, chance),
        chooser,
        counted,
        script,
        engines,
    )
    for engine in engines.values():
        await engine.start()
    script.listed = [made.member(name) for name in engines]
    task = asyncio.create_task(made.fleet.run())
    try:
        async with asyncio.timeout(100):
            await made.fleet.settled.wait()
            yield made
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for engine in engines.values():
            await engine.stop()


def several(count: int, **fields: Any) -> dict[str, Engine]:
    """So many engines, named e0, e1, ..."""
    return {f"e{number}": Engine(**fields) for number in range(count)}


def prompts(count: int, start: int = 0) -> Sequence[str]:
    """Prompts of about 1,000 tokens with nothing in common."""
    return [f"conversation {number} goes its own way. " * 100 for number in range(start, start + count)]
