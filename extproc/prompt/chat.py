"""Chat completions: what changes the template, tools, then messages with role, content and the rest.

The order is the one most chat templates render (docs/routing.md); a system message comes first because
clients send it first. Tools and keys are never sorted: another order is other tokens to the engine. Ids of
tool calls are left out: most templates do not render them.
Source: OpenAI API reference, /v1/chat/completions; vLLM's extra parameters; chat templates of Qwen, Llama 3
and Hermes.
"""

from __future__ import annotations

from typing import Any

from extproc.prompt import body as _body
from extproc.prompt import content
from extproc.prompt import text as _text

__all__ = ["OPTIONS", "message", "options", "read", "tools"]

# Fields that change the rendered prompt as a whole; where they differ, no block is shared.
OPTIONS = (
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "documents",
    "mm_processor_kwargs",
    "truncate_prompt_tokens",
)
_ROLES = {"system", "developer", "user", "assistant", "tool"}
_AFTER_CONTENT = ("reasoning", "reasoning_content", "name", "function_call", "audio")


def read(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The prompt of a chat request."""
    messages = body.listed("messages")
    if messages is None:
        return _body.Unkeyed.SHAPE
    if body.is_cut_behind("messages"):
        return _body.Unkeyed.CUT
    rendered = body.text()
    options(body, rendered, OPTIONS)
    tools(body, rendered)
    last = len(messages) - 1
    for position, one in enumerate(messages):
        cut = position == last and body.is_cut("messages")
        if rendered.ended:
            break
        if not message(rendered, one, cut=cut) and not cut:
            return _body.Unkeyed.SHAPE
    return body.prompt("chat", rendered)


def options(body: _body.Body, rendered: _text.Text, names: tuple[str, ...]) -> None:
    """Append the fields `names` that are there, each with its name."""
    for name in names:
        value = body.fields.get(name)
        if value is not None:
            rendered.name("option", name)
            rendered.add_json("option", value, cut=body.is_cut(name))


def tools(body: _body.Body, rendered: _text.Text) -> None:
    """Append the tools, unless the choice is to use none: then templates leave them out."""
    offered = body.fields.get("tools")
    choice = body.fields.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if offered and kind != "none":
        rendered.name("tools", "tools")
        if isinstance(offered, list):
            offered = [content.without(tool, "cache_control") for tool in offered]
        rendered.add_json("tools", offered, cut=body.is_cut("tools"))


def message(rendered: _text.Text, one: Any, *, cut: bool) -> bool:
    """Append one message; False if it has no form that a template renders.

    Of a message that is cut, only what no later key could precede is used: the role, then the content.
    """
    if not isinstance(one, dict):
        return False
    role = one.get("role")
    said = one.get("content")
    if cut:
        return _cut(rendered, role, said, one)
    if not isinstance(role, str):
        return False
    kind = role if role in _ROLES else "other"
    if said is None or isinstance(said, str):
        rendered.turn(kind, role, said or "")
    else:
        rendered.name("role", role)
        if not content.add(rendered, kind, said, cut=False):
            return False
    if len(one) == 2:
        return True
    for name in _AFTER_CONTENT:
        if one.get(name):
            rendered.add_json("extra", [name, one[name]])
    calls = one.get("tool_calls")
    if calls:
        if isinstance(calls, list):
            calls = [content.without(call, "id") for call in calls]
        rendered.add_json("calls", calls)
    return True


def _cut(rendered: _text.Text, role: Any, said: Any, one: dict[str, Any]) -> bool:
    last_key = next(reversed(one), None)
    if not isinstance(role, str) or last_key == "role":
        return False
    rendered.name("role", role)
    if "content" not in one:
        return True
    kind = role if role in _ROLES else "other"
    return content.add(rendered, kind, said, cut=last_key == "content")
