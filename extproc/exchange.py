"""Exchange: one HTTP request and its answer, as ext_proc events going in and actions coming out.

When is the choice made, and what carries it? That depends on how Envoy sends the request body:

    body mode                    choice made at              carried by
    no body, NONE, STREAMED      headers (no chain)          header reply
    BUFFERED, BUFFERED_PARTIAL   body message                body reply; headers are answered at once
    FULL_DUPLEX_STREAMED         end of body, anchor,        header reply, held back; then every chunk
                                 budget or deadline          is echoed, in order
    not told (Envoy < 1.33)      as BUFFERED

STREAMED comes without a chain since Envoy has sent the headers on by the time a body chunk arrives.
Answering headers late in BUFFERED deadlocks; in duplex, answering them early loses the choice.

A request that must not go on without a choice (protocol.Refuse) ends there; nothing is said after it.

Never: two choices; a lease that outlives `close`; a body chunk changed, lost or sent twice; an action after
the request's last chunk because Envoy repeated it (envoy#46237, >= 1.35).
Called by: server. Source: Envoy's ext_proc v3 API; docs/exchange.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from extproc import choice, groups, hooks, passing, pool, prompt, protocol, reading, router, served, usage
from extproc.held import Held
from extproc.protocol import (
    Action,
    BodyMode,
    Echo,
    Phase,
    Reply,
    Steer,
)

__all__ = ["Exchange", "Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How every exchange is read, and its limits.

    `key_header`: request header whose value is an explicit key; None for none. In duplex, headers are held
    back for at most `held_bytes_max` of the body [bytes] and `decision_timeout_s` [s]; Envoy has no timeout
    there. `hooks`: whether the request headers of the gateways' conformance tests are obeyed, which name an
    endpoint. `explains`: every steer says why, for an answer's header.
    """

    prompt: prompt.Settings = field(default_factory=prompt.Settings)
    key_header: str | None = None
    held_bytes_max: int = 4 * 1024 * 1024
    decision_timeout_s: float = 1.0
    hooks: bool = False
    explains: bool = False


_AT_HEADERS = {BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC}
_NO_STEER = Steer("")
_FAULT_STATUS = 500
_ANCHORED_WAIT_S = 0.1  # how long the rest of a body may still take when its key is known: it tells the costs


