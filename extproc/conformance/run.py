"""Run: a target reached, its pool learnt, every check looked at; then the report's figures.

Checks run a few at a time, since the worst pickers answer each with a long silence. The order of the outcomes
is the catalogue's.

Never: an exception for what a picker does; a check longer than its deadline. Called by: cli.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from extproc.conformance import play, target
from extproc.conformance.check import Check, FailedError, Outcome, Result, Severity, SkippedError, plain

__all__ = ["Latency", "Report", "run"]

_LEARN = 32  # requests that the pool is learnt from
_CHECK_S = 30.0  # a check's deadline, where answers may take their usual time
_WAITS = 10  # ... and how many full waits it has room for


@dataclass(frozen=True, slots=True)
class Latency:
    """From the request's last byte to its endpoint, over `count` requests one after another [s]."""

    median_s: float
    worst_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Report:
    """`pool`: endpoints known, told or learnt (`pool_told`). `latency`: None if it never picked."""

    address: str
    pool: tuple[str, ...]
    pool_told: bool
    latency: Latency | None
    outcomes: tuple[Outcome, ...]

    def count(self, result: Result, severity: Severity | None = None) -> int:
        """How many checks ended so."""
        return sum(
            outcome.result is result and severity in (None, outcome.check.severity)
            for outcome in self.outcomes
        )

    def conforms(self, *, strict: bool = False) -> bool:
        """Whether no check failed that must not; strict: none at all."""
        return not self.count(Result.FAIL, None if strict else Severity.MUST)


async def run(
    settings: target.Settings, checks: Sequence[Check], jobs: int, tell: Callable[[float], None]
) -> Report:
    """Look at `checks`, `jobs` at a time.

    Args: tell: told what share is done, in [0, 1]. Raises: target.UnreachableError.
    """
    async with target.reached(settings) as reached:
        learnt, latency = await _learn(reached)
        found = reached if reached.pool_told else replace(reached, pool=learnt)
        gate = asyncio.Semaphore(jobs)
        done = 0

        async def one(check: Check) -> Outcome:
            nonlocal done
            async with gate:
                outcome = await _look(check, found)
            done += 1
            tell(done / len(checks))
            return outcome

        outcomes = await asyncio.gather(*map(one, checks))
    return Report(str(settings.address), found.pool, found.pool_told, latency, tuple(outcomes))


async def _learn(reached: target.Target) -> tuple[tuple[str, ...], Latency | None]:
    """The endpoints picked for a row of requests, and how long that took."""
    clock = asyncio.get_running_loop().time
    addresses: set[str] = set()
    took_s: list[float] = []
    async with reached.connect() as connection:
        for number in range(_LEARN):
            on = connection.open()
            began_s = clock()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_deadline_s(reached)):  # messages without end put off every wait's
                    await play.to_pick(on, play.chat(reached, f"learning {number}"))
            if on.end is not None and on.end.code == "UNIMPLEMENTED":
                raise target.UnreachableError(
                    f"{reached.settings.address} speaks gRPC, but serves no ext_proc"
                )
            if on.picked is None:
                break
            took_s.append(clock() - began_s)
            addresses.update(on.picked.addresses)
            await on.half_close()
    latency = Latency(statistics.median(took_s), max(took_s), len(took_s)) if took_s else None
    return tuple(sorted(addresses)), latency


def _deadline_s(reached: target.Target) -> float:
    return max(_CHECK_S, _WAITS * reached.timeout_s)


async def _look(check: Check, reached: target.Target) -> Outcome:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    deadline_s = _deadline_s(reached)
    try:
        async with asyncio.timeout(deadline_s):
            words = await check.look(reached) or ""
        result = Result.PASS
    except SkippedError as why:
        result, words = Result.SKIP, str(why)
    except FailedError as why:
        result, words = Result.FAIL, str(why)
    except TimeoutError:
        result, words = Result.FAIL, f"not over within {deadline_s:g} s"
    except Exception as error:  # noqa: BLE001  (one check's own fault must not take the others' results along)
        result, words = Result.FAIL, f"the check itself failed, please report it: {error!r}"
    return Outcome(check, result, plain(words), clock() - began_s)
