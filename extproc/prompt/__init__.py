"""Prompt: what the engine will prefill, read from a request body in the order its template renders it.

`read` finds the API by the path, parses the body (whole, or cut off anywhere) and returns a `Prompt`, or
why there is none: then the request is routed without a chain. Bodies are only read, never changed.

Law: the text of a body cut off at any byte is a start of the whole body's text, provided that what the
template renders first (model, tools) also came first. One file an API; `body` holds what they share.
Never raises on any input. Called by: exchange.
"""

from __future__ import annotations

from extproc.prompt import chat, completions
from extproc.prompt.body import Body, Prompt, Unkeyed, parse

__all__ = ["Prompt", "Unkeyed", "read"]

_APIS = {
    "/chat/completions": chat.read,
    "/completions": completions.read,
}


def read(path: str, body: bytes, *, whole: bool, bytes_max: int) -> Prompt | Unkeyed:
    """The prompt of a request, or the reason that it has none.

    Args:
        path: request target, with any prefix, query and trailing slash.
        body: what arrived of the request body, uncompressed JSON.
        whole: False if more was to come.
        bytes_max: of the body, no more than this is read [bytes].
    """
    plain = path.partition("?")[0].rstrip("/").removesuffix("/render")
    api = next((api for suffix, api in _APIS.items() if plain.endswith(suffix)), None)
    if api is None:
        return Unkeyed.PATH
    parsed = parse(body[:bytes_max], whole=whole and len(body) <= bytes_max)
    return api(parsed) if isinstance(parsed, Body) else parsed
