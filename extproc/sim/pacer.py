"""Pacer: runs an engine model against the event loop's clock.

    engine time = (loop time - start) * speed

One timer is armed for the end of the engine's running step. When it fires, the tokens of all steps that have
ended are handed to their listeners: a loop that is late hands out more at a time and the pace stays.

Invariant: every accepted request is dropped exactly once; a dropped one frees its slot in the engine.
Called by: replica.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from extproc.sim import engine as engines
from extproc.sim import job, kv_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from extproc.sim import call

__all__ = ["Listener", "Pacer"]


class Listener:
    """One HTTP request's view of its engine requests.

    `made`: tokens so far, per choice. `open`: choices not ended. `cached_tokens`: of
    the prompts prefilled so far.
    """

    __slots__ = ("_ids", "_waiter", "cached_tokens", "made", "open")

    def __init__(self, choices: int) -> None:
        self.made = [0] * choices
        self.open = choices
        self.cached_tokens = 0
        self._ids: list[str] = []
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Returns at the next token. Call it only when all tokens made so far have been taken."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _put(self, choice: int, token: job.Token) -> None:
        self.made[choice] = token.position + 1
        if token.position == 0:
            self.cached_tokens += token.cached_tokens
        if token.last:
            self.open -= 1
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Pacer:
    """The engine's clock and the way its tokens take. Belongs to one event loop."""

    def __init__(self, engine: engines.Engine, speed: float) -> None:
        """Args: speed, engine seconds per real second [> 0]. Needs a running loop."""
        if speed <= 0:
            raise ValueError(f"speed is {speed}, must be > 0")
        self.engine = engine
        self._speed = speed
        self._loop = asyncio.get_running_loop()
        self._origin_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._ids = itertools.count()
        self._listeners: dict[str, tuple[Listener, int]] = {}

    def catch_up(self) -> float:
        """Hands out the tokens that are due. Returns the engine's time [s]."""
        now = (self._loop.time() - self._origin_s) * self._speed
        listeners = self._listeners
        for token in self.engine.advance(now):
            listener, choice = listeners[token.request_id]
            listener._put(choice, token)  # noqa: SLF001  the other half of this module
            if token.last:
                del listeners[token.request_id]
        return now

    def submit(self, asked: call.Call, words: Sequence[Sequence[bytes]]) -> Listener | None:
        """Queues every choice of a call; None, and none of them queued, once one is rejected.

        Args: words, the tokens each choice will answer with.
        """
        now = self.catch_up()
        parent = kv_cache.root(asked.adapter, asked.cache_salt)
        listener = Listener(len(words))
        for index, answer in enumerate(words):
            prompt = asked.prompts[index // asked.choices]
            request = job.Request(
                request_id=str(next(self._ids)),
                prompt_tokens=len(prompt) // kv_cache.TOKEN_BYTES,
                output_tokens=len(answer),
                hashes=kv_cache.chain(prompt + b"".join(answer), self.engine.model.block_tokens, parent),
                reads_cache=asked.reads_cache,
                choices=asked.choices,
            )
            if self.engine.submit(request, now) is not None:
                self.drop(listener)
                return None
            listener._ids.append(request.request_id)  # noqa: SLF001
            self._listeners[request.request_id] = (listener, index)
        self._arm()
        return listener

    def drop(self, listener: Listener) -> None:
        """Ends a call: aborts what is still live of it. A second drop does nothing."""
        ids = [request_id for request_id in listener._ids if request_id in self._listeners]  # noqa: SLF001
        listener._ids = []  # noqa: SLF001
        if ids:
            self.catch_up()
            for request_id in ids:
                if self._listeners.pop(request_id, None) is not None:
                    self.engine.abort(request_id)
        self._arm()

    def pace(self, speed: float) -> None:
        """Goes on at `speed`, engine seconds per real second [> 0], from where the engine's time is now."""
        now = self.catch_up()
        self._speed = speed
        self._origin_s = self._loop.time() - now / speed
        self._arm()

    def stop(self) -> None:
        """Lets the clock stand; waiting listeners are not woken."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.stop()
        due = self.engine.next_step_at
        if due is not None:
            self._timer = self._loop.call_at(self._origin_s + due / self._speed, self._fire)

    def _fire(self) -> None:
        self.catch_up()
        self._arm()
