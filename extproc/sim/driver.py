"""Driver: closed-loop HTTP load from simulated users, the same on every arm at the same time.

An arm is a way to route (one URL). Each user of each arm is a task: think, send, read the stream, again.
The arms run side by side in one process, so whatever else the machine does slows them alike; they share
nothing but that. Durations are engine time (`sample`); only the machine's own figures are real time.

TTFT is the moment the first chunk with text arrives, not the response headers (engines send those before
prefill) and not the end of a buffer. Chunks are not parsed, only searched: a JSON parse per token would
make the client the bottleneck. The last one, which carries usage, is parsed.

Invariant: a request begun before the end is read to its end, however slow: cutting the slow ones off
would flatter the worse arm. Called by: demo. Source: facts on streams in docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from extproc.sim import lag, sample, workload

__all__ = ["ERROR_KINDS", "Driver", "Schedule"]

# `http` is followed by the status: "http 503".
ERROR_KINDS = ("connect", "http", "stream_error", "cut_off", "no_usage", "timeout")

_CHAT_PATH = "/v1/chat/completions"
# Engines answer within seconds; this bounds a hung stream [real seconds].
_REQUEST_TIMEOUT_S = 60.0
# The usage chunk and [DONE] stand in the last bytes of a stream.
_TAIL_BYTES = 4096
_FIRST_TOKEN = re.compile(rb'"content":\s*"[^"]')
_ERROR_EVENT = re.compile(rb'data:\s*\{"error"')
_DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the load runs.

    `duration_s`: no request begins later than this [engine seconds, > 0]. `speed`: engine seconds per real
    second [> 0].
    """

    duration_s: float
    speed: float


class Driver:
    """Load on several arms; `samples` and `in_flight` may be read at any time while it runs."""

    def __init__(self, arms: Mapping[str, str], load: workload.Workload, schedule: Schedule) -> None:
        """`arms`: name -> base URL such as "http://127.0.0.1:10000"."""
        self.samples: dict[str, list[sample.Sample]] = {name: [] for name in arms}
        self.in_flight: dict[str, int] = dict.fromkeys(arms, 0)
        self._arms = dict(arms)
        self._load = load
        self._schedule = schedule
        self._started = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Engine seconds since `run` began."""
        return (time.perf_counter() - self._started) * self._schedule.speed

    async def run(self) -> lag.Machine:
        """Drive until the schedule is over and every request begun has ended.

        The result is how well this process kept up. Failures of requests become samples; anything else
        that goes wrong is raised after the other users are cancelled.
        """
        timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        meter = lag.Meter()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            self._started = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                metering = group.create_task(meter.run())
                users = [
                    group.create_task(self._user(session, arm, user))
                    for arm in self._arms
                    for user in range(self._load.user_count)
                ]
                await asyncio.wait(users)
                metering.cancel()
        return meter.machine()

    async def _user(self, session: aiohttp.ClientSession, arm: str, user: int) -> None:
        # Users who all begin at once would meet in waves for the whole run.
        offset_s = random.Random(f"{self._load.seed}/offset/{user}").uniform(*workload.THINK_S)
        await self._sleep(offset_s)
        for request in self._load.requests(user):
            await self._sleep(request.think_s)
            if self.elapsed_s >= self._schedule.duration_s:
                return
            self.in_flight[arm] += 1
            try:
                self.samples[arm].append(await self._ask(session, arm, request))
            finally:
                self.in_flight[arm] -= 1

    async def _sleep(self, engine_s: float) -> None:
        await asyncio.sleep(engine_s / self._schedule.speed)

    async def _ask(
        self, session: aiohttp.ClientSession, arm: str, request: workload.Request
    ) -> sample.Sample:
        """The sample of one request, sent now."""
        started_s = self.elapsed_s
        answer = _Answer()
        try:
            async with session.post(
                self._arms[arm] + _CHAT_PATH,
                data=request.body,
                headers={"content-type": "application/json"},
            ) as response:
                answer.endpoint = response.headers.get("x-replica", "")
                if response.status == 200:
                    async for chunk in response.content.iter_any():
                        answer.feed(chunk, self.elapsed_s)
                    answer.end()
                else:
                    answer.error = f"http {response.status}"
        except TimeoutError:
            answer.error = "timeout"
        except aiohttp.ClientConnectionError:
            answer.error = "connect"
        except aiohttp.ClientError:
            # What is left breaks off within the body (ClientPayloadError).
            answer.error = "cut_off"
        return sample.Sample(
            user=request.user,
            turn=request.turn,
            prefix=request.prefix,
            endpoint=answer.endpoint,
            started_s=started_s,
            finished_s=self.elapsed_s,
            ttft_s=None if answer.first_token_s is None else answer.first_token_s - started_s,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            error=answer.error,
        )


class _Answer:
    """What is known of a stream while it is read."""

    __slots__ = (
        "_tail",
        "cached_tokens",
        "endpoint",
        "error",
        "first_token_s",
        "output_tokens",
        "prompt_tokens",
    )

    def __init__(self) -> None:
        self.endpoint = ""
        self.error: str | None = None
        self.first_token_s: float | None = None
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self._tail = b""

    def feed(self, chunk: bytes, now_s: float) -> None:
        """Take in bytes that arrived at `now_s` [engine seconds]."""
        # Joined before searching: a chunk may end inside the pattern.
        self._tail = (self._tail + chunk)[-max(_TAIL_BYTES, len(chunk)) :]
        if self.first_token_s is None and _FIRST_TOKEN.search(self._tail):
            self.first_token_s = now_s

    def end(self) -> None:
        """The stream has ended: read usage, or name what went wrong."""
        if _ERROR_EVENT.search(self._tail):
            self.error = "stream_error"
            return
        if _DONE not in self._tail or self.first_token_s is None:
            self.error = "cut_off"
            return
        usage = _usage(self._tail)
        if usage is None:
            self.error = "no_usage"
            return
        self.prompt_tokens, self.cached_tokens, self.output_tokens = usage


def _usage(tail: bytes) -> tuple[int, int, int] | None:
    """Prompt, cached and output tokens of the last chunk before [DONE]; None if it has no usage."""
    start = tail.rfind(b'data: {"')
    line = tail[start + len(b"data: ") :].partition(b"\n")[0]
    try:
        usage = json.loads(line)["usage"]
        return (
            int(usage["prompt_tokens"]),
            int(usage["prompt_tokens_details"]["cached_tokens"]),
            int(usage["completion_tokens"]),
        )
    except (ValueError, KeyError, TypeError):
        return None
