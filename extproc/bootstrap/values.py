"""Values: what the reader of a bootstrap decides; everything else in it follows.

A `Listener` is one door of the gateway: where clients connect, which endpoints serve them, and, with a
`Steering`, which kvring processes are asked for the endpoint. Without one the door is plain ROUND_ROBIN,
the arm to compare with. One Envoy can hold several doors.

Invariant: a value that exists is valid; a bad one raises ValueError naming the value and the range.
Called by: the command line, the demo, tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from extproc.bootstrap import address
from extproc.protocol import BodyMode

__all__ = ["BODY_BYTES_MAX", "Endpoint", "Hash", "Listener", "Sidecar", "Steering", "Tls"]

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Default for `Listener.body_bytes_max`: a 115k-token transcript is ~0.5 MB, with a few images 3-5 MB."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model server: a stable `name` and its `address` "HOST:PORT"."""

    name: str
    address: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError(f"endpoint {self.address!r}: needs a name")
        if address.parse(self.address).path:
            raise ValueError(f"endpoint {self.name!r}: {self.address!r} must be HOST:PORT, not a socket path")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """One kvring process: `address` "HOST:PORT" or "unix:/PATH" of its ext_proc port.

    health_port [0..65535]: its gRPC health port, on the same host (on 127.0.0.1 beside a Unix socket);
    0: only the TCP connection is checked, which finds a dead process but not a hung one.
    """

    address: str
    health_port: int = 0

    def __post_init__(self) -> None:
        address.parse(self.address)
        if not 0 <= self.health_port <= 65535:
            raise ValueError(f"health port {self.health_port}: expected 0..65535")


@dataclass(frozen=True, slots=True)
class Tls:
    """One side of TLS, as paths of PEM files that Envoy reads.

    ca_path: certificates that the other side's is checked by, "" = not checked. cert_path, key_path: the own
    certificate and its key, both or neither. server_name: the name asked for, and the one that a checked
    certificate must be for; "" = none.
    """

    ca_path: str = ""
    cert_path: str = ""
    key_path: str = ""
    server_name: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert_path) != bool(self.key_path):
            raise ValueError("TLS: a certificate needs its key, and a key its certificate")


@dataclass(frozen=True, slots=True)
class Hash:
    """Envoy's own consistent hashing chooses, by the header that kvring sets.

    algorithm: RING_HASH or MAGLEV. balance_percent [101..1000]: an endpoint with more active requests than
    this share of the mean takes no more of its keys.
    """

    algorithm: Literal["RING_HASH", "MAGLEV"] = "RING_HASH"
    balance_percent: int = 150

    def __post_init__(self) -> None:
        if self.algorithm not in ("RING_HASH", "MAGLEV"):
            raise ValueError(f"hash algorithm {self.algorithm!r}: expected RING_HASH or MAGLEV")
        if not 101 <= self.balance_percent <= 1000:
            raise ValueError(f"hash balance {self.balance_percent} %: expected 101..1000")


@dataclass(frozen=True, slots=True)
class Steering:
    """How a listener asks kvring.

    sidecars: the processes asked, one stream per request, round robin.
    body_mode: what of the request body kvring sees. response_body_mode: of the answer; NONE asks for
    no response messages at all. message_timeout_s [0.001..3600]: longest think time of kvring per
    message. fail_open: whether Envoy balances by itself when kvring is down, hung or wrong.
    cluster_name: Envoy's name for the group of sidecars; listeners with equal groups may share it.
    tls: how the sidecars' ext_proc ports are spoken to, None = plaintext (as their health ports always are).
    hash: None = kvring names the endpoint; else its pool must say `steering: hash`.
    """

    sidecars: Sequence[Sidecar]
    body_mode: BodyMode = BodyMode.BUFFERED_PARTIAL
    response_body_mode: BodyMode = BodyMode.NONE
    message_timeout_s: float = 0.25
    fail_open: bool = True
    cluster_name: str = "kvring"
    tls: Tls | None = None
    hash: Hash | None = None

    @property
    def is_duplex(self) -> bool:
        """Whether request bodies go through kvring."""
        return self.body_mode is BodyMode.FULL_DUPLEX_STREAMED

    def __post_init__(self) -> None:
        if not self.sidecars:
            raise ValueError("steering: needs the address of at least one kvring process")
        if not 0.001 <= self.message_timeout_s <= 3600:
            raise ValueError(f"message timeout {self.message_timeout_s} s: expected 0.001..3600")
        for mode in (self.body_mode, self.response_body_mode):
            if mode is BodyMode.GRPC:
                raise ValueError(f"body mode {mode.name}: not one that Envoy can apply to LLM requests")


@dataclass(frozen=True, slots=True)
class Listener:
    """One door of the gateway.

    name: of Envoy's listener and of its cluster of endpoints. listen: "HOST:PORT", port 0 = any free.
    steering: None = plain ROUND_ROBIN. body_bytes_max [64 KiB..1 GiB]: of a request body, how much Envoy
    keeps for kvring to see and for a retry to resend. expose_endpoint: tell clients who served them in
    the response header `x-kvring-endpoint`; expose_decision: and why, in `x-kvring-decision`, where kvring
    sends it (`decision_metadata`). access_log_path: file of one JSON line a request, "" = none.
    endpoints_path: instead of `endpoints`, a file of them in Envoy's own form (EDS), read again whenever
    another is moved onto it. tls: for clients, None = plaintext.
    """

    listen: str
    endpoints: Sequence[Endpoint]
    steering: Steering | None = None
    name: str = "llm"
    body_bytes_max: int = BODY_BYTES_MAX
    expose_endpoint: bool = False
    expose_decision: bool = False
    access_log_path: str = ""
    endpoints_path: str = ""
    tls: Tls | None = None

    def __post_init__(self) -> None:
        if address.parse(self.listen, port_min=0).is_dns:
            raise ValueError(f"listen {self.listen!r}: Envoy binds IP addresses, not names")
        if bool(self.endpoints) == bool(self.endpoints_path):
            raise ValueError(f"listener {self.name!r}: needs at least one endpoint, or a file of them")
        if self.tls and not self.tls.cert_path:
            raise ValueError(f"listener {self.name!r}: TLS for clients needs a certificate")
        for kind in ("name", "address"):
            seen = [getattr(endpoint, kind) for endpoint in self.endpoints]
            twice = next((value for value in seen if seen.count(value) > 1), None)
            if twice is not None:
                raise ValueError(f"listener {self.name!r}: endpoint {kind} {twice!r} is given twice")
        if not 65536 <= self.body_bytes_max <= 1 << 30:
            raise ValueError(f"body bytes max {self.body_bytes_max}: expected 65536..1073741824")
        if self.steering and self.steering.cluster_name == self.name:
            raise ValueError(f"listener {self.name!r}: its cluster and kvring's need different names")
