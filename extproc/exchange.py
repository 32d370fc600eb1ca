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

Where the pool is one that Envoy's own hashing steers (hasher), the choice is a hash and carried the same way.
Nothing is counted then, so the exchange is over with it: in duplex as soon as the anchor is known, and the
stream need not stay open for the answer (`is_over`).

What is chosen says `deciding`. After a request was refused (protocol.Refuse) nothing more is said.

Never: a lease that outlives `close`; a body chunk changed, lost or sent twice; an action after the request's
last chunk because Envoy repeated it (envoy#46237, >= 1.35).
Called by: server. Source: Envoy's ext_proc v3 API; docs/exchange.md.
"""

from __future__ import annotations

from typing import assert_never

from extproc import choice, deciding, groups, hooks, passing, pool, prompt, protocol, usage
from extproc.held import Held
from extproc.protocol import Action, BodyMode, Echo, Phase, Reply

__all__ = ["Exchange", "Settings"]

Settings = deciding.Settings

_AT_HEADERS = {BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC}
_FAULT_STATUS = 500
_ANCHORED_WAIT_S = 0.1  # how long the rest of a body may still take when its key is known: it tells the costs


class Exchange:
    """State of one exchange. `receive` every event in order; `close` at the end, however it comes.

    `deadline_s`: when `expire` must be called [s, monotonic]; None while nothing is held. `answered_well`:
    whether the engine's answer was no fault of its own; None while that was not seen. `limit`: what ended the
    wait for the body early. `began_s`, `parents`: when it began, and contexts of its trace, as the server
    knows them.
    """

    __slots__ = (
        "_deciding", "_held", "_looked", "_passing", "_passive", "_request_ended", "_response_ended",
        "_settings", "_silent", "answered_well", "began_s", "deadline_s", "limit", "parents",
    )  # fmt: skip

    def __init__(self, pools: groups.Groups | groups.Chooser, settings: Settings) -> None:
        """`pools`: all of them, or who decides for the only one."""
        known = pools if isinstance(pools, groups.Groups) else groups.alone(pools)
        self._deciding = deciding.Deciding(known, settings)
        self._settings = settings
        self._held = Held()
        self._looked = False
        self._passing: passing.Passing | None = None  # what is read of the answer, once it comes
        self._passive = False  # after a fault: everything passes
        self._silent = False  # refused or only watching: nothing is said any more
        self._request_ended = False
        self._response_ended = False
        self.answered_well: bool | None = None
        self.limit: choice.Limit | None = None
        self.began_s = 0.0
        self.parents: tuple[str, ...] = ()
        self.deadline_s: float | None = None

    @property
    def _headers(self) -> protocol.RequestHeaders:
        return self._deciding.headers

    @property
    def result(self) -> choice.Choice | choice.Hashed | choice.NoEndpoint | None:
        """The choice, or why nobody was chosen; None while neither."""
        return self._deciding.result

    @property
    def endpoint(self) -> pool.Endpoint | None:
        """Who has the request, as `Deciding.endpoint`."""
        return self._deciding.endpoint

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
    def is_over(self) -> bool:
        """Whether nothing more will be learned or said: the stream may end though the request goes on."""
        told = self._headers.response_body_mode
        is_told_answers = told is not None and told is not BodyMode.NONE  # for their counts of tokens
        return isinstance(self.result, choice.Hashed) and self.can_end_early and not is_told_answers

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
        if self._deciding.decision is not None:
            self._deciding.decision.lease.release()

    # ---- the request ----

    def _request_headers(self, event: protocol.RequestHeaders, now: float, chance: float) -> list[Action]:
        self._deciding.headers = event
        if event.observed:
            self._silent = True
            self._deciding.result = choice.NoEndpoint(0, 0, why=choice.Why.OBSERVED)
            return []
        if event.end_of_stream:
            return self._steered(Phase.REQUEST_HEADERS, prompt.Unkeyed.BODY, now, chance)
        if event.body_mode in _AT_HEADERS:
            return self._steered(Phase.REQUEST_HEADERS, prompt.Unkeyed.MODE, now, chance)
        if event.body_mode is BodyMode.FULL_DUPLEX_STREAMED:
            self.deadline_s = now + self._settings.decision_timeout_s
            return []
        return [Reply(Phase.REQUEST_HEADERS, self._deciding.no_opinion)]

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
                if self._deciding.is_key_enough():
                    return True
                self.deadline_s = min(self.deadline_s or now, now + _ANCHORED_WAIT_S)
            return False
        if self._looked:
            return False
        self._looked = True
        return isinstance(self._read(self._held.body(), whole=False), prompt.Prompt)

    def _is_anchored(self) -> bool:
        """Whether more of the body would not change the ring key."""
        read = self._read(self._held.body(), whole=False)
        return isinstance(read, prompt.Prompt) and self._deciding.is_anchored(read)

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
        if event.served and not self._passive:
            self._deciding.served(event.served, now)
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
            if self._deciding.decision is not None:
                self._deciding.decision.lease.prefilled()
        of = self._deciding.router
        if seen.answer and not knew and of is not None and self.endpoint is not None:
            of.answered(seen.answer, self.endpoint.id, now)

    # ---- the choice ----

    def _read(self, body: bytes, *, whole: bool) -> prompt.Prompt | prompt.Unkeyed:
        return prompt.Unkeyed.BODY if self._passive else self._deciding.read(body, whole=whole)

    def _steered(
        self, phase: Phase, read: prompt.Prompt | prompt.Unkeyed, now: float, chance: float
    ) -> list[Action]:
        """Choose, and answer `phase` with the choice, or refuse the request."""
        if self._passive:
            return [Reply(phase, self._deciding.no_opinion)]
        said = self._deciding.decide(read, now, chance)
        if isinstance(said, protocol.Refuse):
            self._silent = True
            return [said]
        if (
            isinstance(read, prompt.Prompt)
            and read.api == prompt.STORED_ANSWERS
            and self.endpoint is not None
        ):
            self._passing = self._passing or passing.Passing(stored=True)
        return [Reply(phase, said)]
