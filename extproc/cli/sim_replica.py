"""Run simulated vLLM replicas: vLLM's HTTP interface over an engine model, no GPU.

Each keeps a prefix cache of full blocks, batches continuously and takes the time a real engine would, so that
a router in front of it sees hits, queues and metrics as in production. Prints one line when all listen:
`ready {"replicas": ["127.0.0.1:PORT", ...]}`; runs until SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import signal
import sys
from contextlib import AsyncExitStack

from extproc.cli import ranges
from extproc.sim import performance, replica

__all__ = ["add_arguments", "run"]

_COUNT_MAX = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    presets = performance.PRESETS
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        help="port of the first replica, the others follow; 0: any (default: 0)",
    )
    parser.add_argument(
        "--count",
        type=ranges.whole(1, _COUNT_MAX),
        default=1,
        metavar="N",
        help="number of replicas (default: %(default)s)",
    )
    parser.add_argument(
        "--name", default="replica", help="names are NAME-0, NAME-1, ... (default: %(default)s)"
    )
    parser.add_argument("--model", default="codellama-13b", help="served model name (default: %(default)s)")
    parser.add_argument("--adapter", action="append", default=[], help="served LoRA adapter; repeatable")
    parser.add_argument(
        "--preset", choices=list(presets), default=next(iter(presets)), help="engine (default: %(default)s)"
    )
    parser.add_argument(
        "--kv-tokens", type=int, help="KV cache on the device [tokens] (default: the preset's)"
    )
    parser.add_argument("--host-kv-tokens", type=int, default=0, help="KV cache in host memory [tokens]")
    parser.add_argument(
        "--speed", type=float, default=1.0, help="engine seconds per real second (default: %(default)s)"
    )
    parser.add_argument(
        "--max-queued-requests",
        type=int,
        default=0,
        help="reject beyond this many waiting; 0: never (default: 0)",
    )
    parser.add_argument(
        "--no-prefix-caching", action="store_true", help="reuse nothing, as vLLM with this option"
    )
    parser.add_argument(
        "--allow-faults", action="store_true", help="obey x-sim-fault headers, tell what was received"
    )


def run(args: argparse.Namespace) -> int:
    """0 after a signal, 2 for a bad argument or a port that is taken."""
    try:
        asyncio.run(_serve(_replicas(args)))
    except (ValueError, OSError) as error:
        print(f"kvring sim-replica: {error}", file=sys.stderr)
        return 2
    return 0


def _replicas(args: argparse.Namespace) -> list[replica.Replica]:
    if not 0 <= args.port <= 65_536 - args.count:
        raise ValueError(
            f"--port is {args.port}, must be 0 to {65_536 - args.count} with {args.count} replicas"
        )
    preset = performance.PRESETS[args.preset]
    model = dataclasses.replace(
        preset,
        kv_tokens=preset.kv_tokens if args.kv_tokens is None else args.kv_tokens,
        host_kv_tokens=args.host_kv_tokens,
        queued_requests_max=args.max_queued_requests,
        prefix_caching=not args.no_prefix_caching,
    )
    return [replica.Replica(model, _settings(args, index)) for index in range(args.count)]


def _settings(args: argparse.Namespace, index: int) -> replica.Settings:
    return replica.Settings(
        name=f"{args.name}-{index}",
        model=args.model,
        adapters=tuple(args.adapter),
        host=args.host,
        port=args.port + index if args.port else 0,
        speed=args.speed,
        faults_allowed=args.allow_faults,
    )


async def _serve(replicas: list[replica.Replica]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as stack:
        for server in replicas:
            await stack.enter_async_context(server)
        print("ready " + json.dumps({"replicas": [server.address for server in replicas]}), flush=True)
        await stopped.wait()
