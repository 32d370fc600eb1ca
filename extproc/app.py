"""App: builds everything, in one place; start order and drain order; the only clock and chance.

Start: admin and health (alive, not ready), every pool's members asked once, the ext_proc server, then ready.
Drain, on SIGTERM or SIGINT: health says NOT_SERVING while new streams are still served (`drain_notice_s`, so
that a gateway can notice), then no new streams and the open ones end (`drain_timeout_s`), then the rest
stops. A further signal ends the wait it falls into. Never: a service that outlives `run`.
Called by: cli.serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import random
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc

from extproc import (
    __version__,
    admin,
    config,
    groups,
    log,
    metrics,
    pool,
    router,
    server,
    tls,
    views,
)
from extproc.endpoints import fleet, making

__all__ = ["run"]

_log = logging.getLogger("kvring")


async def run(settings: config.Config) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Prints one line to stdout when ready: `ready {"grpc": ..., "health": ..., "admin": ...}`.
    Raises: server.BindError, OSError if an address can't be listened on; config.ConfigError if a source
    can't be asked from here.
    """
    log.setup(settings.log_level)
    clock, chance = time.monotonic, random.SystemRandom().random
    fleets: dict[str, fleet.Fleet] = {}

    def look(now: float) -> list[views.PoolView]:
        return [one.view(now) for one in fleets.values()]

    counted = metrics.Metrics(look, clock, time.time())
    for group in settings.pools:
        counted.add_pool(group.name)
        chooser = router.Router(config.static_pool(group), config.router_settings(group))
        members = making.make(group, settings.kubernetes_api, clock, chance)
        fleets[group.name] = fleet.Fleet(group, chooser, members, counted, clock, chance)
    pools = groups.Groups(
        [groups.Group(one.router, config.match_of(one.settings)) for one in fleets.values()]
    )

    def answered(name: str, endpoint: pool.EndpointId, well: bool) -> None:  # noqa: FBT001
        fleets[name].answered(endpoint, good=well)

    health_server = server.HealthServer(settings.health_listen)
    admin_server = admin.Admin(look, counted, clock, lambda: health_server.ready)
    ext_proc = server.Server(
        server.Settings(
            settings.grpc_listen,
            settings.message_bytes_max,
            settings.streams_max,
            settings.pick_header,
            None if settings.tls is None else settings.tls.listen,
        ),
        pools,
        settings.exchange_settings(),
        counted,
        clock,
        chance,
        answered,
        _credentials(settings),
    )
    signals = _signals()

    async with contextlib.AsyncExitStack() as stack:
        await admin_server.start(settings.admin_listen)
        stack.push_async_callback(admin_server.stop)
        await health_server.start()
        stack.push_async_callback(health_server.stop)
        watching = asyncio.create_task(_watch(fleets.values()))
        stack.push_async_callback(_end, watching)
        settled = asyncio.create_task(_settled(fleets.values()))
        stack.callback(settled.cancel)
        if await _signalled(signals, watching, settled):
            return
        await ext_proc.start()
        stack.push_async_callback(ext_proc.stop, 0)
        gc.collect()
        gc.freeze()  # what lives for good (rings, modules) is not looked through again: no pauses from it
        await health_server.set_ready(ready=True)
        tls_address = {} if ext_proc.tls_address is None else {"tls": ext_proc.tls_address}
        addresses = {
            "grpc": ext_proc.address,
            **tls_address,
            "health": health_server.address,
            "admin": admin_server.address,
        }
        members_known = {name: len(one.router.pool.endpoints) for name, one in fleets.items()}
        _log.info("ready", extra={"version": __version__, "endpoints": members_known, **addresses})
        sys.stdout.write(f"ready {json.dumps(addresses)}\n")
        sys.stdout.flush()
        await _signalled(signals, watching)
        _log.info("draining", extra={"streams_open": ext_proc.streams_open})
        await health_server.set_ready(ready=False)
        await _wait(signals, settings.drain_notice_s)
        stopping = asyncio.create_task(ext_proc.stop(settings.drain_timeout_s))
        if await _signalled(signals, stopping):
            await ext_proc.stop(0)
        await stopping
        _log.info("stopped")


def _credentials(settings: config.Config) -> grpc.ServerCredentials | None:
    given = settings.tls
    if given is None:
        return None
    names = dict.fromkeys(("localhost", socket.gethostname()))
    files = (given.certificate_file, given.key_file, given.client_ca_file)
    wanted = tls.Settings(*(None if name is None else Path(name) for name in files))
    try:
        return tls.credentials(wanted, list(names), time.time())
    except tls.TlsError as error:
        raise config.ConfigError(str(error)) from error


async def _watch(fleets: Iterable[fleet.Fleet]) -> None:
    """Follow every pool's members, for ever."""
    async with asyncio.TaskGroup() as group:
        for one in fleets:
            group.create_task(one.run())


async def _settled(fleets: Iterable[fleet.Fleet]) -> None:
    """Return when every pool's first members were asked, or their source is too slow."""
    for one in fleets:
        await one.settled.wait()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _signals() -> asyncio.Queue[signal.Signals]:
    """SIGTERM and SIGINT as they come."""
    queue: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, queue.put_nowait, number)
    return queue


async def _signalled(signals: asyncio.Queue[signal.Signals], *tasks: asyncio.Task[Any]) -> bool:
    """Whether a signal came before one of `tasks` was done.

    Raises: what a task failed with; of the watching one, which never ends, that is our own fault.
    """
    signalled = asyncio.create_task(signals.get())
    await asyncio.wait({signalled, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            signalled.cancel()
            task.result()
    return signalled.done()


async def _wait(signals: asyncio.Queue[signal.Signals], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(signals.get(), seconds)
