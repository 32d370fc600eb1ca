"""Several: kvring processes that share what they know, before one real Envoy and simulated engines.

async with several.several(directory, store_url, count=3) as running:
    running.url                              # over all of them;  running.url_of(2): over kvrings[2] alone
    running.kvrings[0].admin;  await running.settled()
    await running.end(running.kvrings[2], signal.SIGKILL);  await running.start(at=2)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
import yaml

from extproc import bootstrap, gateway
from extproc.sim import performance, replica
from tests import ports
from tests.envoy import client, fleet

__all__ = ["Several", "several"]

PRESET = "codellama-13b-a100-40"
LISTENERS = ("grpc", "health", "admin")


class Kvring:
    """One process, or one worker of a process. `place`: which of the addresses that Envoy knows it has."""

    def __init__(
        self,
        place: int,
        child: gateway.Child,
        stack: contextlib.AsyncExitStack,
        ready: Mapping[str, str] | None = None,
    ) -> None:
        self.place, self.child = place, child
        self.ready = child.ready if ready is None else ready
        self.admin = self.ready["admin"]
        self._stack = stack

    @property
    def sidecar(self) -> bootstrap.Sidecar:
        return bootstrap.Sidecar(self.ready["grpc"], int(self.ready["health"].rpartition(":")[2]))

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.child.signal(number)
        await self.child.wait()
        await self._stack.aclose()


class Several:
    def __init__(self, directory: Path, settings: dict, pool: dict, stores: Sequence[str]) -> None:
        """`stores`: URL for each place, in turn; () for none."""
        self.engines: list[replica.Replica] = []
        self.endpoints: list[bootstrap.Endpoint] = []
        self.kvrings: list[Kvring] = []
        self.envoy: gateway.Envoy | None = None
        self.http: aiohttp.ClientSession | None = None
        self._directory, self._settings, self._pool, self._stores = directory, settings, pool, stores
        self._listen: dict[int, dict[str, str]] = {}  # by place

    @property
    def url(self) -> str:
        return self.envoy.url("llm")

    def url_of(self, place: int) -> str:
        """A door of Envoy's that asks only the process there."""
        return self.envoy.url(f"only-{place}")

    def config(self, place: int, **settings: object) -> Path:
        """The file for the process at `place`, on the addresses that are its own."""
        listen = {f"{name}_listen": where for name, where in self._listen[place].items()}
        listed = [{"name": one.name, "address": one.address} for one in self.endpoints]
        path = self._directory / f"kvring-{place}.yaml"
        store = {"store": {"url": self._stores[place % len(self._stores)]}} if self._stores else {}
        whole = listen | store | self._settings | settings | {"pools": [self._pool | {"endpoints": listed}]}
        path.write_text(yaml.safe_dump(whole))
        return path

    async def start(self, at: int | None = None, **settings: object) -> Kvring:
        """One more process, at a new place, or at one that was left; `settings`: keys of its own."""
        place = len(self._listen) if at is None else at
        if place not in self._listen:
            self._listen[place] = {name: f"127.0.0.1:{ports.own()}" for name in LISTENERS}
        path = self.config(place, **settings)
        stack = contextlib.AsyncExitStack()
        child = await stack.enter_async_context(
            gateway.command(["serve", "--config", str(path)], name="kvring")
        )
        self.kvrings.append(Kvring(place, child, stack))
        return self.kvrings[-1]

    async def start_workers(self, count: int) -> None:
        """`kvring serve --workers`, with a place for each worker."""
        self._listen[0] = dict.fromkeys(LISTENERS, "127.0.0.1:0")
        path = self.config(0)
        stack = contextlib.AsyncExitStack()
        child = await stack.enter_async_context(
            gateway.command(["serve", "--config", str(path), "--workers", str(count)], name="kvring")
        )
        self.kvrings += [
            Kvring(place, child, stack, ready) for place, ready in enumerate(child.ready["workers"])
        ]

    async def end(self, one: Kvring, number: signal.Signals = signal.SIGTERM) -> None:
        self.kvrings.remove(one)
        await one.end(number)

    async def end_all(self) -> None:
        ending, self.kvrings = self.kvrings, []
        await asyncio.gather(*(one.end() for one in ending))

    def doors(self, **steering) -> list[bootstrap.Listener]:
        """One that asks all processes, and one for each that asks only that."""
        sidecars = [one.sidecar for one in self.kvrings]
        asked = [("llm", "kvring", sidecars)]
        asked += [(f"only-{place}", f"kvring-{place}", [one]) for place, one in enumerate(sidecars)]
        return [
            bootstrap.Listener(
                "127.0.0.1:0",
                self.endpoints,
                name=name,
                steering=bootstrap.Steering(
                    group, cluster_name=cluster, message_timeout_s=fleet.PATIENCE_S, **steering
                ),
                expose_endpoint=True,
            )
            for name, cluster, group in asked
        ]

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

    async def whole(self, leases_of_others: int) -> float:
        """How long it takes [s] until every process hears all others and counts so many open leases of
        theirs, at least.
        """
        began_s = time.monotonic()

        async def known() -> bool:
            shared = [state["sharing"] for state in await self.states()]
            return all(
                one["connected"]
                and one["peers"] == len(self.kvrings) - 1
                and one["peer_leases"] >= leases_of_others
                for one in shared
            )

        await client.until(known, "all hear all")
        return time.monotonic() - began_s

    async def counted(self, leases: int) -> None:
        """Return when everybody counts exactly so many open leases."""

        async def so() -> bool:
            return all(state["pools"][0]["open_leases"] == leases for state in await self.states())

        await client.until(so, f"{leases} open leases by everybody's count")

    async def alike(self, texts: Sequence[str]) -> None:
        """Return when all think the same of what each endpoint has to do, and holds of these prompts; fails
        saying where they differ.
        """
        seen: list[dict[str, list]] = []

        async def held(one: Kvring, text: str) -> list[list]:
            url = f"http://{one.admin}/api/explain"
            kind = {"content-type": "application/json"}
            async with self.http.post(url, data=client.chat_body(text), headers=kind) as answer:
                told = json.loads(await answer.text())["candidates"]
            return sorted([each["endpoint"], each["cached_tokens"]] for each in told)

        async def view(one: Kvring) -> dict[str, list]:
            listed = (await self.state(one))["pools"][0]["endpoints"]
            work = [[each["name"], each["inflight"], each["pending_tokens"]] for each in listed]
            return {"work": work} | {text[-40:]: await held(one, text) for text in texts}

        async def same() -> bool:
            nonlocal seen
            seen = await asyncio.gather(*map(view, self.kvrings))
            return all(one == seen[0] for one in seen)

        try:
            await client.until(same, "one view")
        except AssertionError:
            apart = {of: [one[of] for one in seen] for of, first in seen[0].items()
                     if any(one[of] != first for one in seen)}  # fmt: skip
            raise AssertionError(f"never one view: {apart}") from None

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

    async def chat(self, text: str, *, url: str = "", **fields: object) -> fleet.Answer:
        body = client.chat_body(text, **fields)
        async with self.http.post(
            f"{url or self.url}/v1/chat/completions", data=body, headers={"content-type": "application/json"}
        ) as answer:
            return fleet.Answer(answer.status, answer.headers.copy(), await answer.read())


