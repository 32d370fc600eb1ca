"""Engine: continuous batching of one simulated model server, in steps whose duration is computed.

A step's batch is fixed when it begins: one token of every decoding request, then chunks of the prompts
already admitted, then newly admitted ones, first come first served, until the token budget is spent. Its
results appear when it ends, `Performance.step_s` later, and the next step begins at that same instant. A
chunk that ends a prompt yields the request's first token.

Admission reserves blocks for prompt and all output, so a running request is never preempted; vLLM admits by
the prompt alone and recomputes when it runs out. The head of the queue that does not fit holds up the rest.

Invariant: time never goes back; `advance(now)` leaves no step that ended by `now`; an idle engine holds no
blocks. Called by: replica (real time), simulations (virtual time). Source: vLLM 0.32's scheduler as observed.
"""

from __future__ import annotations

from collections import deque

from extproc.sim import job, kv_cache, performance, tally

__all__ = ["Engine", "Sequence"]


class Sequence:
    """A live request's state. `computed` counts tokens whose KV exists; the newest output token has none."""

    __slots__ = (
        "aborted",
        "admitted_at",
        "allocation",
        "arrived_at",
        "computed",
        "first_at",
        "generated",
        "request",
    )

    def __init__(self, request: job.Request, now: float) -> None:
        self.request = request
        self.arrived_at = now
        self.admitted_at = now
        self.first_at = now
        self.allocation: kv_cache.Allocation | None = None
        self.computed = 0
        self.generated = 0
        self.aborted = False


