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

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from extproc import ledger, prompt, router

__all__ = [
    "Action",
    "BodyMode",
    "Echo",
    "Event",
    "Exchange",
    "Phase",
    "Reply",
    "RequestBody",
    "RequestHeaders",
    "RequestTrailers",
    "ResponseBody",
    "ResponseHeaders",
    "ResponseTrailers",
    "Settings",
    "Steer",
]


class BodyMode(enum.Enum):
    """How Envoy sends bodies (`ProcessingMode.BodySendMode`; the values are the protocol's numbers)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class Phase(enum.Enum):
    """Which of Envoy's messages a reply answers."""

    REQUEST_HEADERS = "request_headers"
    REQUEST_BODY = "request_body"
    REQUEST_TRAILERS = "request_trailers"
    RESPONSE_HEADERS = "response_headers"
    RESPONSE_BODY = "response_body"
    RESPONSE_TRAILERS = "response_trailers"


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """First event of an exchange.

    `headers`: names in lower case, pseudo headers included (":path", ":method"); of a repeated name the
    values joined by ",". `body_mode` and `response_body_mode`: from `protocol_config`, None where Envoy
    (before 1.33) does not say. `attributes`: request attributes by name ("xds.cluster_name"). `subset`:
    the gateway's subset hint, addresses "ip:port"; None when absent, () when present but empty.
    """

    headers: Mapping[str, str]
    end_of_stream: bool
    body_mode: BodyMode | None = None
    response_body_mode: BodyMode | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    subset: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A piece of the request body: all of it, its start (BUFFERED_PARTIAL), or a chunk."""

    data: bytes
    end_of_stream: bool


@dataclass(frozen=True, slots=True)
class RequestTrailers:
    """Trailers of the request; nothing in them is read."""


@dataclass(frozen=True, slots=True)
class ResponseHeaders:
    """The engine's answer has begun. Not a sign of the first token: engines send headers early.

    `status`: HTTP status, 0 if unreadable.
    """

    status: int
    end_of_stream: bool


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """A piece of the answer's body; the first one ends the prefill."""

    data: bytes
    end_of_stream: bool


@dataclass(frozen=True, slots=True)
class ResponseTrailers:
    """Trailers of the answer; nothing in them is read."""


Event = RequestHeaders | RequestBody | RequestTrailers | ResponseHeaders | ResponseBody | ResponseTrailers


@dataclass(frozen=True, slots=True)
class Steer:
    """What a reply tells Envoy about the destination.

    `address`: "ip:port" (or an ordered list "ip:port,ip:port") to set as metadata and header;
    "" to remove the header, so that a client's own value never steers.
    """

    address: str


@dataclass(frozen=True, slots=True)
class Reply:
    """Continue with this phase, steering if `steer` is given."""

    phase: Phase
    steer: Steer | None = None


@dataclass(frozen=True, slots=True)
class Echo:
    """A body chunk handed back unchanged (FULL_DUPLEX_STREAMED); phase is one of the two bodies."""

    phase: Phase
    data: bytes
    end_of_stream: bool


Action = Reply | Echo


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits of every exchange.

    `prompt_bytes_max`: of a body, no more than this is read, or held back in duplex [bytes].
    `decision_timeout_s`: in duplex, how long headers are held for the body [s]; Envoy has no timeout there.
    """

    prompt_bytes_max: int = 2 * 1024 * 1024
    decision_timeout_s: float = 0.2


_AT_HEADERS = {BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC}
_NO_STEER = Steer("")
_PLAIN = {"", "identity"}


class Exchange:
    """State of one exchange. `receive` every event in order; `close` at the end, however it comes.

    `result`: the choice, or that there was nobody to choose; None while neither. `deadline_s`: when `expire`
    must be called [s, monotonic]; None while nothing is held.
    """

    __slots__ = (
        "_headers", "_held", "_held_bytes", "_lease", "_passive", "_request_ended", "_response_ended",
        "_router", "_settings", "deadline_s", "result",
    )  # fmt: skip

    def __init__(self, chooser: router.Router, settings: Settings) -> None:
        """`chooser`: the router of the pool."""
        self._router = chooser
        self._settings = settings
        self._headers = RequestHeaders({}, end_of_stream=False)
        self._held: list[RequestBody] = []
        self._held_bytes = 0
        self._lease: ledger.Lease | None = None
        self._passive = False
        self._request_ended = False
        self._response_ended = False
        self.deadline_s: float | None = None
        self.result: router.Choice | router.NoEndpoint | None = None

    @property
    def can_end_early(self) -> bool:
        """Whether closing the stream now harms nothing: nothing is held, and no body waits for an echo."""
        duplex = BodyMode.FULL_DUPLEX_STREAMED
        return (
            self.result is not None
            and self._headers.body_mode is not duplex
            and self._headers.response_body_mode is not duplex
        )

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
                self._request_ended = True
                return [*self._flush(now, chance), Reply(Phase.REQUEST_TRAILERS)]
            case ResponseHeaders():
                return [Reply(Phase.RESPONSE_HEADERS)]
            case ResponseBody():
                return self._response_body(event)
            case ResponseTrailers():
                return [Reply(Phase.RESPONSE_TRAILERS)]
            case _:
                assert_never(event)

    def expire(self, now: float, chance: float) -> list[Action]:
        """What to answer at `deadline_s`: choose by what came of the body, and let it pass."""
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
        if event.end_of_stream or self._held_bytes >= self._settings.prompt_bytes_max or self._passive:
            return self._flush(now, chance)
        return []

    def _flush(self, now: float, chance: float) -> list[Action]:
        """Choose by the chunks held, answer the headers, hand the chunks back. Nothing if none is held."""
        if self.deadline_s is None:
            return []
        body = b"".join(chunk.data for chunk in self._held)
        steer = self._choose(self._read(body, whole=self._request_ended), now, chance)
        self.deadline_s = None
        held, self._held = self._held, []
        return [
            Reply(Phase.REQUEST_HEADERS, steer),
            *(Echo(Phase.REQUEST_BODY, chunk.data, chunk.end_of_stream) for chunk in held),
        ]

    def _response_body(self, event: ResponseBody) -> list[Action]:
        if self._lease is not None and event.data:
            self._lease.prefilled()
        if self._headers.response_body_mode is not BodyMode.FULL_DUPLEX_STREAMED:
            return [Reply(Phase.RESPONSE_BODY)]
        if self._response_ended:
            return []
        self._response_ended = event.end_of_stream
        return [Echo(Phase.RESPONSE_BODY, event.data, event.end_of_stream)]

    def _read(self, body: bytes, *, whole: bool) -> prompt.Prompt | prompt.Unkeyed:
        if self._passive:
            return prompt.Unkeyed.BODY
        headers = self._headers.headers
        if headers.get("content-encoding", "").strip().lower() not in _PLAIN:
            return prompt.Unkeyed.ENCODING
        bytes_max = self._settings.prompt_bytes_max
        return prompt.read(headers.get(":path", ""), body, whole=whole, bytes_max=bytes_max)

    def _choose(self, read: prompt.Prompt | prompt.Unkeyed, now: float, chance: float) -> Steer:
        if self._passive:
            return _NO_STEER
        if isinstance(self.result, router.Choice):  # headers twice, against the protocol
            return Steer(self.result.addresses)
        answer = self._router.choose(read, now, chance, self._headers.subset)
        if isinstance(answer, router.NoEndpoint):
            self.result = answer
            return _NO_STEER
        self._lease = answer.lease
        self.result = answer.choice
        return Steer(answer.choice.addresses)
