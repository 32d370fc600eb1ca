"""Sent: what this process has sent to each endpoint, and how much of it was thought to be cached there.

Counters since the endpoint became a member. Beside the engine's own counters they tell how
true the predictions are (`vitals`), and how much was sent since the engine was last asked (`signals`).

A request that another endpoint served (served) counts there too, and is noted here as gone: metrics go on
rising, while `vitals` is told what the engine can have seen (`net`).

Bounded by the members of the pool. Called by: router (counts), served (moves), vitals and metrics (read).
"""

from __future__ import annotations

from collections.abc import Collection

from extproc import pool

__all__ = ["Record", "Sent"]


class Sent:
    """Totals of one endpoint.

    `requests`, of which `keyed` had a chain; of these `prompt_bytes` and `prompt_tokens` [estimated],
    `gpu_tokens` thought to be on the GPU, `cached_tokens` in any tier. `uncached_tokens`: left to prefill;
    only compared with what it was when the engine was last asked, so what others served since is taken off.
    `gone`: what of all this others served; None: nothing.
    """

    __slots__ = (
        "cached_tokens", "gone", "gpu_tokens", "keyed", "prompt_bytes", "prompt_tokens", "requests",
        "uncached_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        """Nothing yet."""
        self.requests = 0
        self.keyed = 0
        self.prompt_bytes = 0.0
        self.prompt_tokens = 0.0
        self.gpu_tokens = 0.0
        self.cached_tokens = 0.0
        self.uncached_tokens = 0.0
        self.gone: Sent | None = None

    def add(
        self,
        uncached_tokens: int,
        prompt_tokens: float,
        gpu_tokens: float,
        cached_tokens: float,
        prompt_bytes: float,
    ) -> None:
        """Add a request; a prompt of 0 bytes is one that could not be read."""
        self.requests += 1
        self.uncached_tokens += uncached_tokens
        if prompt_bytes:
            self.keyed += 1
            self.prompt_bytes += prompt_bytes
            self.prompt_tokens += prompt_tokens
            self.gpu_tokens += min(gpu_tokens, prompt_tokens)
            self.cached_tokens += min(cached_tokens, prompt_tokens)

    def copy(self) -> Sent:
        """The totals as they stand."""
        other = Sent()
        other.requests, other.keyed = self.requests, self.keyed
        other.prompt_bytes, other.prompt_tokens = self.prompt_bytes, self.prompt_tokens
        other.gpu_tokens, other.cached_tokens = self.gpu_tokens, self.cached_tokens
        other.uncached_tokens = self.uncached_tokens
        return other

    def net(self) -> Sent:
        """The totals less what others served."""
        left, gone = self.copy(), self.gone
        if gone is not None:
            left.requests -= gone.requests
            left.keyed -= gone.keyed
            left.prompt_bytes -= gone.prompt_bytes
            left.prompt_tokens -= gone.prompt_tokens
            left.gpu_tokens -= gone.gpu_tokens
            left.cached_tokens -= gone.cached_tokens
        return left


class Record:
    """Totals of all endpoints of a pool."""

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        """Nothing was sent yet."""
        self._sent: dict[pool.EndpointId, Sent] = {}

    def to(self, endpoint: pool.EndpointId) -> Sent:
        """The totals of `endpoint`, to be read or added to."""
        found = self._sent.get(endpoint)
        if found is None:
            found = self._sent[endpoint] = Sent()
        return found

    def take_back(
        self, endpoint: pool.EndpointId, uncached_tokens: int, prompt_tokens: float, gpu_tokens: float,
        cached_tokens: float, prompt_bytes: float,
    ) -> None:  # fmt: skip
        """A request that was counted for `endpoint` with these figures was served by another.

        `uncached_tokens`: 0 if the engine was asked after it was counted.
        """
        found = self._sent.get(endpoint)
        if found is not None:  # else it left the pool since
            found.uncached_tokens = max(found.uncached_tokens - uncached_tokens, 0.0)
            found.gone = found.gone or Sent()
            found.gone.add(0, prompt_tokens, gpu_tokens, cached_tokens, prompt_bytes)

    def forget(self, endpoint: pool.EndpointId) -> None:
        """Begin at nothing for `endpoint`."""
        self._sent.pop(endpoint, None)

    def retain(self, members: Collection[pool.EndpointId]) -> None:
        """Forget endpoints that are not in `members`."""
        for endpoint in self._sent.keys() - set(members):
            del self._sent[endpoint]
