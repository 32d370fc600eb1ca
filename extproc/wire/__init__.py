"""Wire: Envoy's ext_proc messages as exchange events, and exchange actions as Envoy's messages.

bytes -> parse -> message -> decode -> event;  action -> messages -> message -> serialize -> bytes

`parse` and `serialize` are the (de)serializers of the gRPC method. Only this package and `conformance` know
protobuf. Called by: server.
"""

from extproc.wire.incoming import ATTRIBUTES_MAX, HEADERS_MAX, SUBSET_ADDRESSES_MAX, decode, parse
from extproc.wire.names import METHOD, SERVICE
from extproc.wire.outgoing import ECHO_BYTES_MAX, encode, messages, serialize

__all__ = [
    "ATTRIBUTES_MAX",
    "ECHO_BYTES_MAX",
    "HEADERS_MAX",
    "METHOD",
    "SERVICE",
    "SUBSET_ADDRESSES_MAX",
    "decode",
    "encode",
    "messages",
    "parse",
    "serialize",
]
