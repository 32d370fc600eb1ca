"""Run the ext_proc sidecar: ext_proc on 9002, gRPC health on 9003, admin HTTP on 9090, as configured.

Serves until SIGTERM or SIGINT, then drains. Prints one line `ready {addresses}` when it serves; logs go to
stderr as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from extproc import admin, app, config

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config`."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="kvring.yaml")


def run(args: argparse.Namespace) -> int:
    """0 after a drain; 2 if the configuration or an address can't be used."""
    try:
        settings = config.load(args.config, os.environ)
        asyncio.run(app.run(settings))
    except (config.ConfigError, admin.AccessError, OSError) as error:
        print(f"kvring serve: {error}", file=sys.stderr)
        return 2
    return 0
