"""Ports: ports of 127.0.0.1 that are a test's own, also while nothing listens there.

A port that was found free, or that a server has just left, may be given to another process before a server
of ours is there. A socket that is bound and does not listen holds it: who connects is refused, nobody who
asks for any port is given this one, and who names it may listen, as all servers here set SO_REUSEADDR.
"""

from __future__ import annotations

import socket
import sys

from aiohttp import web

from extproc.sim import replica

__all__ = ["leave", "own"]


def own() -> int:
    """A port that is ours until this process ends."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port: int = holder.getsockname()[1]
    if sys.platform == "linux":
        holder.detach()  # open, and nobody's to close
    else:  # nobody could listen beside it
        holder.close()
    return port


async def leave(runner: web.AppRunner) -> None:
    """Stop serving, with nobody left waiting on a connection that had just arrived."""
    for site in runner.sites:
        await replica.stop_listening(site._server)  # type: ignore[attr-defined]
    await runner.cleanup()
