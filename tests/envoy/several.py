"""Several: kvring processes that share a store, before one real Envoy and simulated engines.

async with several.several(directory, store_url, count=3) as running:
    running.url;  running.kvrings[0].admin;  await running.settled()
    await running.start();  await running.kill(running.kvrings[2])
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path

import aiohttp
import yaml

from extproc import bootstrap, gateway
from extproc.sim import performance, replica
from tests.envoy import client, fleet

__all__ = ["Several", "several"]

PRESET = "codellama-13b-a100-40"


class Kvring:
    """One process."""

    def __init__(self, child: gateway.Child, stack: contextlib.AsyncExitStack) -> None:
        self.child = child
        self._stack = stack
        self.admin = child.ready["admin"]

    @property
    def sidecar(self) -> bootstrap.Sidecar:
        ready = self.child.ready
        return bootstrap.Sidecar(ready["grpc"], int(ready["health"].rpartition(":")[2]))

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.child.signal(number)
        await self.child.wait()
        await self._stack.aclose()


class Several:
    def __init__(self, directory: Path, settings: dict, pool: dict) -> None:
        self.engines: list[replica.Replica] = []
        self.endpoints: list[bootstrap.Endpoint] = []
        self.kvrings: list[Kvring] = []
        self.envoy: gateway.Envoy | None = None
        self.http: aiohttp.ClientSession | None = None
        self._directory, self._settings, self._pool = directory, settings, pool
        self._started = 0

    @property
    def url(self) -> str:
        return self.envoy.url("llm")

    async def start(self, **settings: object) -> Kvring:
        """One more process; `settings`: keys of its own."""
        listen = {f"{name}_listen": "127.0.0.1:0" for name in ("grpc", "health", "admin")}
        listed = [{"name": one.name, "address": one.address} for one in self.endpoints]
        path = self._directory / f"kvring-{self._started}.yaml"
        self._started += 1
        whole = listen | self._settings | settings | {"pools": [self._pool | {"endpoints": listed}]}
        path.write_text(yaml.safe_dump(whole))
        stack = contextlib.AsyncExitStack()
        child = await stack.enter_async_context(
            gateway.command(["serve", "--config", str(path)], name="kvring")
        )
        self.kvrings.append(Kvring(child, stack))
        return self.kvrings[-1]

    async def end(self, one: Kvring, number: signal.Signals = signal.SIGTERM) -> None:
        self.kvrings.remove(one)
        await one.end(number)

    async def state(self, one: Kvring) -> dict:
        async with self.http.get(f"http://{one.admin}/api/state") as answer:
            return json.loads(await answer.text())

    async def states(self) -> list[dict]:
        return list(await asyncio.gather(*map(self.state, self.kvrings)))

    async def metric(self, one: Kvring, name: str) -> float:
        """Sum of a process's samples of this name."""
        async with self.http.get(f"http://{one.admin}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} "))
        )

    async def acquainted(self, peers: int | None = None) -> None:
        """Return when every process hears every other one."""
        wanted = len(self.kvrings) - 1 if peers is None else peers

        async def known() -> bool:
            return all(state["sharing"]["peers"] == wanted for state in await self.states())

        await client.until(known, f"{wanted} peers each")

    async def settled(self) -> None:
        """Return when nothing is open anywhere, by everybody's count; exactly zero."""

        async def empty() -> bool:
            pools = [state["pools"][0] for state in await self.states()]
            return not any(one.engine.running + one.engine.waiting for one in self.engines) and all(
                pool["open_leases"] == 0
                and all(each["inflight"] == each["pending_tokens"] == 0 for each in pool["endpoints"])
                for pool in pools
            )

        await client.until(empty, "an empty ledger everywhere")

    async def chat(self, text: str, **fields: object) -> fleet.Answer:
        body = client.chat_body(text, **fields)
        async with self.http.post(
            f"{self.url}/v1/chat/completions", data=body, headers={"content-type": "application/json"}
        ) as answer:
            return fleet.Answer(answer.status, answer.headers.copy(), await answer.read())


@contextlib.asynccontextmanager
async def several(
    directory: Path,
    store: str | None,
    *,
    count: int = 3,
    engines: int = 8,
    speed: float = 20.0,
    pool: dict | None = None,
    settings: dict | None = None,
    **steering,
):
    """A running Several. store: its URL; None: they know nothing of each other."""
    model = performance.PRESETS[PRESET]
    pool = {
        "kv_tokens": model.kv_tokens,
        "prefill_tokens_per_s": speed / model.token_s,
        "health": {"interval_s": 0.5, "timeout_s": 5.0},
    } | (pool or {})
    settings = {"drain_notice_s": 0, "drain_timeout_s": 1, "log_level": "warning"} | (settings or {})
    if store is not None:
        settings["store"] = {"url": store}
    running = Several(directory, settings, pool)
    async with contextlib.AsyncExitStack() as stack:
        running.http = await stack.enter_async_context(client.session(120))
        for number in range(engines):
            one = replica.Replica(model, replica.Settings(f"engine-{number}", speed=speed))
            running.engines.append(await stack.enter_async_context(one))
            running.endpoints.append(bootstrap.Endpoint(f"engine-{number}", one.address))
        for _ in range(count):
            started = await running.start()
            stack.push_async_callback(started.end)
        door = bootstrap.Listener(
            "127.0.0.1:0",
            running.endpoints,
            steering=bootstrap.Steering(
                [one.sidecar for one in running.kvrings], message_timeout_s=fleet.PATIENCE_S, **steering
            ),
            expose_endpoint=True,
        )
        running.envoy = await stack.enter_async_context(
            gateway.envoy(bootstrap.build([door], admin="127.0.0.1:0"))
        )
        if store is not None:
            await running.acquainted()
        yield running
