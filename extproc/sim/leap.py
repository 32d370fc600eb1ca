"""Leap: the engine, for simulations that need only some of its tokens: many steps at a time.

While nothing is prefilled and nothing can be admitted, the batch stays the same until a request reaches its
last token. The k-th of such steps takes one token of context more per decode than the one before:

    span(k) = k * step(decodes, context) + b * decodes * k * (k - 1) / 2

so k steps are one event. A request that arrives meanwhile cuts the leap at the end of the running step.

Law: tokens shown (the first, `shown`, the last of each request) come at the times of the stepwise engine, to
rounding; blocks are taken in another order among decodes of one leap. Between events `kv_usage` is that of
the leap's begin. Called by: fleet.
"""

from __future__ import annotations

from extproc.sim import engine, job, kv_cache, performance

__all__ = ["Hits", "LeapingEngine"]

Hits = tuple[int, int, int]
"""Prompt tokens of a request found on the device, in host memory, in the external store."""


class LeapingEngine(engine.Engine):
    """As `engine.Engine`, but `advance` shows of each request only its first, `shown`-th and last token."""

    def __init__(
        self,
        model: performance.Performance,
        external: kv_cache.External | None = None,
        shown: int = 0,
    ) -> None:
        """`shown`: position of one more token to show, for clients that buffer; 0 for none."""
        super().__init__(model, external)
        self._shown = shown
        self._leap = 1
        self._now = 0.0
        self._decodes = 0
        self._context = 0
        self.hits: dict[str, Hits] = {}

    def take_hits(self, request_id: str) -> Hits:
        """What was cached of an admitted request; to be asked once, at its first token."""
        return self.hits.pop(request_id)

    def submit(self, request: job.Request, now: float) -> job.Rejection | None:
        """As the engine's; a leap ends with the step that runs at `now`."""
        blocked = bool(self._waiting)  # whoever waits already keeps this one waiting too
        rejection = super().submit(request, now)
        if rejection is None and not blocked:
            self._cut(now)
        return rejection

    def abort(self, request_id: str) -> None:
        """As the engine's, at the time of the last `advance`."""
        self._cut(self._now)
        super().abort(request_id)
        self.hits.pop(request_id, None)

    def advance(self, now: float) -> list[job.Token]:
        """The tokens shown of all steps that end by `now`, in order."""
        self._now = now
        return super().advance(now)

    def _begin(self, now: float) -> None:
        self._leap = 1
        super()._begin(now)
        if self._chunks or self._prefilling or not self._decoding:
            return
        shown = self._shown
        steps = 1 << 30
        context = 0
        for sequence in self._decoding:
            context += sequence.computed
            stop = sequence.request.output_tokens
            if sequence.generated <= shown < stop:
                stop = shown + 1
            steps = min(steps, stop - sequence.generated)
        if steps > 1:
            self._leap = steps
            self._decodes, self._context = len(self._decoding), context
            self._step_end = now + self._span(steps)

    def _span(self, steps: int) -> float:
        first = self.model.step_s(0, self._decodes, self._context)
        return steps * first + self.model.context_s * self._decodes * (steps * (steps - 1) / 2)

    def _cut(self, now: float) -> None:
        """End the leap with the step that runs at `now`."""
        if self._leap == 1 or self._step_end is None or self._step_end <= now:
            return
        low, high = 1, self._leap  # the least number of steps that end at or after `now`
        while low < high:
            middle = (low + high) // 2
            if self._step_begin + self._span(middle) >= now:
                high = middle
            else:
                low = middle + 1
        self._leap = low
        self._step_end = self._step_begin + self._span(low)

    def _admit(self, sequence: engine.Sequence, now: float) -> bool:
        if not super()._admit(sequence, now):
            return False
        allocation = sequence.allocation
        if allocation is not None:
            external = allocation.external_tokens
            host = allocation.host_tokens - external
            self.hits[sequence.request.request_id] = (allocation.device_tokens, host, external)
        return True

    def _end_decodes(self, now: float, tokens: list[job.Token]) -> None:
        cache, block_tokens, steps = self.cache, self.cache.block_tokens, self._leap
        ended = False
        before = len(tokens)
        for sequence in self._decoding:
            allocation = sequence.allocation
            if allocation is None:  # never: only admitted sequences decode
                continue
            full = sequence.computed // block_tokens
            sequence.computed += steps
            if sequence.computed // block_tokens != full:
                cache.grow(allocation, sequence.computed)
                cache.commit(allocation, sequence.computed)
            sequence.generated += steps
            index = sequence.generated - 1
            last = sequence.generated == sequence.request.output_tokens
            if last or (index == self._shown and index):
                tokens.append(
                    job.Token(sequence.request.request_id, now, index, last, allocation.cached_tokens)
                )
            if last:
                ended = True
                self._finish(sequence, allocation, now)
        # the engine counts what is shown; the rest is counted here
        self.tally.generation_tokens += steps * len(self._decoding) - (len(tokens) - before)
        self.tally.inter_token_s.observe((now - self._step_begin) / steps, steps * len(self._decoding))
        if ended:
            self._decoding = [item for item in self._decoding if item.generated < item.request.output_tokens]
