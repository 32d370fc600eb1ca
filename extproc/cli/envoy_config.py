"""Prints an Envoy bootstrap that asks kvring where each request should go, as commented YAML.

  kvring envoy-config --replica replica-0=10.0.0.1:8000 --replica replica-1=10.0.0.2:8000 > envoy.yaml
  kvring envoy-config --config kvring.yaml > envoy.yaml     the endpoints of kvring's own configuration
  kvring envoy-config --config kvring.yaml --fragments      only the pieces, for an Envoy that exists

Try the result with `envoy --mode validate -c envoy.yaml`. docs/envoy.md explains every choice in it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from extproc import bootstrap, config
from extproc.cli import ranges
from extproc.protocol import BodyMode

__all__ = ["add_arguments", "endpoints", "run"]

_BODY_MODES = (BodyMode.BUFFERED_PARTIAL, BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED)

_HEADING = """\
Envoy bootstrap for kvring, printed by `kvring envoy-config`; start it with `envoy -c THIS_FILE`.
Needs Envoy 1.40 or later, or see allow_content_length_header. Every choice is explained in docs/envoy.md."""

_HEADING_FRAGMENTS = """\
Pieces for an existing Envoy configuration, printed by `kvring envoy-config --fragments`:
early_header_mutation_extensions and http_filters go into the http_connection_manager (the filter as the
last one before the router), routes into its virtual host, clusters beside the others."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--replica",
        action="append",
        metavar="[NAME=]HOST:PORT",
        help="a model server; repeat for each (names default to replica-0, replica-1, ...)",
    )
    source.add_argument(
        "--config", type=Path, metavar="FILE", help="kvring.yaml: the endpoints that its pools list"
    )
    source.add_argument(
        "--endpoints-file",
        metavar="PATH",
        help="take the endpoints from this file while running, in Envoy's own form (EDS); "
        "see envoy/endpoints.yaml",
    )
    parser.add_argument(
        "--kvring",
        action="append",
        metavar="ADDR",
        help="ext_proc address HOST:PORT or unix:/PATH of a kvring process; repeat for each "
        "(default: 127.0.0.1:9002)",
    )
    parser.add_argument(
        "--kvring-health-port",
        type=int,
        default=9003,
        metavar="PORT",
        help="kvring's gRPC health port, 0 = check only that it accepts connections (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=ranges.whole(1, config.WORKERS_MAX),
        default=1,
        metavar="N",
        help="as in `kvring serve --workers N`, for each --kvring: all of its workers (default: %(default)s)",
    )
    parser.add_argument(
        "--listen", default="0.0.0.0:10000", metavar="IP:PORT", help="for clients (default: %(default)s)"
    )
    parser.add_argument(
        "--admin", default="127.0.0.1:9901", metavar="IP:PORT", help="Envoy's admin (default: %(default)s)"
    )
    parser.add_argument(
        "--body-mode",
        type=str.upper,
        choices=[mode.name for mode in _BODY_MODES],
        default=BodyMode.BUFFERED_PARTIAL.name,
        help="how Envoy shows request bodies to kvring (default: %(default)s)",
    )
    parser.add_argument(
        "--steering",
        choices=["endpoint", "hash"],
        default="endpoint",
        help="as in the pool of kvring.yaml: kvring names the endpoint, or Envoy's own consistent hashing "
        "chooses by a hash that kvring sets (default: %(default)s)",
    )
    parser.add_argument(
        "--hash-algorithm",
        type=str.upper,
        choices=["RING_HASH", "MAGLEV"],
        help="with --steering hash (default: RING_HASH)",
    )
    parser.add_argument(
        "--hash-balance-percent",
        type=ranges.whole(101, 1000),
        metavar="N",
        help="with --steering hash: an endpoint with more active requests than N per cent of the mean takes "
        "no more of its keys (default: 150)",
    )
    parser.add_argument(
        "--body-bytes-max",
        type=int,
        default=bootstrap.BODY_BYTES_MAX,
        metavar="BYTES",
        help="of a body, how much kvring sees and a retry can resend (default: %(default)s)",
    )
    parser.add_argument(
        "--message-timeout-s",
        type=float,
        default=0.25,
        metavar="S",
        help="longest wait for kvring, per message (default: %(default)s)",
    )
    parser.add_argument(
        "--fail-closed", action="store_true", help="answer 503 when kvring is down, instead of balancing"
    )
    parser.add_argument(
        "--access-log", default="", metavar="PATH", help="one JSON line a request (default: off)"
    )
    parser.add_argument(
        "--decision-header",
        action="store_true",
        help="for debugging: answers say in x-kvring-decision why they came from where they did "
        "(needs decision_metadata: true in kvring.yaml)",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write it there, where no shell can (default: print it)"
    )
    _tls_arguments(parser)
    parser.add_argument("--fragments", action="store_true", help="print the pieces, not a whole bootstrap")


