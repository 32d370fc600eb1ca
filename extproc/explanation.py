"""Explanation: how one request would be routed: prompt, chain, anchor, key, ring order, candidates, choice.

The same code answers `kvring explain` (over the endpoints of a file, all cold and idle) and the page of a
running sidecar (over what it knows at that moment). Nothing is taken, counted or remembered.

Never: an exception for any request; text of the prompt unless `show_text`. Called by: cli.explain, admin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from extproc import choice, exchange, groups, hasher, prompt, reading

__all__ = ["Asked", "Unanswered", "explain"]

_TEXT_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. `headers`: names in lower case, ":path" among them; `whole`: False if more was to come;
    `attributes`: Envoy's, by name.
    """

    headers: Mapping[str, str]
    body: bytes
    whole: bool = True
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Nobody would be chosen; `why` in one sentence."""

    why: str


def explain(
    pools: groups.Groups, how: exchange.Settings, asked: Asked, now: float, *, show_text: bool = False
) -> dict[str, Any] | Unanswered:
    """What would become of `asked` at `now` [s, monotonic], as JSON has it."""
    told = reading.read(asked.headers, asked.body, how.prompt, whole=asked.whole)
    read, model = told.prompt, told.model
    found = read if isinstance(read, prompt.Prompt) else None
    chooser = pools.find(model, asked.attributes)
    if chooser is None:
        return Unanswered("the request belongs to no pool: no model, cluster or route of a pool matches it")
    key = asked.headers.get(how.key_header) or None if how.key_header else None
    if isinstance(chooser, hasher.Hasher):
        hashed = chooser.preview(chooser.read(read, key, model))
        return {
            **_read(chooser.name, asked, found, hashed, show_text=show_text),
            "steering": "hash",
            "hash": hashed.text or None,
            "block_bytes": chooser.settings.block_bytes,
            "chain": _chain(chooser, found),
        }
    seen = chooser.preview(chooser.read(read, key, model), now, 0.0)
    if isinstance(seen, choice.NoEndpoint):
        return Unanswered(
            f"pool {seen.pool} has nobody to choose: {seen.in_pool} endpoints, {seen.ready} of them ready,"
            " none of which serves the model"
        )
    made = seen.choice
    return {
        **_read(chooser.pool.name, asked, found, made, show_text=show_text),
        "steering": "endpoint",
        "block_bytes": chooser.settings.block_bytes,
        "chain": _chain(chooser, found),
        "ring": list(seen.order),
        "policy": made.policy,
        "cached_tokens": round(made.cached_tokens),
        "costs": dict(zip(made.candidates, made.costs, strict=False)),
        "candidates": [
            {
                "endpoint": name,
                "inflight": seen.asked.inflight[at],
                "pending_tokens": round(seen.asked.pending[at]),
                "cached_tokens": round(seen.asked.cached[at]),
                "kv_usage": seen.asked.kv_usage[at] or None,
                "work": round(seen.asked.work[at]),
                "cost": None if not made.costs else made.costs[at],
            }
            for at, name in enumerate(seen.names)
        ],
        "bound": round(seen.bound),
        "bound_on": "open requests" if made.policy == "cost" else "tokens of work",
        "choice": made.endpoint.id,
        "address": made.endpoint.address,
        "reason": made.reason,
    }


def _read(
    pool: str,
    asked: Asked,
    found: prompt.Prompt | None,
    made: choice.Choice | choice.Hashed,
    *,
    show_text: bool,
) -> dict[str, Any]:
    """What is told of a request whoever chooses: how it was read, and its key."""
    return {
        "pool": pool,
        "api": found.api if found else None,
        "model": found.model if found else None,
        "unkeyed": made.unkeyed,
        "body_bytes": len(asked.body),
        "cut": found.cut if found else not asked.whole,
        "segments": _segments(found, show_text=show_text) if found else [],
        "anchor": made.anchor_block,
        "key": None if made.key is None else f"{made.key:016x}",
        "keyed_by": made.keyed_by,
        "prompt_tokens": round(made.prompt_tokens),
    }


def _chain(chooser: groups.Chooser, found: prompt.Prompt | None) -> list[str]:
    if found is None or found.unkeyed is not None:
        return []
    return [f"{block:016x}" for block in chooser.chain_of(found).hashes]


def _segments(found: prompt.Prompt, *, show_text: bool) -> list[dict[str, Any]]:
    segments = []
    start = 0
    for kind, size in found.segments:
        segment: dict[str, Any] = {"kind": kind, "start": start, "end": start + size}
        if show_text:
            text = found.text[start : start + size].decode("utf-8", "replace")
            segment["text"] = text[:_TEXT_SHOWN_CHARS]
        segments.append(segment)
        start += size
    return segments
