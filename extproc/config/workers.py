"""Workers: where each of several worker processes of one machine listens.

    port p of worker i:  p + 100 * i      Unix socket /run/kvring.sock of worker i:  /run/kvring.sock.i

Worker 0 keeps the configured addresses; port 0 stays 0, any free one.
Called by: cli.serve, cli.envoy_config.
"""

from __future__ import annotations

import msgspec

from extproc.config import values

__all__ = ["PORT_STEP", "WORKERS_MAX", "for_worker", "worker_address"]

WORKERS_MAX = 64
PORT_STEP = 100
"""Between the ports of one worker and the next: the three ports of a worker stay together."""


def worker_address(listen: str, index: int) -> str:
    """Where worker `index` [>= 0] listens if worker 0 does at `listen`. Raises ValueError: no address."""
    if listen.startswith("unix:"):
        return f"{listen}.{index}" if index else listen
    host, _, port = listen.rpartition(":")
    if not port.isdecimal():
        raise ValueError(f"{listen!r}: expected HOST:PORT or unix:/PATH")
    if port == "0":
        return listen
    moved = int(port) + PORT_STEP * index
    if moved > 65_535:
        raise ValueError(f"{listen}: worker {index} would need port {moved}; at most 65535")
    return f"{host}:{moved}"


def for_worker(config: values.Config, index: int) -> values.Config:
    """`config` with the addresses of worker `index`. Raises ValueError: no such port."""
    tls = config.tls
    if tls is not None:
        tls = msgspec.structs.replace(tls, listen=worker_address(tls.listen, index))
    return msgspec.structs.replace(
        config,
        tls=tls,
        grpc_listen=worker_address(config.grpc_listen, index),
        health_listen=worker_address(config.health_listen, index),
        admin_listen=worker_address(config.admin_listen, index),
    )
