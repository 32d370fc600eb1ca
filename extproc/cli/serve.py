"""Run the ext_proc sidecar: ext_proc on 9002, gRPC health on 9003, admin HTTP on 9090, as configured.

Serves until SIGTERM or SIGINT, then drains. Prints one line `ready {addresses}` when it serves; logs go to
stderr as JSON.

With `--workers N` it is N processes that share their view, one a core: worker i listens on each port + 100
* i (a Unix socket gets `.i` at its end), and `kvring envoy-config --workers N` names them all to Envoy. One
that dies is started again, and the others go on; `ready {"workers": [{addresses}, ...]}` then comes when
all serve.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

import msgspec

from extproc import admin, app, config
from extproc.cli import ranges, workers

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and `--workers`."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="kvring.yaml")
    parser.add_argument(
        "--workers",
        type=ranges.whole(1, config.WORKERS_MAX),
        default=1,
        metavar="N",
        help="processes (default: %(default)s)",
    )
    # what a worker is told by the process that starts it
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sockets", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--addresses", type=json.loads, default={}, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """0 after a drain; 2 if the configuration or an address can't be used; 1 if a worker ends at once."""
    try:
        settings = config.load(args.config, os.environ)
        if args.worker is not None:
            siblings = app.Siblings(args.sockets, args.worker, args.workers)
            known = {f"{name}_listen": where for name, where in args.addresses.items()}
            own = msgspec.structs.replace(config.for_worker(settings, args.worker), **known)
            asyncio.run(app.run(own, siblings))
        elif args.workers > 1:
            config.for_worker(settings, args.workers - 1)  # an address too far is told before anything starts
            return asyncio.run(workers.run(args.config, args.workers, settings))
        else:
            asyncio.run(app.run(settings))
    except (config.ConfigError, admin.AccessError, ValueError, OSError) as error:
        print(f"kvring serve: {error}", file=sys.stderr)
        return 2
    return 0
