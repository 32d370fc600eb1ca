"""Prompt: what the engine will prefill, read from a request body in the order its template renders it.

`read` finds the API by the path, parses the body (whole, or cut off anywhere) and returns a `Prompt`, or
why there is none: then the request is routed without a chain. Bodies are only read, never changed.

Law: the text of a body cut off at any byte is a start of the whole body's text, provided that what the
template renders first (model, tools, system) also came first; where the model has not come, there is no
chain. One file an API; `body` and `text` hold what they share.
Never raises on any input. Called by: exchange, `kvring explain`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from extproc.prompt import chat, completions, messages, pooling, responses
from extproc.prompt.body import TAIL_BYTES_MAX, Body, Prompt, Settings, Unkeyed, parse
from extproc.prompt.coding import inflate
from extproc.prompt.responses import ANSWER_BYTES_MAX, answer_id
from extproc.prompt.responses import API as STORED_ANSWERS
from extproc.prompt.volatile import KNOWN, Span

__all__ = [
    "ANSWER_BYTES_MAX",
    "KNOWN",
    "PATHS",
    "STORED_ANSWERS",
    "TAIL_BYTES_MAX",
    "Prompt",
    "Settings",
    "Span",
    "Unkeyed",
    "answer_id",
    "inflate",
    "model_of",
    "read",
]

_Api = Callable[[Body], Prompt | Unkeyed]

PATHS: dict[str, _Api] = {
    "/chat/completions": chat.read,
    "/completions": completions.read,
    "/responses": responses.read,
    "/embeddings": completions.embeddings,
    "/messages": messages.read,
    "/messages/count_tokens": messages.count,
    "/inference/v1/generate": completions.generate,
    "/tokenize": pooling.tokenize,
    "/detokenize": pooling.detokenize,
    "/rerank": pooling.rerank,
    "/score": pooling.score,
    "/classify": pooling.classify,
    "/pooling": pooling.classify,
}
"""By how the path ends, whatever a gateway put before it."""

_LONGEST_FIRST = sorted(PATHS, key=len, reverse=True)


def read(path: str, body: bytes, settings: Settings, *, whole: bool) -> Prompt | Unkeyed:
    """The prompt of a request, or the reason that it has none.

    Args:
        path: request target, with any prefix, query and trailing slash.
        body: what arrived of the request body, JSON without content coding.
        settings: limits, and what hashing leaves out.
        whole: False if more was to come.
    """
    plain = path.partition("?")[0].rstrip("/")
    rendered_only = plain.endswith("/render")
    plain = plain.removesuffix("/render")
    api = next((PATHS[end] for end in _LONGEST_FIRST if plain.endswith(end)), None)
    if api is None:
        return Unkeyed.PATH
    parsed = parse(body, settings, whole=whole)
    found = api(parsed) if isinstance(parsed, Body) else parsed
    if rendered_only and isinstance(found, Prompt):
        return replace(found, prefills=False)
    return found


def model_of(body: bytes, settings: Settings, *, whole: bool) -> str | None:
    """The model named in a body of which nothing else is known, or None; arguments as of `read`."""
    parsed = parse(body, settings, whole=whole)
    return parsed.model if isinstance(parsed, Body) else None
