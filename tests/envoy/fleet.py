"""Fleet: simulated replicas in this process, kvring and a real Envoy as children, wired together.

    async with fleet.fleet(replicas=3, policy="cost") as running:
        running.url          # kvring's door;  running.plain_url: round robin over the same replicas
        await running.kill_kvring();  await running.start_kvring()
        await running.state();  await running.metric("kvring_...");  running.access_log()

A restarted part comes back on the port it had, which is its own meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import aiohttp
import yaml

from extproc import bootstrap, gateway
from extproc.sim import performance, replica
from tests import ports

PRESET = "codellama-13b-a100-40"
MODEL = "codellama-13b"
PATIENCE_S = 10.0
"""For an answer of kvring, and for a body: a pause of a busy machine must not look like kvring hanging."""
SHIPPED_S = bootstrap.Steering([bootstrap.Sidecar("127.0.0.1:1")]).message_timeout_s


class Fleet:
    def __init__(self, directory: Path, pool: dict, settings: dict) -> None:
        self.replicas: list[replica.Replica] = []
        self.endpoints: list[bootstrap.Endpoint] = []
        self.kvring: gateway.Child | None = None
        self.envoy: gateway.Envoy | None = None
        self._pool, self._settings = pool, settings
        self._config_path = directory / "kvring.yaml"
        self._access_log_path = directory / "access.log"
        self._listen = {name: f"127.0.0.1:{ports.own()}" for name in ("grpc", "health", "admin")}
        self._kvring_stack = contextlib.AsyncExitStack()
        self.http: aiohttp.ClientSession | None = None

    # ---- addresses ----

    @property
    def url(self) -> str:
        return self.envoy.url("llm")

    @property
    def plain_url(self) -> str:
        return self.envoy.url("plain")

    @property
    def admin(self) -> str:
        """ "127.0.0.1:PORT" of kvring's admin; also while it is down."""
        return self._listen["admin"]

    @property
    def addresses(self) -> list[str]:
        return [each.address for each in self.endpoints]

    # ---- kvring's life ----

    async def start_kvring(self) -> None:
        assert self.kvring is None
        config = {f"{name}_listen": where for name, where in self._listen.items()}
        listed = [{"name": each.name, "address": each.address} for each in self.endpoints]
        sourced = "file" in self._pool or self._pool.get("steering") == "hash"
        own = [] if sourced else [self._pool | {"endpoints": listed}]
        pools = self._settings.get("pools") or own or [self._pool]
        self._config_path.write_text(yaml.safe_dump(config | self._settings | {"pools": pools}))
        self.kvring = await self._kvring_stack.enter_async_context(
            gateway.command(["serve", "--config", str(self._config_path)], name="kvring")
        )
        self._listen = {name: self.kvring.ready[name] for name in self._listen}

    async def stop_kvring(self) -> int:
        """Its exit code after SIGTERM."""
        code = await self.kvring.stop(grace_s=10)
        await self._forget_kvring()
        return code

    async def kill_kvring(self) -> None:
        self.kvring.signal(signal.SIGKILL)
        await self.kvring.wait()
        await self._forget_kvring()

    def pause_kvring(self) -> None:
        """It hangs: sockets open, nothing answered."""
        self.kvring.signal(signal.SIGSTOP)

    def resume_kvring(self) -> None:
        self.kvring.signal(signal.SIGCONT)

    async def _forget_kvring(self) -> None:
        self.kvring = None
        await self._kvring_stack.aclose()

    # ---- replicas' life ----

    async def start_replica(self, number: int) -> None:
        await self.replicas[number].start()

    async def stop_replica(self, number: int) -> None:
        """Connections are refused until it is started again, with its cache as it was."""
        await self.replicas[number].stop()

    def pace(self, speed: float) -> None:
        """All replicas go on at `speed`: answers kept open by a slow one end soon at a quick one."""
        for one in self.replicas:
            one.pace(speed)

    # ---- looking inside ----

    async def get(self, url: str) -> str:
        async with self.http.get(url) as answer:
            answer.raise_for_status()
            return await answer.text()

    async def state(self) -> dict:
        """kvring's /api/state."""
        return json.loads(await self.get(f"http://{self.admin}/api/state"))

    async def metrics(self) -> str:
        """kvring's /metrics."""
        return await self.get(f"http://{self.admin}/metrics")

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of kvring's samples of this name whose labels include these; 0 where there are none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in (await self.metrics()).splitlines()
            if line.startswith((f"{name}{{", f"{name} ")) and all(each in line for each in wanted)
        )

    def access_log(self) -> list[dict]:
        """Envoy's entries of finished requests at kvring's door; Envoy writes them some time later."""
        if not self._access_log_path.exists():
            return []
        return [json.loads(line) for line in self._access_log_path.read_text().splitlines()]

    async def chat(self, text: str, *, url: str = "", headers: dict | None = None, **fields) -> Answer:
        """One chat completion of a token, through kvring's door unless `url` names another base URL."""
        body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": text}]} | fields
        async with self.http.post(
            f"{url or self.url}/v1/chat/completions", json=body, headers=headers
        ) as answer:
            return Answer(answer.status, answer.headers.copy(), await answer.read())


