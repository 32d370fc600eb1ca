"""Asking: the rules about the ext_proc filter, that is, about how Envoy asks kvring.

Called by: traps.find. What each finding means: catalogue.
"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.traps import hashing
from extproc.traps.finding import Finding
from extproc.traps.reading import Asking, Door, Part, Setup, at, seconds

__all__ = ["findings"]

_NAMESPACE = "envoy.lb"
_BODY_START_BYTES = 1 << 20
_TIMEOUT_DEFAULT_S, _TIMEOUT_LONG_S = 0.2, 5.0


def findings(setup: Setup) -> Iterator[Finding]:
    """What is wrong with how kvring is asked."""
    if not setup.doors:
        yield Finding("no-filter", "the file")
    for door in setup.doors:
        for asking in door.askings:
            yield from _listens(asking)
            yield from _on_failure(asking)
            yield from _body(door, asking)
        modes = [_mode(one, "request_body_mode") for one in door.askings]
        names = {one.filter_name for one, mode in zip(door.askings, modes, strict=True) if "DUPLEX" in mode}
        if len(names) > 1:
            yield Finding("two-duplex", door.where, f"{len(names)} filters")


def _mode(asking: Part, which: str) -> str:
    return str(at(asking.value, "processing_mode", which) or "")


def _listens(asking: Asking) -> Iterator[Finding]:
    if at(asking.value, "observability_mode"):
        yield Finding("observing", asking.where, "observability_mode")
    if _mode(asking, "request_header_mode") == "SKIP":
        yield Finding("headers-skipped", asking.where, "request_header_mode: SKIP")


def _on_failure(asking: Asking) -> Iterator[Finding]:
    if not at(asking.value, "failure_mode_allow"):
        yield Finding("fail-closed", asking.where)
    if "DUPLEX" in _mode(asking, "request_body_mode"):
        if at(asking.value, "failure_mode_allow"):
            yield Finding("duplex-open", asking.where, "FULL_DUPLEX_STREAMED")
        return  # message_timeout is not applied
    timeout_s = seconds(at(asking.value, "message_timeout"), _TIMEOUT_DEFAULT_S)
    if timeout_s <= _TIMEOUT_DEFAULT_S:
        yield Finding("message-timeout", asking.where, f"{timeout_s:g} s")
    elif timeout_s > _TIMEOUT_LONG_S:
        yield Finding("message-timeout-long", asking.where, f"{timeout_s:g} s")


def _body(door: Door, asking: Asking) -> Iterator[Finding]:
    request, response = _mode(asking, "request_body_mode"), _mode(asking, "response_body_mode")
    if request == "STREAMED":
        yield Finding("streamed", asking.where, request)
    if response in {"BUFFERED", "BUFFERED_PARTIAL"}:
        yield Finding("answer-buffered", asking.where, f"response_body_mode: {response}")
    if request in {"BUFFERED", "BUFFERED_PARTIAL"}:
        for route in door.routes:
            limit = _buffered_bytes(door, route)
            if limit < _BODY_START_BYTES or (request == "BUFFERED" and limit <= _BODY_START_BYTES):
                trap = "body-limit" if request == "BUFFERED" else "body-start"
                yield Finding(trap, route.where, f"{limit} bytes")
    elif hashing.is_only(door):
        pass  # nobody counts what is open
    elif response in {"", "NONE"} and _mode(asking, "response_trailer_mode") != "SEND":
        yield Finding("stream-short", asking.where, f"request_body_mode: {request or 'NONE'}")
    if request in {"BUFFERED_PARTIAL", "STREAMED", "FULL_DUPLEX_STREAMED"} and not at(
        asking.value, "allow_content_length_header"
    ):
        yield Finding("content-length", asking.where)


def _buffered_bytes(door: Door, route: Part) -> int:
    """How much of a body Envoy keeps on this route [bytes]."""
    for block in (route.value, at(route.value, "host")):
        for key in ("request_body_buffer_limit", "per_request_buffer_limit_bytes"):
            limit = at(block, key)
            if isinstance(limit, str) and limit.isdecimal():  # 64 bit numbers are text in a config dump
                limit = int(limit)
            if isinstance(limit, int):
                return limit
    return door.buffer_bytes