class Exchange:
    """State of one exchange. `receive` every event in order; `close` at the end, however it comes.

    `result`: the choice, or why nobody was chosen; None while neither. `endpoint`: who has the request: the
    chosen one, or who Envoy says serves it; None if none of the pool. `deadline_s`: when `expire` must be
    called [s, monotonic]; None while nothing is held. `answered_well`: whether the engine's answer was no
    fault of its own; None while that was not seen. `limit`: what ended the wait for the body early.
    `began_s`, `parents`: when it began, and contexts of its trace, as the server knows them.
    """

    __slots__ = (
        "_decision", "_groups", "_headers", "_held", "_looked", "_model", "_passing", "_passive",
        "_request_ended", "_response_ended", "_router", "_settings", "_silent", "answered_well", "began_s",
        "deadline_s", "endpoint", "limit", "parents", "result",
    )  # fmt: skip

    def __init__(self, pools: groups.Groups | router.Router, settings: Settings) -> None:
        """`pools`: all of them, or the router of the only one."""
        self._groups = groups.alone(pools) if isinstance(pools, router.Router) else pools
        self._router: router.Router | None = None  # of the pool that the request belongs to, once known
        self._model: str | None = None
        self._settings = settings
        self._headers = protocol.RequestHeaders({}, end_of_stream=False)
        self._held = Held()
        self._looked = False
        self._passing: passing.Passing | None = None  # what is read of the answer, once it comes
        self._decision: choice.Decision | None = None
        self._passive = False  # after a fault: everything passes
        self._silent = False  # refused or only watching: nothing is said any more
        self._request_ended = False
        self._response_ended = False
        self.answered_well: bool | None = None
        self.limit: choice.Limit | None = None
        self.began_s = 0.0
        self.parents: tuple[str, ...] = ()
        self.deadline_s: float | None = None
        self.endpoint: pool.Endpoint | None = None
        self.result: choice.Choice | choice.NoEndpoint | None = None

    @property
    def can_end_early(self) -> bool:
        """Whether closing the stream now harms nothing: nothing is held, and no body waits for an echo."""
        duplex = BodyMode.FULL_DUPLEX_STREAMED
        return (
            self.result is not None
            and self._headers.body_mode is not duplex
            and self._headers.response_body_mode is not duplex
        )

    @property
    def usage(self) -> usage.Usage | None:
        """Tokens as the engine counted them; None if it was not seen to tell."""
        return None if self._passing is None else self._passing.usage

    @property
    def traceparent(self) -> str:
        """The request's own trace context, "" without."""
        return self._headers.headers.get("traceparent", "")

    def receive(self, event: protocol.Event, now: float, chance: float) -> list[Action]:
        """What to answer to `event`, in order.

        Args: now: monotonic time [s]; chance: uniform in [0, 1).
        """
        if self._silent:
            return []
        match event:
            case protocol.RequestHeaders():
                return self._request_headers(event, now, chance)
            case protocol.RequestBody():
                return self._request_body(event, now, chance)
            case protocol.RequestTrailers():
                return self._request_trailers(now, chance)
            case protocol.ResponseHeaders():
                return self._response_headers(event, now)
            case protocol.ResponseBody():
                return self._response_body(event, now)
            case protocol.ResponseTrailers():
                return [Reply(Phase.RESPONSE_TRAILERS)]
            case _:
                assert_never(event)

    def expire(self, now: float, chance: float) -> list[Action]:
        """What to answer at `deadline_s`: choose by what came of the body, and let it pass."""
        if self.deadline_s is not None:
            self.limit = choice.Limit.DECISION_TIMEOUT
        return self._flush(now, chance)

    def give_up(self, event: protocol.Event | None, now: float) -> list[Action]:
        """What to answer to `event` after a fault in `receive`: no opinion, and everything passes.

        `event`: None after a fault in `expire`.
        """
        self._passive = True
        if event is None:
            return self._flush(now, 0.0)
        if isinstance(event, protocol.RequestBody) and self._held.drop_last(event):
            self._request_ended = False  # the event comes again, and may be the last one
        return self.receive(event, now, 0.0)

    def close(self) -> None:
        """Release the lease. Repeating it has no effect."""
        self._passive = True
        if self._decision is not None:
            self._decision.lease.release()

    # ---- the request ----

    def _request_headers(self, event: protocol.RequestHeaders, now: float, chance: float) -> list[Action]:
        self._headers = event
        if event.observed:
            self._silent = True
            self.result = choice.NoEndpoint(0, 0, why=choice.Why.OBSERVED)
            return []
        if event.end_of_stream:
            return self._steered(Phase.REQUEST_HEADERS, prompt.Unkeyed.BODY, now, chance)
        if event.body_mode in _AT_HEADERS:
            return self._steered(Phase.REQUEST_HEADERS, prompt.Unkeyed.MODE, now, chance)
        if event.body_mode is BodyMode.FULL_DUPLEX_STREAMED:
            self.deadline_s = now + self._settings.decision_timeout_s
            return []
        return [Reply(Phase.REQUEST_HEADERS, _NO_STEER)]

    def _request_body(self, event: protocol.RequestBody, now: float, chance: float) -> list[Action]:
        mode = self._headers.body_mode
        if mode is not BodyMode.FULL_DUPLEX_STREAMED:
            if mode in _AT_HEADERS or self.result is not None:
                return [Reply(Phase.REQUEST_BODY)]
            read = self._read(event.data, whole=event.end_of_stream)
            return self._steered(Phase.REQUEST_BODY, read, now, chance)
        if self._request_ended:
            return []  # a second end of stream, empty or repeated: envoy#46237
        self._request_ended = event.end_of_stream
        if self.deadline_s is None:
            return [Echo(Phase.REQUEST_BODY, event.data, event.end_of_stream)]
        self._held.add(event)
        return self._flush(now, chance) if self._seen_enough(event, now) else []

    def _request_trailers(self, now: float, chance: float) -> list[Action]:
        self._request_ended = True
        if self.deadline_s is not None:
            flushed = self._flush(now, chance)
            return flushed if self._silent else [*flushed, Reply(Phase.REQUEST_TRAILERS)]
        if self.result is None and self._headers.body_mode is not BodyMode.FULL_DUPLEX_STREAMED:
            # headers, no body message, trailers
            return self._steered(Phase.REQUEST_TRAILERS, prompt.Unkeyed.BODY, now, chance)
        return [Reply(Phase.REQUEST_TRAILERS)]

    def _seen_enough(self, event: protocol.RequestBody, now: float) -> bool:
        """Whether to wait for no more of the body. Past the reading budget one look tells if a key is there;
        if not (the model comes behind the messages), the body's end may have it. Before, once the key is
        known for good, the rest has `_ANCHORED_WAIT_S` to come.
        """
        settings = self._settings
        if event.end_of_stream or self._passive:
            return True
        if self._held.size >= settings.held_bytes_max:
            self.limit = choice.Limit.HELD_BYTES
            return True
        if self._held.size < settings.prompt.bytes_max:
            if self._held.is_worth_a_look() and self._is_anchored():
                self.deadline_s = min(self.deadline_s or now, now + _ANCHORED_WAIT_S)
            return False
        if self._looked:
            return False
        self._looked = True
        return isinstance(self._read(self._held.body(), whole=False), prompt.Prompt)

    def _is_anchored(self) -> bool:
        """Whether more of the body would not change the ring key."""
        read = self._read(self._held.body(), whole=False)
        if not isinstance(read, prompt.Prompt):
            return False
        chooser = self._groups.find(self._model, self._headers.attributes)
        return chooser is None or self._key() is not None or chooser.is_anchored(read)

    def _flush(self, now: float, chance: float) -> list[Action]:
        """Choose by the chunks held, answer the headers, hand the chunks back. Nothing if none is held."""
        if self.deadline_s is None:
            return []
        read = self._read(self._held.body(), whole=self._request_ended)
        answer = self._steered(Phase.REQUEST_HEADERS, read, now, chance)
        self.deadline_s = None
        chunks = self._held.take()
        if self._silent:
            return answer
        return [*answer, *(Echo(Phase.REQUEST_BODY, chunk.data, chunk.end_of_stream) for chunk in chunks)]

    # ---- the answer ----

    def _response_headers(self, event: protocol.ResponseHeaders, now: float) -> list[Action]:
        if event.status:
            self.answered_well = event.status < _FAULT_STATUS
        if event.served and self._decision is not None and self._router is not None and not self._passive:
            self.endpoint = served.correct(self._router, self._decision, event.served, now)
        if self._settings.hooks and isinstance(self.result, choice.Choice):
            by = event.served or self.result.endpoint.address
            return [Reply(Phase.RESPONSE_HEADERS, headers=((hooks.SERVED, by),))]
        return [Reply(Phase.RESPONSE_HEADERS)]

    def _response_body(self, event: protocol.ResponseBody, now: float) -> list[Action]:
        if not self._passive:
            self._look_at_answer(event.data, now)
        if self._headers.response_body_mode is not BodyMode.FULL_DUPLEX_STREAMED:
            return [Reply(Phase.RESPONSE_BODY)]
        if self._response_ended:
            return []
        self._response_ended = event.end_of_stream
        return [Echo(Phase.RESPONSE_BODY, event.data, event.end_of_stream)]

    def _look_at_answer(self, data: bytes, now: float) -> None:
        seen = self._passing
        if seen is None:
            seen = self._passing = passing.Passing(stored=False)
        before, knew = seen.begun, seen.answer
        seen.feed(data)
        if seen.begun and not before:
            if seen.refused:
                self.answered_well = False  # a stream's status has left before the engine refused
            if self._decision is not None:
                self._decision.lease.prefilled()
        if seen.answer and not knew and self._router is not None and self.endpoint is not None:
            self._router.answered(seen.answer, self.endpoint.id, now)

    # ---- the choice ----

    def _read(self, body: bytes, *, whole: bool) -> prompt.Prompt | prompt.Unkeyed:
        if self._passive:
            return prompt.Unkeyed.BODY
        found = reading.read(self._headers.headers, body, self._settings.prompt, whole=whole)
        self._model = found.model or self._model
        return found.prompt

    def _key(self) -> str | None:
        """The request's explicit key from its header."""
        name = self._settings.key_header
        return self._headers.headers.get(name) or None if name else None

    def _steered(
        self, phase: Phase, read: prompt.Prompt | prompt.Unkeyed, now: float, chance: float
    ) -> list[Action]:
        """Choose, and answer `phase` with the choice, or refuse the request."""
        steer = self._choose(read, now, chance)
        if steer is not None:
            return [Reply(phase, steer)]
        self._silent = True
        nobody = self.result
        if not isinstance(nobody, choice.NoEndpoint):
            raise TypeError("refused without a reason")
        return [protocol.Refuse(nobody.status, nobody.why.value)]

    def _choose(self, read: prompt.Prompt | prompt.Unkeyed, now: float, chance: float) -> Steer | None:
        """Where to; nowhere in particular; or None: not on at all."""
        if self._passive:
            return _NO_STEER
        if isinstance(self.result, choice.Choice):  # headers twice, against the protocol
            return self._steer(self.result)
        self._router = self._groups.find(self._model, self._headers.attributes)
        if self._router is None:
            self.result = choice.NoEndpoint(0, 0, why=choice.Why.NO_POOL)
            return _NO_STEER
        answer = self._ask(self._router, read, now, chance)
        if isinstance(answer, choice.NoEndpoint):
            self.result = answer
            return None if answer.refuse else _NO_STEER
        self._decision = answer
        self.result = answer.choice
        self.endpoint = answer.choice.endpoint
        if isinstance(read, prompt.Prompt) and read.api == prompt.STORED_ANSWERS:
            self._passing = passing.Passing(stored=True)
        return self._steer(answer.choice)

    def _steer(self, made: choice.Choice) -> Steer:
        return Steer(made.addresses, made.in_short if self._settings.explains else "")

    def _ask(
        self, chooser: router.Router, read: prompt.Prompt | prompt.Unkeyed, now: float, chance: float
    ) -> choice.Decision | choice.NoEndpoint:
        key, answer = self._key(), None
        if self._settings.hooks:
            answer = hooks.choose(
                self._headers.headers,
                lambda allowed: chooser.choose(read, now, chance, allowed, key, self._model),
            )
        return answer or chooser.choose(read, now, chance, self._headers.subset, key, self._model)
