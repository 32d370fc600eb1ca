"""Exchange: one HTTP request and its answer, as ext_proc events going in and actions coming out.

When is the choice made, and what carries it? That depends on how Envoy sends the request body:

    body mode                    choice made at              carried by
    no body, NONE, STREAMED      headers (no chain)          header reply
    BUFFERED, BUFFERED_PARTIAL   body message                body reply; headers are answered at once
    FULL_DUPLEX_STREAMED         end of body, budget or      header reply, held back; then every chunk
                                 deadline                    is echoed, in order
    not told (Envoy < 1.33)      as BUFFERED

STREAMED comes without a chain since Envoy has sent the headers on by the time a body chunk arrives.
Answering headers late in BUFFERED deadlocks; in duplex, answering them early loses the choice.

Never: two choices; a lease that outlives `close`; a body chunk changed, lost or sent twice; an action after
the request's last chunk because Envoy repeated it (envoy#46237, >= 1.35).
Called by: server. Source: Envoy's ext_proc v3 API; docs/exchange.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from extproc import choice, groups, ledger, prompt, router
from extproc.protocol import (
    Action,
    BodyMode,
    Echo,
    Event,
    Phase,
    Reply,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Steer,
)

__all__ = ["Exchange", "Settings", "read_prompt"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How every exchange is read, and its limits.

    `key_header`: request header whose value is an explicit key; None for none. In duplex, headers are held
    back for at most `held_bytes_max` of the body [bytes] and `decision_timeout_s` [s]; Envoy has no timeout
    there. `explains`: every steer says why, for an answer's header.
    """

    prompt: prompt.Settings = field(default_factory=prompt.Settings)
    key_header: str | None = None
    held_bytes_max: int = 4 * 1024 * 1024
    decision_timeout_s: float = 0.2
    explains: bool = False


_AT_HEADERS = {BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC}
_NO_STEER = Steer("")
_FAULT_STATUS = 500
_ERROR_EVENTS = (b'data: {"error"', b"event: error")  # how a stream begins that the engine refuses
_MODEL_TOLD = (prompt.Unkeyed.PATH, prompt.Unkeyed.SHAPE)  # no prompt that we know, but perhaps a model


