"""Validate a configuration file, without starting anything.

Says what would run, or names the key, the value and what is allowed. Exit code 0 or 2.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from extproc import config, groups

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
        kind = next(key for key in config.SOURCES if getattr(group, key) is not None)
        what = f"{len(group.endpoints)} endpoints" if group.endpoints else f"endpoints by {kind}"
        print(f"  pool {group.name}: policy {group.policy}, {what}")
        if len(settings.pools) > 1:
            print(f"    takes {_rules(config.match_of(group))}")
        for endpoint in group.endpoints or ():
            print(f"    {endpoint.name}  {endpoint.address}  weight {endpoint.weight}")
    return 0


def _rules(match: groups.Match) -> str:
    if match.is_default:
        return "what no other pool matches"
    named = {
        "models": match.models, "adapters": match.adapters, "clusters": match.clusters, "routes": match.routes
    }  # fmt: skip
    return "; ".join(f"{key} {', '.join(names)}" for key, names in named.items() if names)
