"""Which endpoints a gateway's subset hint allows."""

import pytest

from extproc import pool, subset

ADDRESSES = ("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8000", "[fd00::1]:8001")
ENDPOINTS = [pool.Endpoint(pool.EndpointId(address), address) for address in ADDRESSES]


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ((), ()),
        (("10.0.0.1:8001",), (1,)),
        (("10.0.0.2:8000", "10.0.0.1:8000"), (0, 2)),
        (("10.0.0.1",), (0, 1)),
        (("10.0.0.1:9999",), ()),
        (("[fd00::1]:8001",), (4,)),
        (("[FD00:0:0:0:0:0:0:1]:8001",), (4,)),
        (("[fd00::1]",), (3, 4)),
        (("fd00::1",), (3, 4)),
        (("[fd00::2]:8000",), ()),
        (("fd00::1:8000",), ()),  # an address of its own, without a port
        (("10.0.0.1:", "10.0.0.1:x", "x:8000", "[fd00::1]:x", "[]:1", "", "::::", "[fd00::1]:٣"), ()),
        (("nonsense", "10.0.0.2:8000", "[fd00:0::1]:8000"), (2, 3)),
    ],
    ids=str,
)
def test_entries_name_endpoints_by_ip_and_port(entries: tuple[str, ...], allowed: tuple[int, ...]) -> None:
    assert [e.address for e in subset.within(ENDPOINTS, entries)] == [ADDRESSES[at] for at in allowed]
