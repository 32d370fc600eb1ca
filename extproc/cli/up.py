"""Runs a gateway on this machine: a real Envoy, kvring beside it, and simulated or your own replicas.

  kvring up                                          three simulated vLLM replicas
  kvring up --upstream 10.0.0.1:8000 --upstream gpu-2:8000    servers that exist, OpenAI API

Ctrl-C or SIGTERM stops everything. If kvring dies, Envoy goes on and balances by itself: try it with
`kill -9`. Envoy and kvring listen on 127.0.0.1 unless --host says otherwise. Where stdout is not a terminal
it gets one line, `ready {addresses}`; what is meant for people goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shlex
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from extproc import bootstrap, config, gateway, policy
from extproc.bootstrap import address
from extproc.cli import envoy_config, ranges
from extproc.sim import performance

__all__ = ["add_arguments", "run"]

_REPLICAS_MAX = 64
_PRESET = "codellama-13b-a100-40"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--upstream",
        action="append",
        default=[],
        metavar="[NAME=]HOST:PORT",
        help="a model server; repeat for each (default: simulated replicas)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="IP", help="to listen on (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=10000, help="for clients; 0: any (default: %(default)s)")
    parser.add_argument(
        "--replicas",
        type=ranges.whole(1, _REPLICAS_MAX),
        default=3,
        metavar="N",
        help="number of simulated replicas (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=ranges.whole(1, config.WORKERS_MAX),
        default=1,
        metavar="N",
        help="kvring processes that share their view (default: %(default)s)",
    )
    parser.add_argument(
        "--speed",
        type=float,
        default=1.0,
        help="of simulated replicas, engine seconds per real second (default: %(default)s)",
    )
    parser.add_argument(
        "--policy",
        choices=list(policy.POLICIES),
        default="cost",
        help="how kvring chooses (default: %(default)s)",
    )
    parser.add_argument(
        "--kv-tokens",
        type=int,
        help="KV cache of one replica [tokens] (default: the simulation's, or kvring's)",
    )
    parser.add_argument(
        "--health-path",
        default="/health",
        help="path whose 2xx means a replica is well (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """0 after a signal; 2 for bad arguments or a port in use; 1 when a part cannot start or Envoy dies."""
    try:
        return asyncio.run(_up(args))
    except (ValueError, OSError) as error:
        print(f"kvring up: {error}", file=sys.stderr)
        return 2
    except gateway.ChildError as error:
        print(f"kvring up: {error}", file=sys.stderr)
        return 1


@dataclass(frozen=True, slots=True)
class _Running:
    endpoints: Sequence[bootstrap.Endpoint]
    sidecar: gateway.Child
    envoy: gateway.Envoy
    children: Sequence[gateway.Child]


async def _up(args: argparse.Namespace) -> int:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("not inside a task")
    stopped = asyncio.Event()

    def stop() -> None:
        if not stopped.is_set():  # once: what follows is an orderly stop, bounded in time
            stopped.set()
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        async with contextlib.AsyncExitStack() as stack:
            running = await _start(args, stack)
            await _tell(running)
            return await _watch(running)
    except asyncio.CancelledError:
        print("kvring up: everything is stopped", file=sys.stderr)
        return 0


async def _start(args: argparse.Namespace, stack: contextlib.AsyncExitStack) -> _Running:
    """All parts, in the order in which each needs the ones before it; they stop in the opposite one."""
    _require_free(args.host, args.port)
    gateway.find_envoy()  # before anything else is started
    children = []
    if args.upstream:
        endpoints = [await _resolved(each) for each in envoy_config.endpoints(args.upstream)]
    else:
        fleet = await stack.enter_async_context(gateway.command(_fleet_words(args)))
        children.append(fleet)
        endpoints = envoy_config.endpoints(fleet.ready["replicas"])
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvring-up-"))
    config_path = Path(directory, "kvring.yaml")
    _write(config_path, yaml.safe_dump(_sidecar_config(args, endpoints), sort_keys=False))
    sidecar = await stack.enter_async_context(
        gateway.command(
            ["serve", "--config", str(config_path), "--workers", str(args.workers)], name="kvring"
        )
    )
    steering = bootstrap.Steering(
        [bootstrap.Sidecar(each["grpc"], _port(each["health"])) for each in _workers(sidecar)]
    )
    listen = str(address.Address(args.host, args.port))
    door = bootstrap.Listener(listen, endpoints, steering=steering, expose_endpoint=True)
    envoy = await stack.enter_async_context(gateway.envoy(bootstrap.build([door], admin="127.0.0.1:0")))
    return _Running(endpoints, sidecar, envoy, [*children, sidecar, envoy.process])


def _fleet_words(args: argparse.Namespace) -> list[str]:
    words = ["sim-replica", "--count", str(args.replicas), "--speed", f"{args.speed:g}", "--preset", _PRESET]
    return [*words, "--kv-tokens", str(args.kv_tokens)] if args.kv_tokens else words


def _sidecar_config(args: argparse.Namespace, endpoints: Sequence[bootstrap.Endpoint]) -> dict[str, Any]:
    """kvring.yaml for these endpoints."""
    pool: dict[str, Any] = {
        "name": "default",
        "endpoints": [{"name": each.name, "address": each.address} for each in endpoints],
        "policy": args.policy,
        # a retry goes to kvring's next choice; as many as the route's num_retries
        "alternates": min(2, len(endpoints) - 1),
        "health": {"path": args.health_path},
    }
    if args.kv_tokens:
        pool["kv_tokens"] = args.kv_tokens
    if not args.upstream:
        model = performance.PRESETS[_PRESET]
        pool.setdefault("kv_tokens", model.kv_tokens)
        pool["prefill_tokens_per_s"] = round(args.speed / model.token_s)
    return {
        "grpc_listen": "127.0.0.1:0",
        "health_listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "pick_header": False,  # the bootstrap's mutation_rules would drop it
        "drain_notice_s": 0,
        "drain_timeout_s": 1,
        "log_level": "warning",
        "pools": [pool],
    }


async def _tell(running: _Running) -> None:
    """The addresses, as text on stderr for people and as one line on stdout for programs."""
    url, admin = running.envoy.url(), _workers(running.sidecar)[0]["admin"]
    if not sys.stdout.isatty():
        said = {
            "url": url,
            "admin": admin,
            "workers": [each["admin"] for each in _workers(running.sidecar)],
            "envoy_admin": running.envoy.admin,
            "endpoints": {each.name: each.address for each in running.endpoints},
            "pids": {child.name: child.pid for child in running.children},
        }
        print(f"ready {json.dumps(said)}", flush=True)
    body = {
        "model": await _model(running.endpoints[0].address),
        "messages": [{"role": "user", "content": "Hello"}],
    }
    lines = [
        f"kvring is up: {url}   (Ctrl-C stops it)",
        "",
        f"  curl -i {url}/v1/chat/completions -H 'content-type: application/json' \\",
        f"    -d {shlex.quote(json.dumps(body))}",
        "",
        f"  kvring       pid {running.sidecar.pid}   http://{admin}   (page, /metrics, state --admin)",
        f"  Envoy admin  pid {running.envoy.process.pid}   http://{running.envoy.admin}",
        *(f"  {each.name:<12} http://{each.address}" for each in running.endpoints),
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


async def _watch(running: _Running) -> int:
    """1 when Envoy has died. The death of another part is told, and the gateway goes on without it."""
    deaths = {asyncio.ensure_future(child.wait()): child for child in running.children}
    try:
        while True:
            done, _ = await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
            for death in done:
                child = deaths.pop(death)
                print(f"kvring up: {child.name} died with exit code {death.result()}", file=sys.stderr)
                print(child.log_tail(), file=sys.stderr)
                if child is running.envoy.process:
                    return 1
                if child is running.sidecar:
                    print("kvring up: Envoy goes on and balances by itself", file=sys.stderr)
    finally:
        for death in deaths:
            death.cancel()


def _require_free(host: str, port: int) -> None:
    """Raises OSError when the port is in use.

    Asked before Envoy is: it binds with SO_REUSEPORT, so a second one would share the port without a word.
    """
    where = address.parse(str(address.Address(host, port)), port_min=0)
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((where.host, where.port))
        except OSError as error:
            raise OSError(
                f"cannot listen on {where}: {error.strerror}; --port 0 takes any free port"
            ) from None


async def _resolved(endpoint: bootstrap.Endpoint) -> bootstrap.Endpoint:
    """The endpoint at its IP address: kvring steers to addresses, and Envoy compares them as text."""
    where = address.parse(endpoint.address)
    if not where.is_dns:
        return endpoint
    try:
        found = await asyncio.get_running_loop().getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise OSError(f"--upstream {endpoint.address}: {error.strerror}") from None
    found.sort(key=lambda each: each[0] != socket.AF_INET)  # IPv4 first, as Envoy's V4_PREFERRED
    return bootstrap.Endpoint(endpoint.name, str(address.Address(str(found[0][4][0]), where.port)))


async def _model(endpoint: str) -> str:
    """The first model that the endpoint says it serves; "MODEL" where it says nothing within a second."""
    timeout = aiohttp.ClientTimeout(total=1)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
            session.get(f"http://{endpoint}/v1/models") as answer,
        ):
            page: Mapping[str, Any] = await answer.json()
            return str(page["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, IndexError, TypeError):
        return "MODEL"


def _workers(sidecar: gateway.Child) -> Sequence[Mapping[str, str]]:
    """The addresses of each kvring process."""
    found: Sequence[Mapping[str, str]] = sidecar.ready.get("workers", [sidecar.ready])
    return found


def _port(address_text: str) -> int:
    return int(address_text.rpartition(":")[2])


def _write(path: Path, text: str) -> None:
    path.write_text(text)
