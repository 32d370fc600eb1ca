"""Validate a configuration file, or look for known traps in an Envoy's, without starting anything.

  kvring check --config kvring.yaml     says what would run, or names the key, the value and what is allowed;
                                        what `kvring serve` needs of this machine (packages, files, a pod) is
                                        looked for too, unless with --elsewhere
  kvring check --envoy envoy.yaml       a bootstrap, the pieces `kvring envoy-config --fragments` prints, or
                                        the page /config_dump of a running Envoy ("-": from standard input)

Exit code 0: good, 1: Envoy's has errors or warnings (notes alone are good), 2: can't be used or read.
The traps are listed in docs/envoy.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from extproc import config, groups, needs, traps

__all__ = ["add_arguments", "run"]

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a config dump has tens of thousands of lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is to be checked."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="kvring.yaml")
    parser.add_argument(
        "--elsewhere",
        action="store_true",
        help="kvring.yaml is for another machine: don't look for the packages and files that it needs",
    )
    parser.add_argument("--envoy", metavar="FILE", help="Envoy's bootstrap, pieces of it, or config dump")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """The worst exit code of what was checked."""
    if args.config is None and args.envoy is None:
        print("kvring check: nothing to check: give --config FILE or --envoy FILE", file=sys.stderr)
        return 2
    codes, told = [], {}
    if args.config is not None:
        code, told["config"] = _config(args.config, is_here=not args.elsewhere, quiet=args.json)
        codes.append(code)
    if args.envoy is not None:
        code, told["envoy"] = _envoy(args.envoy, quiet=args.json)
        codes.append(code)
    if args.json:
        print(json.dumps(told, indent=2))
    return max(codes)


def _config(path: Path, *, is_here: bool, quiet: bool) -> tuple[int, dict[str, Any]]:
    try:
        settings = config.load(path, os.environ)
    except config.ConfigError as error:
        print(f"kvring check: {error}", file=sys.stderr)
        return 2, {"file": str(path), "good": False, "error": str(error)}
    found = needs.problems(settings, time.monotonic, time.time, random.random) if is_here else []
    for one in found:
        print(f"kvring check: {path}: {one}", file=sys.stderr)
    if found:
        if not quiet:
            print(
                "what is only on the machine that serves is not looked for with --elsewhere", file=sys.stderr
            )
        return 2, {"file": str(path), "good": False, "error": "; ".join(found)}
    if not quiet:
        _tell(path, settings)
    return 0, {"file": str(path), "good": True, "pools": [group.name for group in settings.pools]}


def _tell(path: Path, settings: config.Config) -> None:
    print(f"{path}: good")
    for group in settings.pools:
        if group.steering == "hash":
            print(f"  pool {group.name}: a hash for Envoy, about {group.endpoint_count} endpoints")
            if len(settings.pools) > 1:
                print(f"    takes {_rules(config.match_of(group))}")
            continue
        kind = next(key for key in config.SOURCES if getattr(group, key) is not None)
        what = f"{len(group.endpoints)} endpoints" if group.endpoints else f"endpoints by {kind}"
        print(f"  pool {group.name}: policy {group.policy}, {what}")
        if len(settings.pools) > 1:
            print(f"    takes {_rules(config.match_of(group))}")
        for endpoint in group.endpoints or ():
            print(f"    {endpoint.name}  {endpoint.address}  weight {endpoint.weight}")


def _envoy(name: str, *, quiet: bool) -> tuple[int, dict[str, Any]]:
    shown = "standard input" if name == "-" else name
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        document = yaml.load(text, Loader=_Loader)  # noqa: S506  a safe loader
        said = "" if isinstance(document, dict) else "must be a block of keys, as an Envoy bootstrap is"
    except OSError as error:
        said = f"can't be read: {error.strerror or error}"
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        said = " ".join(str(error).split())
    if said:
        print(f"kvring check: {shown}: {said}", file=sys.stderr)
        return 2, {"file": shown, "error": said}
    found = traps.find(document)
    if not quiet:
        _tell_traps(shown, found)
    listed = [{**asdict(one), "severity": one.severity, **_explained(traps.TRAPS[one.trap])} for one in found]
    return int(any(one.severity != "note" for one in found)), {"file": shown, "findings": listed}


def _explained(trap: traps.Trap) -> dict[str, str]:
    return {"happens": trap.happens, "mend": trap.mend}


def _tell_traps(shown: str, found: list[traps.Finding]) -> None:
    counted = [(kind, sum(one.severity == kind for one in found)) for kind in ("error", "warning", "note")]
    summary = ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counted if count)
    print(f"{shown}: {summary or 'no known traps'}")
    for one in found:
        trap = traps.TRAPS[one.trap]
        print(f"  {one.severity}  {one.trap}  ({one.where}{': ' * bool(one.seen)}{one.seen})")
        print(f"    {trap.happens}")
        print(f"    mend: {trap.mend}")


def _rules(match: groups.Match) -> str:
    if match.is_default:
        return "what no other pool matches"
    named = {
        "models": match.models, "adapters": match.adapters, "clusters": match.clusters, "routes": match.routes
    }  # fmt: skip
    return "; ".join(f"{key} {', '.join(names)}" for key, names in named.items() if names)
