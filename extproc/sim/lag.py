"""Lag: whether this process kept up with the load it made.

A client that is too slow reads late and reports its own delay as the engine's. So it is measured: a timer
is set again and again, and how late it fires is how late any chunk may have been read. With the CPU time
used, that says whether a result can be trusted on this machine.

Invariant: real seconds, never engine time. Called by: driver. Read by: report.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "Meter", "warnings"]

# Above either, the client's own delay is no longer small against what it measures.
_LAG_P99_MS_MAX = 25.0
_CLIENT_CPU_SHARE_MAX = 0.9

_PERIOD_S = 0.02
_LAGS_MAX = 100_000
_PROC_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class Machine:
    """How the machine coped.

    `client_cpu_share`: CPU time of this process over real time [1 = one core]. `machine_cpu_share`: busy
    share of all cores [0..1], None where the kernel does not say. `loop_lag_p99_ms`, `loop_lag_max_ms`:
    lateness of a timer [real ms]. `cores`: cores this process may use.
    """

    client_cpu_share: float
    machine_cpu_share: float | None
    loop_lag_p99_ms: float
    loop_lag_max_ms: float
    cores: int


class Meter:
    """Measures from its making until `machine` is called."""

    def __init__(self) -> None:
        self._lags_s: deque[float] = deque(maxlen=_LAGS_MAX)
        self._real_s = time.perf_counter()
        self._cpu_s = time.process_time()
        self._ticks = _cpu_ticks()

    async def run(self) -> None:
        """Measure the event loop's lag until cancelled."""
        while True:
            due = time.perf_counter() + _PERIOD_S
            await asyncio.sleep(_PERIOD_S)
            self._lags_s.append(max(0.0, time.perf_counter() - due))

    def machine(self) -> Machine:
        """The figures so far."""
        real_s = max(1e-9, time.perf_counter() - self._real_s)
        lags_s = sorted(self._lags_s) or [0.0]
        return Machine(
            client_cpu_share=(time.process_time() - self._cpu_s) / real_s,
            machine_cpu_share=_busy_share(self._ticks, _cpu_ticks()),
            loop_lag_p99_ms=lags_s[int(0.99 * (len(lags_s) - 1))] * 1000,
            loop_lag_max_ms=lags_s[-1] * 1000,
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        )


def warnings(machine: Machine) -> list[str]:
    """Why the figures may be the machine's and not the routing's; empty when it kept up."""
    found = []
    if machine.loop_lag_p99_ms > _LAG_P99_MS_MAX:
        found.append(
            f"the load client was late by up to {machine.loop_lag_p99_ms:.0f} ms (P99, real time; at most "
            f"{_LAG_P99_MS_MAX:.0f} ms is fine): latencies of both arms are overstated; try a lower --speed"
        )
    if machine.client_cpu_share > _CLIENT_CPU_SHARE_MAX:
        found.append(
            f"the load client used {machine.client_cpu_share:.0%} of a core and may have been the "
            "bottleneck; try a lower --speed"
        )
    return found


def _cpu_ticks() -> tuple[int, int] | None:
    """Idle and total clock ticks of all cores since boot; None where there is no /proc/stat."""
    try:
        first_line = _PROC_STAT.read_text(encoding="ascii").partition("\n")[0]
        ticks = [int(field) for field in first_line.split()[1:9]]
    except (OSError, ValueError):
        return None
    return (ticks[3] + ticks[4], sum(ticks)) if len(ticks) == 8 else None


def _busy_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[1] <= before[1]:
        return None
    return 1 - (after[0] - before[0]) / (after[1] - before[1])