class Answer:
    def __init__(self, status: int, headers, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def served_by(self) -> str:
        """Address of the endpoint, from Envoy."""
        return self.headers.get("x-kvring-endpoint", "")

    @property
    def cached_tokens(self) -> int:
        return json.loads(self.body)["usage"]["prompt_tokens_details"]["cached_tokens"]


@contextlib.asynccontextmanager
async def fleet(
    directory: Path,
    *,
    replicas: int = 3,
    policy: str = "cost",
    speed: float = 20.0,
    preset: str = PRESET,
    pool: dict | None = None,
    settings: dict | None = None,
    listener: dict | None = None,
    kvring: bool = True,
    others: dict[str, str] | None = None,
    message_timeout_s: float = PATIENCE_S,
    **steering,
):
    """A running Fleet.

    directory: for its files. pool, settings: more keys of kvring.yaml, in its pool and at its top.
    listener, steering: more fields of bootstrap.Listener and bootstrap.Steering (`body_mode`, `fail_open`,
    ...). message_timeout_s: less where Envoy shall do without an answer; SHIPPED_S is a user's. kvring: False
    starts everything but kvring, whose ports are then unused ones.
    others: name -> address of further endpoints that a test runs itself. preset: what each replica is.
    """
    model = performance.PRESETS[preset]
    pool = pool or {}
    if pool.get("steering") != "hash":  # which knows no endpoints
        pool = {
            "name": "default",
            "policy": policy,
            "kv_tokens": model.kv_tokens,
            "prefill_tokens_per_s": speed / model.token_s,
            # replicas live in the process of the test: on a busy machine one that is well may answer late
            "health": {"interval_s": 0.2, "failures": 10},
        } | pool
    settings = {
        "drain_notice_s": 0,
        "drain_timeout_s": 1,
        "decision_timeout_s": PATIENCE_S,
        "log_level": "warning",
    } | (settings or {})
    running = Fleet(directory, pool, settings)
    async with contextlib.AsyncExitStack() as stack:
        running.http = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        )
        for number in range(replicas):
            one = replica.Replica(
                model,
                replica.Settings(f"replica-{number}", port=ports.own(), speed=speed, faults_allowed=True),
            )
            running.replicas.append(await stack.enter_async_context(one))
            running.endpoints.append(bootstrap.Endpoint(f"replica-{number}", one.address))
        running.endpoints += [bootstrap.Endpoint(*each) for each in (others or {}).items()]
        stack.push_async_callback(running._kvring_stack.aclose)
        await running.start_kvring()
        if not kvring:
            await running.stop_kvring()
        sidecar = bootstrap.Sidecar(
            running._listen["grpc"], int(running._listen["health"].rpartition(":")[2])
        )
        doors = [
            bootstrap.Listener(
                "127.0.0.1:0",
                running.endpoints,
                steering=bootstrap.Steering([sidecar], message_timeout_s=message_timeout_s, **steering),
                expose_endpoint=True,
                access_log_path=str(running._access_log_path),
                **(listener or {}),
            ),
            bootstrap.Listener("127.0.0.1:0", running.endpoints, name="plain", expose_endpoint=True),
        ]
        running.envoy = await stack.enter_async_context(
            gateway.envoy(bootstrap.build(doors, admin="127.0.0.1:0"))
        )
        yield running
