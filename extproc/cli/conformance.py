"""Asks an endpoint picker, kvring or another, whether it keeps to the Endpoint Picker Protocol.

  kvring conformance 10.0.0.7:9002                              plaintext; the pool is learnt
  kvring conformance epp:9002 --insecure-tls --endpoints 10.0.0.1:8000,10.0.0.2:8000
  kvring conformance epp:9002 --only 'duplex-*,pick-*' --junit conformance.xml
  kvring conformance --list                                     what is asked, and by what right

It plays the gateway's side of ext_proc streams; no Envoy, no model server is needed, and none is asked
anything. The picker sees some hundred requests for --model that never reach a model server: run it against a
picker that serves nobody else.

Exit code: 0 all that must be so is so; 1 something is not (with --strict: nor what should be); 2 the picker
can't be reached, or the command is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import ssl
import sys
from pathlib import Path

from rich.console import Console

from extproc.bootstrap import address
from extproc.cli import progress, ranges
from extproc.conformance import catalogue, document, report, target
from extproc.conformance import run as run_

__all__ = ["add_arguments", "run"]

_WIDTH = 130  # where no terminal tells its own


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `kvring conformance`."""
    parser.add_argument(
        "target", nargs="?", metavar="TARGET", help="the picker's ext_proc port, HOST:PORT or unix:/PATH"
    )
    reach = parser.add_argument_group("reaching it")
    secure = reach.add_mutually_exclusive_group()
    secure.add_argument("--tls", action="store_true", help="TLS, certificate verified")
    secure.add_argument("--insecure-tls", action="store_true", help="TLS, certificate not verified")
    reach.add_argument("--ca", type=Path, metavar="FILE", help="TLS, verified by these PEM certificates")
    reach.add_argument(
        "--health",
        metavar="HOST:PORT",
        help="its health port, plaintext (default: port 9003 of TARGET's host, else TARGET)",
    )
    reach.add_argument(
        "--timeout-s",
        type=ranges.number(0.05, 600),
        default=5.0,
        metavar="S",
        help="how long one answer may take (default: %(default)g)",
    )
    about = parser.add_argument_group("about it")
    about.add_argument(
        "--endpoints", default="", metavar="A:1,B:2", help="all addresses of its pool (default: learnt)"
    )
    about.add_argument(
        "--model",
        default="conformance-fake-model",
        metavar="NAME",
        help="a model that it serves (default: %(default)s)",
    )
    about.add_argument("--hooks", action="store_true", help="it is set to obey the gateway tests' hooks")
    looks = parser.add_argument_group("what to look at")
    looks.add_argument("--only", default="*", metavar="ID,..", help="these checks; * stands for anything")
    looks.add_argument("--list", action="store_true", help="show the checks and leave")
    looks.add_argument(
        "--jobs",
        type=ranges.whole(1, 64),
        default=4,
        metavar="N",
        help="checks at a time (default: %(default)s)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML, too")
    output.add_argument("--json", type=Path, metavar="FILE", help="write JSON, too")
    output.add_argument("--strict", action="store_true", help="what should be so must be so")


def run(args: argparse.Namespace) -> int:
    """0, 1 or 2; see above."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    try:
        checks = catalogue.only([part.strip() for part in args.only.split(",") if part.strip()])
        if args.list:
            console.print(report.catalogue(checks))
            return 0
        settings = _settings(args)
        began = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        with progress.shown("asking") as tell:
            found = asyncio.run(run_.run(settings, checks, args.jobs, tell))
        console.print(report.drawn(found))
        if args.junit:
            _write("--junit", args.junit, document.to_junit(found, began, strict=args.strict))
        if args.json:
            text = json.dumps(document.to_json(found, strict=args.strict), indent=2)
            _write("--json", args.json, f"{text}\n".encode())
    except (ValueError, OSError, target.UnreachableError) as error:
        print(f"kvring conformance: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0 if found.conforms(strict=args.strict) else 1


def _settings(args: argparse.Namespace) -> target.Settings:
    """Raises: ValueError, OSError."""
    if not args.target:
        raise ValueError("no TARGET; see kvring conformance --help")
    pool = tuple(str(address.parse(part.strip())) for part in args.endpoints.split(",") if part.strip())
    return target.Settings(
        address.parse(args.target),
        _tls(args),
        address.parse(args.health) if args.health else None,
        tuple(dict.fromkeys(pool)),
        args.model,
        args.timeout_s,
        args.hooks,
    )


def _write(option: str, file: Path, content: bytes) -> None:
    """Raises: ValueError."""
    try:
        file.write_bytes(content)
    except OSError as error:
        raise ValueError(f"{option} {file}: can't be written: {error.strerror or error}") from error


def _tls(args: argparse.Namespace) -> ssl.SSLContext | None:
    if not (args.tls or args.insecure_tls or args.ca):
        return None
    if args.insecure_tls and args.ca:
        raise ValueError("--ca and --insecure-tls exclude each other")
    context = ssl.create_default_context()
    if args.ca:
        try:
            context = ssl.create_default_context(cafile=str(args.ca))
        except (ssl.SSLError, OSError) as error:
            raise ValueError(f"--ca {args.ca}: no PEM certificates: {error.strerror or error}") from error
    if args.insecure_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context
