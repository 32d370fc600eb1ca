"""App: builds everything, in one place; start order and drain order; the only clock and chance.

Start: admin and health (alive, not ready), one probe of every endpoint, the ext_proc server, then ready.
Drain, on SIGTERM or SIGINT: health says NOT_SERVING while new streams are still served (`drain_notice_s`, so
that a gateway can notice), then no new streams and the open ones end (`drain_timeout_s`), then the rest
stops. A further signal ends the wait it falls into. Never: a service that outlives `run`.
Called by: cli.serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import signal
import sys
import time
from typing import Any

from extproc import __version__, admin, config, log, metrics, router, server
from extproc.endpoints import health

__all__ = ["run"]

_log = logging.getLogger("kvring")


async def run(settings: config.Config) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Prints one line to stdout when ready: `ready {"grpc": ..., "health": ..., "admin": ...}`.
    Raises: server.BindError, OSError if an address can't be listened on.
    """
    log.setup(settings.log_level)
    clock, chance = time.monotonic, random.SystemRandom().random
    group = settings.pools[0]
    chooser = router.Router(config.static_pool(group), config.router_settings(group))
    counted = metrics.Metrics(chooser, clock, time.time())
    health_server = server.HealthServer(settings.health_listen)
    admin_server = admin.Admin(chooser, counted, clock, lambda: health_server.ready)
    ext_proc = server.Server(
        server.Settings(
            settings.grpc_listen, settings.message_bytes_max, settings.streams_max, settings.pick_header
        ),
        chooser,
        settings.exchange_settings(),
        counted,
        clock,
        chance,
    )
    prober = health.Prober(group.health, chooser.pool, chooser.publish, counted, chance)
    signals = _signals()

    async with contextlib.AsyncExitStack() as stack:
        await admin_server.start(settings.admin_listen)
        stack.push_async_callback(admin_server.stop)
        await health_server.start()
        stack.push_async_callback(health_server.stop)
        probing = asyncio.create_task(prober.run())
        stack.callback(probing.cancel)
        probed = asyncio.create_task(prober.probed_all.wait())  # bounded by the probe's timeout
        stack.callback(probed.cancel)
        if await _signalled(signals, probing, probed):
            return
        await ext_proc.start()
        stack.push_async_callback(ext_proc.stop, 0)
        await health_server.set_ready(ready=True)
        addresses = {
            "grpc": ext_proc.address,
            "health": health_server.address,
            "admin": admin_server.address,
        }
        _log.info("ready", extra={"version": __version__, "endpoints": len(group.endpoints), **addresses})
        sys.stdout.write(f"ready {json.dumps(addresses)}\n")
        sys.stdout.flush()
        await _signalled(signals, probing)
        _log.info("draining", extra={"streams_open": ext_proc.streams_open})
        await health_server.set_ready(ready=False)
        await _wait(signals, settings.drain_notice_s)
        stopping = asyncio.create_task(ext_proc.stop(settings.drain_timeout_s))
        if await _signalled(signals, stopping):
            await ext_proc.stop(0)
        await stopping
        _log.info("stopped")


def _signals() -> asyncio.Queue[signal.Signals]:
    """SIGTERM and SIGINT as they come."""
    queue: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, queue.put_nowait, number)
    return queue


async def _signalled(signals: asyncio.Queue[signal.Signals], *tasks: asyncio.Task[Any]) -> bool:
    """Whether a signal came before one of `tasks` was done.

    Raises: what a task failed with; of the prober, which never ends, that is our own fault.
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
