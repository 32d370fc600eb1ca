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
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from extproc import (
    __version__,
    admin,
    config,
    groups,
    hasher,
    journal,
    log,
    metrics,
    needs,
    outbox,
    pool,
    router,
    server,
    telling,
    views,
)
from extproc.endpoints import fleet, making
from extproc.news import view
from extproc.share import sharing as share
from extproc.share import siblings as siblings_

__all__ = ["Siblings", "run"]

_log = logging.getLogger("kvring")


@dataclass(frozen=True, slots=True)
class Siblings:
    """Worker `index` of `count` on this machine, whose sockets are in `directory`."""

    directory: Path
    index: int
    count: int


async def run(  # noqa: PLR0915  (what is built, started and drained, in order, in one place)
    settings: config.Config, siblings: Siblings | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; `siblings`: the other workers of this machine.

    Prints one line to stdout when ready: `ready {"grpc": ..., "health": ..., "admin": ...}`.
    Raises: server.BindError, OSError if an address can't be listened on; config.ConfigError if a source
    can't be asked from here; admin.AccessError if its token can't be used.
    """
    log.setup(settings.log_level)
    clock, chance = time.monotonic, random.SystemRandom().random
    fleets: dict[str, fleet.Fleet] = {}
    entries = None if settings.store is None and siblings is None else outbox.Outbox()
    sharing: share.Sharing | None = None

    def look(now: float) -> list[views.PoolView]:
        return [one.view(now) for one in fleets.values()]

    def look_at_sharing() -> views.SharingView | None:
        return None if sharing is None else sharing.look()

    counted = metrics.Metrics(look, clock, time.time(), look_at_sharing)
    fleets.update(_fleets(settings, entries, counted, clock, chance))
    hashers = _hashers(settings, counted)
    pools = groups.Groups(
        [
            groups.Group(hashers.get(group.name) or fleets[group.name].router, config.match_of(group))
            for group in settings.pools
        ]
    )

    if entries is not None:
        sharing = _sharing(settings, siblings, fleets, entries, clock, chance)

    def answered(name: str, endpoint: pool.Endpoint, well: bool) -> None:  # noqa: FBT001
        fleets[name].answered(endpoint, good=well)

    health_server = server.HealthServer(settings.health_listen)
    latest = journal.Journal()
    tracer = None if settings.traces is None else needs.tracer(settings.traces, time.time_ns)
    admin_server = admin.Admin(
        look, counted, clock, lambda: health_server.ready, _desk(settings, pools, latest), look_at_sharing
    )
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
        telling.Teller(counted, latest, log_share=settings.log_choices, chance=chance, tracer=tracer),
        None if sharing is None else sharing.poke,
        _credentials(settings, counted),
    )
    signals = _signals()

    async with contextlib.AsyncExitStack() as stack:
        if tracer is not None:
            stack.push_async_callback(asyncio.to_thread, tracer.stop)
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
        if sharing is not None:
            await _begin(sharing, stack)
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
        _tell_ready(addresses, fleets)
        await _signalled(signals, watching)
        _log.info("draining", extra={"streams_open": ext_proc.streams_open})
        await health_server.set_ready(ready=False)
        await _wait(signals, settings.drain_notice_s)
        stopping = asyncio.create_task(ext_proc.stop(settings.drain_timeout_s))
        if await _signalled(signals, stopping):
            await ext_proc.stop(0)
        await stopping
        _log.info("stopped")


def _tell_ready(addresses: Mapping[str, str], fleets: Mapping[str, fleet.Fleet]) -> None:
    members_known = {name: len(one.router.pool.endpoints) for name, one in fleets.items()}
    _log.info("ready", extra={"version": __version__, "endpoints": members_known, **addresses})
    sys.stdout.write(f"ready {json.dumps(addresses)}\n")
    sys.stdout.flush()


def _fleets(
    settings: config.Config,
    entries: outbox.Outbox | None,
    counted: metrics.Metrics,
    clock: Callable[[], float],
    chance: Callable[[], float],
) -> dict[str, fleet.Fleet]:
    """A fleet for each pool, by name."""
    found = {}
    for group in settings.pools:
        if group.steering == "hash":
            continue
        counted.add_pool(group.name, group.gpus)
        tuned = config.router_settings(group, settings.replicas)
        chooser = router.Router(config.static_pool(group), tuned, entries)
        members = making.make(group, settings.kubernetes_api, clock, chance)
        found[group.name] = fleet.Fleet(group, chooser, members, counted, clock, chance)
    return found


def _hashers(settings: config.Config, counted: metrics.Metrics) -> dict[str, hasher.Hasher]:
    """A hasher for each pool whose endpoints Envoy's own hashing chooses, by name."""
    found = {group.name: config.hasher_of(group) for group in settings.pools}
    for name, one in found.items():
        if one is not None:
            counted.add_hasher(name)
    return {name: one for name, one in found.items() if one is not None}


def _sharing(
    settings: config.Config,
    siblings: Siblings | None,
    fleets: Mapping[str, fleet.Fleet],
    entries: outbox.Outbox,
    clock: Callable[[], float],
    chance: Callable[[], float],
) -> share.Sharing:
    """How this process shares: through the store where there is one, which workers then use too.

    Raises: config.ConfigError without the client library.
    """
    routers = {name: one.router for name, one in fleets.items()}
    shared = view.View(random.SystemRandom().randrange(1, 1 << 63), routers, entries)
    if settings.store is None:
        if siblings is None:
            raise RuntimeError("nobody to share with")
        among = siblings_.Siblings(siblings.directory, siblings.index, siblings.count)
        return share.Sharing(shared, entries, among, clock)
    return share.Sharing(shared, entries, needs.store_link(settings.store, chance), clock)


async def _begin(sharing: share.Sharing, stack: contextlib.AsyncExitStack) -> None:
    """Share from now on until `stack` ends, and hear first what the others know."""
    carrying = asyncio.create_task(sharing.run())
    stack.push_async_callback(_end, carrying)
    stack.push_async_callback(sharing.stop)
    await sharing.settle()


def _desk(settings: config.Config, pools: groups.Groups, latest: journal.Journal) -> admin.Desk:
    """What the page shows beside the state. Raises: admin.AccessError."""
    access = admin.Access(settings.admin_token_file)
    return admin.Desk(pools, settings.exchange_settings(), latest, config.plain(settings), access)


def _credentials(settings: config.Config, counted: metrics.Metrics) -> grpc.ServerCredentials | None:
    given = settings.tls
    if given is None:
        return None
    ends = counted.certificate_end.labels("self_signed" if given.certificate_file is None else "file")
    return needs.credentials(given, time.time, ends.set)


async def _watch(fleets: Iterable[fleet.Fleet]) -> None:
    """Follow every pool's members, for ever."""
    async with asyncio.TaskGroup() as group:
        for one in fleets:
            group.create_task(one.run())
        await asyncio.Event().wait()  # also where no pool has members to follow


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
    # Not asyncio.wait_for, which before Python 3.12 loses a cancellation that comes with the result.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await signals.get()