def _tls_arguments(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument_group("TLS, each a PEM file that Envoy reads")
    files.add_argument(
        "--kvring-tls", action="store_true", help="speak TLS to kvring; without --kvring-ca its certificate "
        "is not checked"
    )  # fmt: skip
    files.add_argument("--kvring-ca", default="", metavar="FILE", help="check kvring's certificate by this")
    files.add_argument("--kvring-name", default="", metavar="NAME", help="... and that it is for this name")
    files.add_argument("--kvring-cert", default="", metavar="FILE", help="Envoy's own for kvring (mTLS)")
    files.add_argument("--kvring-key", default="", metavar="FILE", help="... and its key")
    files.add_argument("--listen-cert", default="", metavar="FILE", help="TLS for clients: the certificate")
    files.add_argument("--listen-key", default="", metavar="FILE", help="... and its key")


def run(args: argparse.Namespace) -> int:
    """0, with the YAML on stdout; 2, with one line on stderr, for values that cannot be."""
    try:
        listener = _listener(args)
        if args.fragments:
            text = bootstrap.to_yaml(bootstrap.fragments(listener), heading=_HEADING_FRAGMENTS)
        else:
            text = bootstrap.to_yaml(bootstrap.build([listener], admin=args.admin), heading=_HEADING)
        if args.output:
            args.output.write_text(text, encoding="utf-8")
    except (ValueError, OSError, config.ConfigError) as error:
        print(f"kvring envoy-config: {error}", file=sys.stderr)
        return 2
    if not args.output:
        print(text, end="")
    return 0


def endpoints(given: Sequence[str]) -> list[bootstrap.Endpoint]:
    """The endpoints written as "[NAME=]HOST:PORT". Raises ValueError."""
    found = []
    for number, text in enumerate(given):
        name, equals, address = text.rpartition("=")
        found.append(bootstrap.Endpoint(name if equals else f"replica-{number}", address))
    return found


def _listener(args: argparse.Namespace) -> bootstrap.Listener:
    sidecars = [
        bootstrap.Sidecar(config.worker_address(address, worker), _health_port(args, worker))
        for address in args.kvring or ["127.0.0.1:9002"]
        for worker in range(args.workers)
    ]
    given = (args.kvring_ca, args.kvring_cert, args.kvring_key, args.kvring_name)
    clients = (args.listen_cert, args.listen_key)
    return bootstrap.Listener(
        args.listen,
        _from_config(args.config) if args.config else endpoints(args.replica or ()),
        steering=bootstrap.Steering(
            sidecars,
            body_mode=BodyMode[args.body_mode],
            message_timeout_s=args.message_timeout_s,
            fail_open=not args.fail_closed,
            tls=bootstrap.Tls(*given) if args.kvring_tls or any(given) else None,
            hash=_hash(args),
        ),
        body_bytes_max=args.body_bytes_max,
        access_log_path=args.access_log,
        expose_decision=args.decision_header,
        endpoints_path=args.endpoints_file or "",
        tls=bootstrap.Tls("", *clients) if any(clients) else None,
    )


def _hash(args: argparse.Namespace) -> bootstrap.Hash | None:
    given = {"algorithm": args.hash_algorithm, "balance_percent": args.hash_balance_percent}
    wanted = {name: value for name, value in given.items() if value is not None}
    if args.steering == "hash":
        return bootstrap.Hash(**wanted)
    if wanted:
        raise ValueError("--hash-algorithm and --hash-balance-percent need --steering hash")
    return None


def _health_port(args: argparse.Namespace, worker: int) -> int:
    where = config.worker_address(f"127.0.0.1:{args.kvring_health_port}", worker)
    return int(where.rpartition(":")[2])


def _from_config(path: Path) -> list[bootstrap.Endpoint]:
    pools = config.load(path, os.environ).pools
    listed = [endpoint for pool in pools for endpoint in pool.endpoints or ()]
    if not listed:
        raise ValueError(f"{path} lists no endpoints: name them with --replica or --endpoints-file")
    return [bootstrap.Endpoint(endpoint.name, endpoint.address) for endpoint in listed]
