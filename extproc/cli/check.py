"""Validate a configuration file, without starting anything.

Says what would run, or names the key, the value and what is allowed. Exit code 0 or 2.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from extproc import config

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config`."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="kvring.yaml")


def run(args: argparse.Namespace) -> int:
    """0 if the file can be used, else 2."""
    try:
        settings = config.load(args.config, os.environ)
    except config.ConfigError as error:
        print(f"kvring check: {error}", file=sys.stderr)
        return 2
    print(f"{args.config}: good")
    for group in settings.pools:
        print(f"  pool {group.name}: policy {group.policy}, {len(group.endpoints)} endpoints")
        for endpoint in group.endpoints:
            print(f"    {endpoint.name}  {endpoint.address}  weight {endpoint.weight}")
    return 0
