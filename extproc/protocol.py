"""Protocol: what Envoy's ext_proc tells (events) and is told (actions), as values.

The exchange speaks only these, so that it can be tested, and another transport put before it, without
protobuf.
Called by: wire (makes events, reads actions), exchange. Source: Envoy's ext_proc v3 API.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "Action",
    "BodyMode",
    "Echo",
    "Event",
    "Phase",
    "Refuse",
    "Reply",
    "RequestBody",
    "RequestHeaders",
    "RequestTrailers",
    "ResponseBody",
    "ResponseHeaders",
    "ResponseTrailers",
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
    the gateway's subset hint, addresses "ip:port"; None when absent, () when present but empty. `observed`:
    Envoy only shows the exchange and reads no answer (`observability_mode`).
    """

    headers: Mapping[str, str]
    end_of_stream: bool
    body_mode: BodyMode | None = None
    response_body_mode: BodyMode | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    subset: tuple[str, ...] | None = None
    observed: bool = False


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

    `status`: HTTP status, 0 if unreadable. `served`: address "ip:port" of who gives it, "" where Envoy does
    not tell.
    """

    status: int
    end_of_stream: bool
    served: str = ""


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
    "" to remove the header, so that a client's own value never steers. `why`: the decision in short, as
    further metadata that Envoy can put into the answer's headers; "" for none. `hash`: what Envoy's own
    consistent hashing goes by, in the same way; None where it goes by none, and nothing is touched.
    """

    address: str
    why: str = ""
    hash: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Continue with this phase, steering if `steer` is given, with `headers` (name, value) set."""

    phase: Phase
    steer: Steer | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Echo:
    """A body chunk handed back unchanged (FULL_DUPLEX_STREAMED); phase is one of the two bodies."""

    phase: Phase
    data: bytes
    end_of_stream: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the client at once, with HTTP `status` and a `reason` of one word; nothing more follows."""

    status: int
    reason: str


Action = Reply | Echo | Refuse
