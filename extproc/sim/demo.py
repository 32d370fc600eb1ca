"""Demo: round robin and kvring measured side by side, through one real Envoy.

    load client ──> Envoy, door "round_robin" ──────────────> fleet of N simulated replicas
                └─> Envoy, door "kvring" ──(ext_proc) kvring ─> another fleet of N, alike

Two fleets, since one would let the arms fill each other's caches. Both arms run at the same time, so that
whatever the machine does hits them alike. Each part is a process: Envoy, `kvring serve`, one `sim-replica`
a fleet; the load client is this process. Replicas and load run `speed` times faster than the hardware they
model; kvring is told a prefill rate that is as much higher.

Invariant: leaving `measure`, however, leaves no process behind; a child that dies ends the run with the
last lines of its log. Called by: the command `demo`, tests/bench.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from extproc import bootstrap, gateway
from extproc.sim import driver, lag, live, page, picture, report, workload

__all__ = ["PRESET", "Settings", "measure", "write"]

PRESET = "codellama-13b-a100-40"
# The 13B model on an A100-40: what is left for the KV cache, and 1 / (80 us a prompt token).
_KV_TOKENS = 11_200
_PREFILL_TOKENS_PER_S = 12_500
_BYTES_PER_TOKEN = 4

# First seconds of a run are dropped: the caches fill. At most this share of a short run.
_WARMUP_S = 60.0
_WARMUP_SHARE_MAX = 0.3
_SIDECARS = "kvring_sidecars"


@dataclass(frozen=True, slots=True)
class Settings:
    """One run. `seconds`: how long load is sent [real]. `speed`: engine seconds per real second."""

    seed: int = 1
    users: int = 30
    endpoints: int = 8
    seconds: float = 75.0
    speed: float = 3.0
    node_price_usd_per_h: float = 10.0

    @property
    def duration_s(self) -> float:
        """Length of the run [engine seconds]."""
        return self.seconds * self.speed

    @property
    def window(self) -> report.Window:
        """The measured part of it."""
        return report.Window(min(_WARMUP_S, _WARMUP_SHARE_MAX * self.duration_s), self.duration_s)


async def measure(settings: Settings, console: Console) -> report.Report:
    """The report of one run; progress goes to `console`.

    Raises gateway.ChildError when a part cannot start or dies.
    """
    load = workload.Workload(settings.seed, settings.users)
    async with _running(settings, console) as (envoy, children):
        arms = {arm: envoy.url(arm) for arm in (report.BASELINE, report.CANDIDATE)}
        client = driver.Driver(arms, load, driver.Schedule(settings.duration_s, settings.speed))
        machine = await _drive(client, children, settings, console)
        unsteered = sum((await envoy.stats("ext_proc.*failure_mode_allowed")).values())
    window = settings.window
    return report.Report(
        setup=report.Setup(
            seed=settings.seed,
            users=settings.users,
            endpoints=settings.endpoints,
            prefix_tokens=load.prefix_tokens,
            speed=settings.speed,
            seconds=settings.seconds,
            warmup_s=window.start_s,
            measured_s=window.end_s - window.start_s,
            preset=PRESET,
            node_price_usd_per_h=settings.node_price_usd_per_h,
        ),
        arms={
            name: report.arm_report(samples, window, settings.endpoints)
            for name, samples in client.samples.items()
        },
        machine=machine,
        unsteered=unsteered,
    )


def write(result: report.Report, directory: Path) -> str | None:
    """Write `index.html`, `result.json`, and `picture.png` and `.svg` into `directory`, made if absent.

    The result is why there is no picture, None if there is one. Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "result.json").write_text(json.dumps(report.to_json(result), indent=2) + "\n")
    svg, missing = None, None
    try:
        drawn = picture.draw(result)
    except picture.MissingError as error:
        missing = str(error)
    else:
        (directory / "picture.png").write_bytes(drawn.png)
        (directory / "picture.svg").write_text(drawn.svg)
        svg = drawn.svg_clear
    (directory / "index.html").write_text(page.render(result, svg))
    return missing


