"""Workers: several `kvring serve` processes on one machine, started, watched and stopped together.

The parent serves nothing: it starts worker i with its own addresses and a directory for the workers' sockets,
starts one that died again (after a while that doubles), and passes SIGTERM on. Where one cannot begin to
serve, a port is taken or the configuration is bad, all end.

Never: a worker that outlives its parent. Called by: cli.serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from extproc import config, gateway, log

__all__ = ["run"]

_log = logging.getLogger("kvring")

_BACKOFF_S = (0.2, 10.0)
_READY_S = 60.0
_GRACE_S = 5.0  # beyond what a worker may take to drain


async def run(path: Path, count: int, settings: config.Config) -> int:
    """Serve with `count` workers until SIGTERM or SIGINT; 0, or 1 if one can't begin.

    Prints `ready {"workers": [...]}` when all serve.
    """
    log.setup(settings.log_level)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    with tempfile.TemporaryDirectory(prefix="kvring-workers-") as directory:
        crew = _Crew(path, count, Path(directory), settings)
        keeping = asyncio.create_task(crew.keep())
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait({keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if stopped.is_set():
            _log.info("draining", extra={"workers": count})
        keeping.cancel()  # which stops all of them, in their own time
        try:
            await keeping
        except asyncio.CancelledError:
            return 0
        except BaseExceptionGroup as group:
            failed, rest = group.split(gateway.ChildError)
            if failed is None or rest is not None:
                raise
            print(f"kvring serve: {failed.exceptions[0]}", file=sys.stderr)
    return 1


class _Crew:
    """All workers."""

    def __init__(self, path: Path, count: int, directory: Path, settings: config.Config) -> None:
        self._path = path
        self._count = count
        self._directory = directory
        self._grace_s = settings.drain_notice_s + settings.drain_timeout_s + _GRACE_S
        self._ready: dict[int, Any] = {}

    async def keep(self) -> None:
        """Keep all running, until cancelled. Raises: gateway.ChildError, in a group, if one can't begin."""
        async with asyncio.TaskGroup() as group:
            for index in range(self._count):
                group.create_task(self._keep(index))

    async def _keep(self, index: int) -> None:
        wait_s = _BACKOFF_S[0]
        while True:
            began_s = asyncio.get_running_loop().time()
            async with self._worker(index) as worker:
                self._tell(index, worker)
                code = await worker.wait()
            lasted_s = asyncio.get_running_loop().time() - began_s
            wait_s = _BACKOFF_S[0] if lasted_s > _BACKOFF_S[1] else min(2 * wait_s, _BACKOFF_S[1])
            _log.error("a worker died: starting it again", extra={"worker": index, "exit_code": code})
            await asyncio.sleep(wait_s)

    @contextlib.asynccontextmanager
    async def _worker(self, index: int) -> Any:
        words = ["serve", "--config", str(self._path), "--workers", str(self._count)]
        words += ["--worker", str(index), "--sockets", str(self._directory)]
        if index in self._ready:  # where Envoy looks for it, also if the port was any free one
            words += ["--addresses", json.dumps(self._ready[index])]
        async with gateway.command(
            words, name=f"worker {index}", ready_timeout_s=_READY_S, own_log=False
        ) as worker:
            try:
                yield worker
            finally:
                await worker.stop(self._grace_s)

    def _tell(self, index: int, worker: gateway.Child) -> None:
        first = len(self._ready) < self._count
        self._ready[index] = worker.ready
        if first and len(self._ready) == self._count:
            ready = [self._ready[number] for number in range(self._count)]
            print(f"ready {json.dumps({'workers': ready})}", flush=True)
