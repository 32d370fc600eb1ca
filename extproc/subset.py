"""Subset: which endpoints of a pool a gateway allows for a request.

An entry is "ip:port", IPv6 in brackets; one without a port stands for all ports of that ip. Text is compared
first, since gateways and kvring write addresses alike; what is left over is compared as addresses, for an
IPv6 that is written otherwise.

Never: an endpoint of another port than the entry's (data-parallel ranks share an ip).
Called by: router. Source: Gateway API Inference Extension proposal 004.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Collection, Sequence

from extproc import pool

__all__ = ["within"]

_Place = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int | None]


def within(endpoints: Sequence[pool.Endpoint], entries: Collection[str]) -> tuple[pool.Endpoint, ...]:
    """Of `endpoints` those that `entries` name, in their own order; unreadable entries name nobody."""
    texts = set(entries)
    left = texts.difference(endpoint.address for endpoint in endpoints)
    # "1.2.3.4:80" can't be written otherwise: only IPv6 and entries without a port are worth a closer look.
    places = {place for text in left if text.count(":") != 1 and (place := _place(text)) is not None}
    if not places:
        return tuple(endpoint for endpoint in endpoints if endpoint.address in texts)
    return tuple(
        endpoint
        for endpoint in endpoints
        if endpoint.address in texts or not places.isdisjoint(_names_of(endpoint.address))
    )


def _names_of(address: str) -> tuple[_Place, ...]:
    place = _place(address)
    return () if place is None else (place, (place[0], None))


@functools.lru_cache(maxsize=4096)
def _place(text: str) -> _Place | None:
    host, colon, port = text.rpartition(":")
    if text.startswith("[") and text.endswith("]"):
        host, colon, port = text[1:-1], "", ""
    elif host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif text.count(":") != 1:  # no port: an IPv4, or an IPv6 without brackets
        host, colon, port = text, "", ""
    try:
        number = int(port) if colon and port.isascii() and port.isdigit() else None
        return None if colon and number is None else (ipaddress.ip_address(host), number)
    except ValueError:
        return None
