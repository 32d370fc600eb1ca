"""Command line: `kvring COMMAND`. One module a command; each is imported only when it is asked for.

A command module has `add_arguments(parser)` and `run(args) -> int`, the exit code. Its docstring is the
command's long help.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from extproc import __version__

__all__ = ["COMMANDS", "main"]

# command -> (module, one line of help), in the order of `kvring --help`
COMMANDS = {
    "up": ("up", "run a gateway on this machine: Envoy, kvring, and your or simulated replicas"),
    "demo": ("demo", "the proof: round robin and kvring side by side through a real Envoy"),
    "serve": ("serve", "run the ext_proc sidecar"),
    "check": ("check", "validate a configuration file"),
    "envoy-config": ("envoy_config", "print an Envoy bootstrap for the given replicas"),
    "explain": ("explain", "show how one request would be routed, and why"),
    "simulate": ("simulate", "what if: policies compared on a modelled fleet, without one"),
    "state": ("state", "show a running kvring: pools, endpoints, health, load, cache"),
    "sim-replica": ("sim_replica", "run one simulated vLLM replica"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command in `argv` (default: the process's arguments)."""
    # gRPC writes every failed TLS handshake to stderr, where kvring's JSON log goes; read once, at its import
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="kvring", description="Prefix-aware LLM routing for Envoy.")
    parser.add_argument("--version", action="version", version=f"kvring {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in words if not word.startswith("-")), None)
    for name, (module_name, summary) in COMMANDS.items():
        if name != asked:
            commands.add_parser(name, help=summary)
            continue
        module = importlib.import_module(f"extproc.cli.{module_name}")
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    args = parser.parse_args(words)
    result: int = args.run(args)
    return result