@contextlib.asynccontextmanager
async def several(
    directory: Path,
    store: str | Sequence[str] | None,
    *,
    count: int = 3,
    workers: int = 0,
    engines: int = 8,
    speed: float = 20.0,
    preset: str = PRESET,
    pool: dict | None = None,
    settings: dict | None = None,
    **steering,
):
    """A running Several. store: its URL, or one for each process; None: they know nothing of each other.
    workers: so many of one `kvring serve` instead of `count` processes.
    """
    model = performance.PRESETS[preset]
    pool = {
        "kv_tokens": model.kv_tokens,
        "prefill_tokens_per_s": speed / model.token_s,
        # Else each learns it for itself, from windows in which it heard of all an engine got, and the same
        # blocks would be other numbers of tokens, for as long as nobody asks.
        "bytes_per_token": 4,
        "health": {"interval_s": 0.5, "timeout_s": 5.0},
    } | (pool or {})
    settings = {"drain_notice_s": 0, "drain_timeout_s": 1, "log_level": "warning"} | (settings or {})
    stores = [] if store is None else [store] if isinstance(store, str) else store
    running = Several(directory, settings, pool, stores)
    async with contextlib.AsyncExitStack() as stack:
        running.http = await stack.enter_async_context(client.session(120))
        for number in range(engines):
            one = replica.Replica(model, replica.Settings(f"engine-{number}", speed=speed))
            running.engines.append(await stack.enter_async_context(one))
            running.endpoints.append(bootstrap.Endpoint(f"engine-{number}", one.address))
        stack.push_async_callback(running.end_all)
        if workers:
            await running.start_workers(workers)
        else:
            await asyncio.gather(*(running.start(place) for place in range(count)))
            running.kvrings.sort(key=lambda one: one.place)
        running.envoy = await stack.enter_async_context(
            gateway.envoy(bootstrap.build(running.doors(**steering), admin="127.0.0.1:0"))
        )
        if stores or workers:
            await running.acquainted()
        yield running
