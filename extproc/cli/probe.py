"""Ask a kvring's health over gRPC, from anywhere: the container's own check, and `helm test`.

  kvring probe                              the kvring on this machine
  kvring probe kvring:9003 --timeout-s 30   one behind a Service, once it serves

Exit code 0: it says SERVING in time, 1: it does not, 2: the address can't be one.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.bootstrap import address
from extproc.cli import ranges

__all__ = ["add_arguments", "run"]

_PAUSE_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add whom to ask, for what, and how long."""
    parser.add_argument(
        "address",
        nargs="?",
        default="127.0.0.1:9003",
        metavar="HOST:PORT",
        help="its health port (default: %(default)s)",
    )
    parser.add_argument("--service", default="readiness", help="liveness or readiness (default: %(default)s)")
    parser.add_argument(
        "--timeout-s",
        type=ranges.number(0.1, 3600),
        default=3.0,
        metavar="S",
        help="how long to go on asking (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """0 once the answer is SERVING, 1 if it is not in time."""
    try:
        where = str(address.parse(args.address))
    except ValueError as error:
        print(f"kvring probe: {error}", file=sys.stderr)
        return 2
    deadline_s = time.monotonic() + args.timeout_s
    said = "no answer"
    with grpc.insecure_channel(where) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # the stubs of its types know no methods
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(service=args.service), timeout=left_s)
            except grpc.RpcError as error:
                said = error.code().name
            else:
                said = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    print(f"{where} {args.service}: {said}")
                    return 0
            time.sleep(min(_PAUSE_S, max(0.0, deadline_s - time.monotonic())))
    print(f"kvring probe: {where} {args.service}: {said}", file=sys.stderr)
    return 1