class Exchange:
    """State of one exchange. `receive` every event in order; `close` at the end, however it comes.

    `result`: the choice, or that there was nobody to choose; None while neither. `deadline_s`: when `expire`
    must be called [s, monotonic]; None while nothing is held. `answered_well`: whether the engine's answer
    was no fault of its own; None while that was not seen. `limit`: what ended the wait for the body early.
    `began_s`, `parents`: when it began, and contexts of its trace, as the server knows them.
    """

    __slots__ = (
        "_answer_begun", "_answer_start", "_groups", "_headers", "_held", "_held_bytes", "_lease", "_looked",
        "_model", "_passive", "_request_ended", "_response_ended", "_router", "_settings", "answered_well",
        "began_s", "deadline_s", "limit", "parents", "result",
    )  # fmt: skip

    def __init__(self, pools: groups.Groups | router.Router, settings: Settings) -> None:
        """`pools`: all of them, or the router of the only one."""
        self._groups = groups.alone(pools) if isinstance(pools, router.Router) else pools
        self._router: router.Router | None = None  # of the pool that the request belongs to, once chosen
        self._model: str | None = None
        self._answer_begun = False
        self.answered_well: bool | None = None
        self._settings = settings
        self._headers = RequestHeaders({}, end_of_stream=False)
        self._held: list[RequestBody] = []
        self._looked = False
        self._answer_start: bytes | None = None  # of the answer's body, while its id is looked for
        self._held_bytes = 0
        self._lease: ledger.Lease | None = None
        self._passive = False
        self._request_ended = False
        self._response_ended = False
        self.limit: choice.Limit | None = None
        self.began_s = 0.0
        self.parents: tuple[str, ...] = ()
        self.deadline_s: float | None = None
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
    def traceparent(self) -> str:
        """The request's own trace context, "" without."""
        return self._headers.headers.get("traceparent", "")

    def receive(self, event: Event, now: float, chance: float) -> list[Action]:
        """What to answer to `event`, in order.

        Args: now: monotonic time [s]; chance: uniform in [0, 1).
        """
        match event:
            case RequestHeaders():
                return self._request_headers(event, now, chance)
            case RequestBody():
                return self._request_body(event, now, chance)
            case RequestTrailers():
                return self._request_trailers(now, chance)
            case ResponseHeaders():
                if event.status:
                    self.answered_well = event.status < _FAULT_STATUS
                return [Reply(Phase.RESPONSE_HEADERS)]
            case ResponseBody():
                return self._response_body(event, now)
            case ResponseTrailers():
                return [Reply(Phase.RESPONSE_TRAILERS)]
            case _:
                assert_never(event)

    def expire(self, now: float, chance: float) -> list[Action]:
        """What to answer at `deadline_s`: choose by what came of the body, and let it pass."""
        if self.deadline_s is not None:
            self.limit = choice.Limit.DECISION_TIMEOUT
        return self._flush(now, chance)

    def give_up(self, event: Event | None, now: float) -> list[Action]:
        """What to answer to `event` after a fault in `receive`: no opinion, and everything passes.

        `event`: None after a fault in `expire`.
        """
        self._passive = True
        if event is None:
            return self._flush(now, 0.0)
        if self._held and self._held[-1] is event:
            self._held.pop()
            self._request_ended = False  # the event comes again, and may be the last one
        return self.receive(event, now, 0.0)

    def close(self) -> None:
        """Release the lease. Repeating it has no effect."""
        self._passive = True
        if self._lease is not None:
            self._lease.release()

    def _request_headers(self, event: RequestHeaders, now: float, chance: float) -> list[Action]:
        self._headers = event
        if event.end_of_stream:
            return [Reply(Phase.REQUEST_HEADERS, self._choose(prompt.Unkeyed.BODY, now, chance))]
        if event.body_mode in _AT_HEADERS:
            return [Reply(Phase.REQUEST_HEADERS, self._choose(prompt.Unkeyed.MODE, now, chance))]
        if event.body_mode is BodyMode.FULL_DUPLEX_STREAMED:
            self.deadline_s = now + self._settings.decision_timeout_s
            return []
        return [Reply(Phase.REQUEST_HEADERS, _NO_STEER)]

    def _request_body(self, event: RequestBody, now: float, chance: float) -> list[Action]:
        mode = self._headers.body_mode
        if mode is not BodyMode.FULL_DUPLEX_STREAMED:
            if mode in _AT_HEADERS or self.result is not None:
                return [Reply(Phase.REQUEST_BODY)]
            read = self._read(event.data, whole=event.end_of_stream)
            return [Reply(Phase.REQUEST_BODY, self._choose(read, now, chance))]
        if self._request_ended:
            return []  # a second end of stream, empty or repeated: envoy#46237
        self._request_ended = event.end_of_stream
        if self.deadline_s is None:
            return [Echo(Phase.REQUEST_BODY, event.data, event.end_of_stream)]
        self._held.append(event)
        self._held_bytes += len(event.data)
        return self._flush(now, chance) if self._seen_enough(event) else []

    def _request_trailers(self, now: float, chance: float) -> list[Action]:
        self._request_ended = True
        if self.deadline_s is not None:
            return [*self._flush(now, chance), Reply(Phase.REQUEST_TRAILERS)]
        steer = None
        if self.result is None and self._headers.body_mode is not BodyMode.FULL_DUPLEX_STREAMED:
            steer = self._choose(prompt.Unkeyed.BODY, now, chance)  # headers, no body message, trailers
        return [Reply(Phase.REQUEST_TRAILERS, steer)]

    def _seen_enough(self, event: RequestBody) -> bool:
        """Whether to wait for no more of the body. Past the reading budget one look tells if a key is there;
        if not (the model comes behind the messages), the body's end may have it.
        """
        settings = self._settings
        if event.end_of_stream or self._passive:
            return True
        if self._held_bytes >= settings.held_bytes_max:
            self.limit = choice.Limit.HELD_BYTES
            return True
        if self._looked or self._held_bytes < settings.prompt.bytes_max:
            return False
        self._looked = True
        return isinstance(self._read(self._held_body(), whole=False), prompt.Prompt)

    def _held_body(self) -> bytes:
        return b"".join(chunk.data for chunk in self._held)

    def _flush(self, now: float, chance: float) -> list[Action]:
        """Choose by the chunks held, answer the headers, hand the chunks back. Nothing if none is held."""
        if self.deadline_s is None:
            return []
        steer = self._choose(self._read(self._held_body(), whole=self._request_ended), now, chance)
        self.deadline_s = None
        held, self._held = self._held, []
        return [
            Reply(Phase.REQUEST_HEADERS, steer),
            *(Echo(Phase.REQUEST_BODY, chunk.data, chunk.end_of_stream) for chunk in held),
        ]

    def _response_body(self, event: ResponseBody, now: float) -> list[Action]:
        if not self._answer_begun and event.data:
            self._answer_begun = True
            if event.data.startswith(_ERROR_EVENTS):
                self.answered_well = False  # a stream's status has left before the engine refused
            if self._lease is not None:
                self._lease.prefilled()
        if self._answer_start is not None:
            self._learn_answer(event.data, now)
        if self._headers.response_body_mode is not BodyMode.FULL_DUPLEX_STREAMED:
            return [Reply(Phase.RESPONSE_BODY)]
        if self._response_ended:
            return []
        self._response_ended = event.end_of_stream
        return [Echo(Phase.RESPONSE_BODY, event.data, event.end_of_stream)]

    def _learn_answer(self, data: bytes, now: float) -> None:
        """Remember where a stored answer was given, once its id has come."""
        start = (self._answer_start or b"") + data[: prompt.ANSWER_BYTES_MAX]
        answer = prompt.answer_id(start)
        if answer is not None and self._router is not None and isinstance(self.result, choice.Choice):
            self._router.answers.remember(answer, self.result.endpoint.id, now)
        self._answer_start = None if answer or len(start) >= prompt.ANSWER_BYTES_MAX else start

    def _read(self, body: bytes, *, whole: bool) -> prompt.Prompt | prompt.Unkeyed:
        if self._passive:
            return prompt.Unkeyed.BODY
        read = read_prompt(self._headers.headers, body, self._settings.prompt, whole=whole)
        if isinstance(read, prompt.Prompt):
            self._model = read.model
        elif read in _MODEL_TOLD:
            self._model = prompt.model_of(body, self._settings.prompt, whole=whole)
        return read

    def _choose(self, read: prompt.Prompt | prompt.Unkeyed, now: float, chance: float) -> Steer:
        if self._passive:
            return _NO_STEER
        if isinstance(self.result, choice.Choice):  # headers twice, against the protocol
            return self._steer(self.result)
        name = self._settings.key_header
        key = self._headers.headers.get(name) or None if name else None
        self._router = self._groups.find(self._model, self._headers.attributes)
        if self._router is None:
            self.result = choice.NoEndpoint(0, 0)
            return _NO_STEER
        answer = self._router.choose(read, now, chance, self._headers.subset, key, self._model)
        if isinstance(answer, choice.NoEndpoint):
            self.result = answer
            return _NO_STEER
        self._lease = answer.lease
        self.result = answer.choice
        if isinstance(read, prompt.Prompt) and read.api == prompt.STORED_ANSWERS:
            self._answer_start = b""
        return self._steer(answer.choice)

    def _steer(self, made: choice.Choice) -> Steer:
        return Steer(made.addresses, made.in_short if self._settings.explains else "")


def read_prompt(
    headers: Mapping[str, str], body: bytes, settings: prompt.Settings, *, whole: bool
) -> prompt.Prompt | prompt.Unkeyed:
    """The prompt of a request with these headers, or why it has none."""
    coding = headers.get("content-encoding", "")
    plain = prompt.inflate(coding, body, settings.whole_bytes_max, whole=whole) if coding else None
    if coding and plain is None:
        return prompt.Unkeyed.ENCODING
    if plain is not None:
        body, whole = plain.data, plain.whole
    return prompt.read(headers.get(":path", ""), body, settings, whole=whole)
