"""Address: where something listens, parsed from "HOST:PORT", "[IPV6]:PORT" or "unix:/PATH".

Invariant: a host that is not an IP literal is a DNS name and is said to be one; nothing is resolved here.
Called by: bootstrap.listener, bootstrap.cluster, the command line.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Address", "parse"]

_DNS_NAME = re.compile(r"(?=.{1,253}$)([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?\.?)+")


@dataclass(frozen=True, slots=True)
class Address:
    """`host` and `port` of a TCP address (IPv6 without brackets), or `path` of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_dns(self) -> bool:
        """Whether the host is a name that somebody has to resolve."""
        if self.path:
            return False
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return True
        return False

    def envoy(self) -> dict[str, Any]:
        """This address as Envoy's `core.v3.Address`."""
        if self.path:
            return {"pipe": {"path": self.path}}
        return {"socket_address": {"address": self.host, "port_value": self.port}}


def parse(text: str, *, port_min: int = 1) -> Address:
    """The address written in `text`.

    Args: port_min [0 or 1]; 0 admits port 0, "any free one", for addresses to listen on.
    Raises ValueError, naming the text and what is wrong with it.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        # sun_path of a Unix socket holds 108 bytes with its end; Envoy refuses more
        if not path.startswith("/") or len(path.encode()) > 107:
            raise ValueError(f"{text!r}: a Unix socket is unix:/ABSOLUTE/PATH of at most 107 bytes")
        return Address(path=path)
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not port_min <= int(port) <= 65535:
        raise ValueError(f"{text!r}: expected HOST:PORT with a port of {port_min}..65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{text!r}: no IPv6 address in the brackets") from None
    elif ":" in host:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, [::1]:8000")
    elif not _DNS_NAME.fullmatch(host):
        raise ValueError(f"{text!r}: {host!r} is neither an IP address nor a DNS name")
    return Address(host=host, port=int(port))