@contextlib.asynccontextmanager
async def _running(
    settings: Settings, console: Console
) -> AsyncIterator[tuple[gateway.Envoy, list[gateway.Child]]]:
    """Everything but the load: an Envoy with a door for each arm, and all processes."""
    async with contextlib.AsyncExitStack() as stack:
        console.print(
            f"Starting 2 x {settings.endpoints} simulated replicas ({PRESET}, {settings.speed:g}x real "
            "time), kvring and Envoy ...",
            highlight=False,
            soft_wrap=True,
        )
        fleets = await asyncio.gather(
            *(
                stack.enter_async_context(gateway.command(_fleet_words(settings), name=f"fleet-{arm}"))
                for arm in (report.BASELINE, report.CANDIDATE)
            )
        )
        endpoints = [
            [
                bootstrap.Endpoint(f"replica-{index}", address)
                for index, address in enumerate(fleet.ready["replicas"])
            ]
            for fleet in fleets
        ]
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvring-demo-")))
        config_path = directory / "kvring.yaml"
        config_path.write_text(yaml.safe_dump(_sidecar_config(settings, endpoints[1]), sort_keys=False))
        sidecar = await stack.enter_async_context(gateway.command(["serve", "--config", str(config_path)]))
        envoy = await stack.enter_async_context(gateway.envoy(_envoy_config(endpoints, sidecar)))
        yield envoy, [*fleets, sidecar, envoy.process]


def _fleet_words(settings: Settings) -> list[str]:
    return [
        "sim-replica",
        *("--count", str(settings.endpoints)),
        *("--preset", PRESET),
        *("--speed", f"{settings.speed:g}"),
        *("--kv-tokens", str(_KV_TOKENS)),
    ]


def _sidecar_config(settings: Settings, endpoints: Sequence[bootstrap.Endpoint]) -> dict[str, object]:
    """`kvring.yaml` of the candidate arm."""
    return {
        "grpc_listen": "127.0.0.1:0",
        "health_listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "drain_timeout_s": 1,
        "pools": [
            {
                "name": "default",
                "endpoints": [{"name": each.name, "address": each.address} for each in endpoints],
                "policy": "cost",
                "kv_tokens": _KV_TOKENS,
                "prefill_tokens_per_s": round(_PREFILL_TOKENS_PER_S * settings.speed),
                "bytes_per_token": _BYTES_PER_TOKEN,
            }
        ],
    }


def _envoy_config(
    endpoints: Sequence[Sequence[bootstrap.Endpoint]], sidecar: gateway.Child
) -> dict[str, object]:
    """One Envoy with a door for each arm."""
    health_port = int(str(sidecar.ready["health"]).rpartition(":")[2])
    steering = bootstrap.Steering(
        [bootstrap.Sidecar(sidecar.ready["grpc"], health_port)], cluster_name=_SIDECARS
    )
    doors = [
        bootstrap.Listener("127.0.0.1:0", endpoints[0], name=report.BASELINE),
        bootstrap.Listener("127.0.0.1:0", endpoints[1], steering=steering, name=report.CANDIDATE),
    ]
    return bootstrap.build(doors, admin="127.0.0.1:0")


async def _drive(
    client: driver.Driver, children: Sequence[gateway.Child], settings: Settings, console: Console
) -> lag.Machine:
    """Run the load beside the display, unless a child dies first."""
    driving = asyncio.ensure_future(client.run())
    watching = asyncio.ensure_future(live.watch(console, client, settings.duration_s, settings.endpoints))
    deaths = {asyncio.ensure_future(child.wait()): child for child in children}
    tasks: set[asyncio.Future[Any]] = {driving, watching, *deaths}
    try:
        # The display ends only by failing, a child only by dying.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for death, child in deaths.items():
            if death.done():
                raise gateway.ChildError(
                    f"{child.name} died with exit code {death.result()} in the middle of the run:\n"
                    f"{child.log_tail()}"
                )
        if watching.done():
            watching.result()
        return await driving
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