class Engine:
    """One engine's queue, batch, cache and tally. Time is in engine seconds, from any origin."""

    def __init__(self, model: performance.Performance, external: kv_cache.External | None = None) -> None:
        self.model = model
        self.cache = kv_cache.KvCache(model.blocks, model.block_tokens, model.host_blocks, external)
        self.tally = tally.Tally(model.kv_tokens)
        self._live: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._waiting_tokens = 0
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._chunks: list[tuple[Sequence, int]] = []  # of the running step
        self._step_begin = 0.0
        self._step_end: float | None = None

    @property
    def next_step_at(self) -> float | None:
        """When the running step ends; None while the engine is idle."""
        return self._step_end

    @property
    def running(self) -> int:
        """Requests in the batch [count]."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def waiting(self) -> int:
        """Requests in the queue [count]."""
        return len(self._waiting)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens in the queue, cached or not."""
        return self._waiting_tokens

    @property
    def kv_usage(self) -> float:
        """Share of the device's blocks held by live requests, 0 to 1."""
        return self.cache.used_blocks / self.cache.blocks

    def submit(self, request: job.Request, now: float) -> job.Rejection | None:
        """Queues `request`, or says why not. An idle engine begins a step at once.

        Call `advance(now)` first. Errors: ValueError for a token count below 1 or an id already live.
        """
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(
                f"prompt_tokens {request.prompt_tokens}, output_tokens {request.output_tokens}: must be >= 1"
            )
        if request.request_id in self._live:
            raise ValueError(f"request_id {request.request_id} is live")
        rejection = self._rejection(request)
        if rejection is not None:
            self.tally.rejected[rejection.value] = self.tally.rejected.get(rejection.value, 0) + 1
            return rejection
        sequence = Sequence(request, now)
        self._live[request.request_id] = sequence
        self._waiting.append(sequence)
        self._waiting_tokens += request.prompt_tokens
        if self._step_end is None:
            self._begin(now)
        return None

    def abort(self, request_id: str) -> None:
        """Drops a request; an unknown or finished one is ignored.

        One that waits or decodes is gone at once; one whose chunk is being computed, after the running step.
        What it computed stays cached. Call `advance(now)` first.
        """
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return
        self.tally.aborted += 1
        if sequence.allocation is None:
            self._waiting.remove(sequence)
            self._waiting_tokens -= sequence.request.prompt_tokens
        elif any(sequence is computing for computing, _ in self._chunks):
            sequence.aborted = True
        else:
            (self._decoding if sequence.generated else self._prefilling).remove(sequence)
            self.cache.release(sequence.allocation)

    def advance(self, now: float) -> list[job.Token]:
        """The tokens of all steps that end by `now`, in order."""
        tokens: list[job.Token] = []
        while self._step_end is not None and self._step_end <= now:
            end = self._step_end
            self._end(end, tokens)
            self._begin(end)
        return tokens

    def reset_prefix_cache(self) -> bool:
        """Forgets the device's cached blocks; False, and nothing forgotten, while requests run."""
        return self.cache.reset()

    def _rejection(self, request: job.Request) -> job.Rejection | None:
        model = self.model
        if self.cache.blocks_for(request.prompt_tokens + request.output_tokens) > self.cache.blocks:
            return job.Rejection.TOO_LONG
        if model.queued_requests_max and len(self._waiting) >= model.queued_requests_max:
            return job.Rejection.QUEUED_REQUESTS
        if model.queued_tokens_max and (
            self._waiting_tokens + request.prompt_tokens > model.queued_tokens_max
        ):
            return job.Rejection.QUEUED_TOKENS
        return None

    def _begin(self, now: float) -> None:
        """Composes the next batch, if there is work, and fixes when it ends."""
        context = 0
        block_tokens = self.cache.block_tokens
        for sequence in self._decoding:
            computed = sequence.computed
            context += computed
            if computed % block_tokens == 0 and sequence.allocation is not None:
                self.cache.grow(sequence.allocation, computed + 1)
        decodes = len(self._decoding)
        budget = self.model.budget_tokens - decodes
        chunk_work = 0.0
        loaded_s = 0.0
        for sequence in self._prefilling:
            if budget <= 0:
                break
            budget, work = self._schedule(sequence, budget)
            chunk_work += work
        while self._waiting and budget > 0 and self.running < self.model.seqs_max:
            sequence = self._waiting[0]
            if not self._admit(sequence, now):
                break
            budget, work = self._schedule(sequence, budget)
            chunk_work += work
            loaded_s = max(loaded_s, self._load_s(sequence.allocation))
        if not decodes and not self._chunks:
            self._step_end = None
            return
        prefill = self.model.budget_tokens - decodes - budget
        self._step_begin = now
        self._step_end = now + self.model.step_s(prefill, decodes, context, chunk_work) + loaded_s

    def _load_s(self, allocation: kv_cache.Allocation | None) -> float:
        """How long a request's blocks take from beyond the device."""
        if allocation is None or not allocation.host_tokens:
            return 0.0
        external = allocation.external_tokens
        host = allocation.host_tokens - external
        return host / self.model.load_tokens_per_s + external / self.model.external_tokens_per_s

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Moves the head of the queue into the batch, if its blocks fit."""
        request, counts = sequence.request, self.tally
        reads = request.reads_cache and self.model.prefix_caching
        allocation = self.cache.admit(
            request.hashes,
            request.prompt_tokens,
            request.prompt_tokens + request.output_tokens,
            reads=reads,
        )
        if allocation is None:
            return False
        self._waiting.popleft()
        self._waiting_tokens -= request.prompt_tokens
        self._prefilling.append(sequence)
        sequence.allocation = allocation
        sequence.admitted_at = now
        sequence.computed = allocation.cached_tokens
        if reads:
            counts.prefix_queries += request.prompt_tokens
            counts.prefix_hits += allocation.device_tokens
            if self.model.host_kv_tokens or self.cache.external is not None:
                counts.host_queries += request.prompt_tokens - allocation.device_tokens
                counts.host_hits += allocation.host_tokens
        return True

    def _schedule(self, sequence: Sequence, budget: int) -> tuple[int, float]:
        """Adds the sequence's next chunk to the step: the budget left, and chunk length times context."""
        chunk = min(budget, sequence.request.prompt_tokens - sequence.computed)
        if sequence.allocation is not None:
            self.cache.grow(sequence.allocation, sequence.computed + chunk)
        self._chunks.append((sequence, chunk))
        return budget - chunk, chunk * (sequence.computed + chunk / 2)

    def _end(self, now: float, tokens: list[job.Token]) -> None:
        """Books the running step's results."""
        counts = self.tally
        counts.steps += 1
        before = len(tokens)
        if self._decoding:
            self._end_decodes(now, tokens)
        prefill = 0
        if self._chunks:
            for sequence, chunk in self._chunks:
                prefill += chunk
                self._end_chunk(sequence, chunk, now, tokens)
            self._chunks.clear()
        generated = len(tokens) - before
        counts.generation_tokens += generated
        counts.step_tokens.observe(prefill + generated)

    def _end_decodes(self, now: float, tokens: list[job.Token]) -> None:
        cache, block_tokens = self.cache, self.cache.block_tokens
        ended = False
        for sequence in self._decoding:
            allocation = sequence.allocation
            if allocation is None:  # never: only admitted sequences decode
                continue
            sequence.computed += 1
            if sequence.computed % block_tokens == 0:
                cache.commit(allocation, sequence.computed)
            index = sequence.generated
            sequence.generated = index + 1
            last = index + 1 == sequence.request.output_tokens
            tokens.append(job.Token(sequence.request.request_id, now, index, last, allocation.cached_tokens))
            if last:
                ended = True
                self._finish(sequence, allocation, now)
        # steps follow each other without a gap, and every decode is in every step
        self.tally.inter_token_s.observe(now - self._step_begin, len(self._decoding))
        if ended:
            self._decoding = [item for item in self._decoding if item.generated < item.request.output_tokens]

    def _end_chunk(self, sequence: Sequence, chunk: int, now: float, tokens: list[job.Token]) -> None:
        allocation, request, counts = sequence.allocation, sequence.request, self.tally
        if allocation is None:  # never: a chunk is scheduled after admission
            return
        sequence.computed += chunk
        self.cache.commit(allocation, sequence.computed)
        if sequence.aborted:
            self._prefilling.remove(sequence)
            self.cache.release(allocation)
            return
        if sequence.computed < request.prompt_tokens:
            return
        self._prefilling.remove(sequence)
        counts.prompt_tokens += request.prompt_tokens
        counts.device_tokens += allocation.device_tokens
        counts.host_tokens += allocation.host_tokens
        counts.computed_tokens += request.prompt_tokens - allocation.cached_tokens
        counts.ttft_s.observe(now - sequence.arrived_at)
        sequence.first_at = now
        sequence.generated = 1
        last = request.output_tokens == 1
        tokens.append(job.Token(request.request_id, now, 0, last, allocation.cached_tokens))
        if last:
            self._finish(sequence, allocation, now)
        else:
            self._decoding.append(sequence)

    def _finish(self, sequence: Sequence, allocation: kv_cache.Allocation, now: float) -> None:
        request, counts = sequence.request, self.tally
        self.cache.release(allocation)
        del self._live[request.request_id]
        counts.finish(
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            cached_tokens=allocation.cached_tokens,
            choices=request.choices,
        )
        counts.finish_times(sequence.arrived_at, sequence.admitted_at, sequence.first_at, now)
        if request.output_tokens > 1:
            counts.per_output_token_s.observe((now - sequence.first_at) / (request.output_tokens - 1))
