"""Template: chat messages as the text a model is fed, in the order a Qwen-style chat template renders them.

    system turn (system text, then tools), the other turns, the head of the assistant's turn

Each head, text and end is padded to whole tokens, as a real tokenizer never joins text across its special
tokens. So an answer, sent back as the next request's assistant message, is found in the cache.

Invariant: appending a message changes no byte before the last head. Nothing is sorted. Called by: call.
Source: order of rendered prompts observed with Qwen templates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from extproc.sim import kv_cache

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["pad", "render"]

_END = b"<|e>"


def pad(text: bytes) -> bytes:
    """`text` filled with NUL to whole tokens."""
    return text + bytes(-len(text) % kv_cache.TOKEN_BYTES)


def render(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> bytes:
    """The prompt's tokens. `body` gives tools and template options, `messages` is checked already."""
    rendered = bytearray()
    rest = messages
    system = ""
    if messages and messages[0].get("role") in ("system", "developer"):
        system = _text(messages[0].get("content"))
        rest = messages[1:]
    tools = body.get("tools") if body.get("tool_choice") != "none" else None
    options = [body[name] for name in ("chat_template_kwargs", "reasoning_effort") if body.get(name)]
    if system or tools or options:
        rendered += _head("system")
        rendered += pad(system.encode(errors="surrogatepass"))
        for item in (*(tools or ()), *options):
            rendered += pad(msgspec.json.encode(item))
        rendered += _END
    for message in rest:
        rendered += _turn(message)
    if body.get("add_generation_prompt", True):
        rendered += _head("assistant")
    return bytes(rendered)


def _head(role: str) -> bytes:
    return pad(f"<|im_start|>{role}\n".encode(errors="surrogatepass"))


def _turn(message: Mapping[str, Any]) -> bytes:
    turn = _head(str(message.get("role"))) + pad(_text(message.get("content")).encode(errors="surrogatepass"))
    for call in message.get("tool_calls") or ():
        # ids of tool calls are not rendered by most templates
        turn += pad(msgspec.json.encode(call.get("function") if isinstance(call, dict) else call))
    return turn + _END


def _text(content: Any) -> str:
    """The text of a message's content; an array of one text part is that text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        # an image or file enters by its reference: equal references are equal tokens
        parts.append(text if isinstance(text, str) else msgspec.json.encode(part).decode())
    return "\n".join(parts)
