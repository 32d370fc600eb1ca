"""Reply: one answer of a picker, and what a gateway reads in it.

Whatever a picker sends can be read: what is not there, or is of another kind, is None or "".
Called by: stream, checks. Source: Envoy's external_processor.proto v3 (by way of proto/).
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.pb import kvring_ext_proc_pb2 as pb
from extproc.wire import names

__all__ = ["Pick", "Reply"]

_HEADERS = {"request_headers", "response_headers"}
_BODIES = {"request_body", "response_body"}
_TRAILERS = {"request_trailers", "response_trailers"}


@dataclass(frozen=True, slots=True)
class Pick:
    """What names the endpoint: the value of the header and of the metadata, None where one was not set."""

    header: str | None
    metadata: str | None

    @property
    def value(self) -> str:
        """Metadata first: some gateways read nothing else; "" for neither."""
        return self.metadata or self.header or ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The ordered list."""
        return tuple(self.value.split(",")) if self.value else ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A ProcessingResponse."""

    message: pb.ProcessingResponse

    @property
    def kind(self) -> str:
        """What it answers, as the protocol's field is called; "" for nothing that is known."""
        return self.message.WhichOneof("response") or ""

    @property
    def pick(self) -> Pick | None:
        """The endpoint it names, None if none."""
        found = Pick(self.header(names.STEER), self._metadata())
        return found if found.value else None

    @property
    def refusal(self) -> int | None:
        """HTTP status of an immediate answer to the client, None if it is none."""
        return int(self.message.immediate_response.status.code) if self.kind == "immediate_response" else None

    @property
    def chunk(self) -> tuple[bytes, bool] | None:
        """Bytes and end of stream of a body chunk as full duplex wants it; None if it is none."""
        if self.kind not in _BODIES:
            return None
        mutation = getattr(self.message, self.kind).response.body_mutation
        if mutation.WhichOneof("mutation") != "streamed_response":
            return None
        return mutation.streamed_response.body, mutation.streamed_response.end_of_stream

    @property
    def replaces_body(self) -> bool:
        """Whether it changes the body in any way."""
        if self.kind not in _BODIES:
            return False
        return getattr(self.message, self.kind).response.body_mutation.WhichOneof("mutation") is not None

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Namespaces of the metadata it sets."""
        return tuple(sorted(self.message.dynamic_metadata.fields))

    def header(self, name: str) -> str | None:
        """The value it gives a header; None if it leaves it alone."""
        options = [option for option in self.options() if option.header.key.lower() == name]
        return _text(options[-1].header) if options else None

    def options(self) -> list[pb.HeaderValueOption]:
        """The headers it sets."""
        mutation = self._mutation()
        return [] if mutation is None else list(mutation.set_headers)

    def _mutation(self) -> pb.HeaderMutation | None:
        kind = self.kind
        if kind == "immediate_response":
            return self.message.immediate_response.headers
        if kind in _TRAILERS:
            answer: pb.TrailersResponse = getattr(self.message, kind)
            return answer.header_mutation
        if kind in _HEADERS or kind in _BODIES:
            common: pb.CommonResponse = getattr(self.message, kind).response
            return common.header_mutation
        return None

    def _metadata(self) -> str | None:
        space = self.message.dynamic_metadata.fields.get(names.STEER_NAMESPACE)
        value = None if space is None else space.struct_value.fields.get(names.STEER)
        if value is None:
            return None
        return value.string_value if value.HasField("string_value") else f"a {value.WhichOneof('kind')}"


def _text(header: pb.HeaderValue) -> str:
    return header.raw_value.decode(errors="replace") or header.value
