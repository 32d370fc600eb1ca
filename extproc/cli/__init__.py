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
from typing import NoReturn

from extproc import __version__

__all__ = ["COMMANDS", "main"]


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the options of a command would fill a screen above it."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with exit code 2."""
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}; see {self.prog} --help\n")


# command -> (module, one line of help), in the order of `kvring --help`
COMMANDS = {
    "up": ("up", "run a gateway on this machine: Envoy, kvring, and your or simulated replicas"),
    "demo": ("demo", "the proof: round robin and kvring side by side through a real Envoy"),
    "serve": ("serve", "run the ext_proc sidecar"),
    "check": ("check", "validate a configuration file, or look for traps in an Envoy's"),
    "envoy-config": ("envoy_config", "print an Envoy bootstrap, or its pieces, for your replicas"),
    "explain": ("explain", "show how one request would be routed, and why"),
    "simulate": ("simulate", "what if: policies compared on a modelled fleet, without one"),
    "doctor": ("doctor", "read your engines' metrics: what is wrong, what to do, what it is worth"),
    "conformance": ("conformance", "ask an endpoint picker whether it keeps to the protocol"),
    "probe": ("probe", "ask a kvring's health, as containers and helm test do"),
    "state": ("state", "show a running kvring: pools, endpoints, health, load, cache"),
    "sim-replica": ("sim_replica", "run simulated vLLM replicas"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command in `argv` (default: the process's arguments)."""
    # gRPC writes every failed TLS handshake to stderr, where kvring's JSON log goes; read once, at its import
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _Parser(prog="kvring", description="Prefix-aware LLM routing for Envoy.")
    parser.add_argument("--version", action="version", version=f"kvring {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in words if not word.startswith("-")), None)
    command: argparse.ArgumentParser = parser
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
    args, unknown = parser.parse_known_args(words)
    if unknown:  # by the command: argparse would have `kvring` say it, which knows none of its options
        command.error(f"unrecognized arguments: {' '.join(unknown)}")
    result: int = args.run(args)
    return result
