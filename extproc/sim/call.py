"""Call: one API request as the replica understands it, or the error it answers with.

Checked are the fields that decide tokens and shape: model, messages or prompt, limits, streaming. Sampling
fields are accepted and ignored, the simulated model has nothing to sample.

Invariant: prompts are whole tokens and leave room for output in the context. Called by: replica.
Source: OpenAI API; statuses and wording classes of vLLM 0.32.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from extproc.sim import kv_cache, messages, template

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Call", "CallError", "Kind", "Served", "parse", "tokenize"]

_CHOICES_MAX = 128
_CHAT_OUTPUT_TOKENS = 100
_COMPLETION_OUTPUT_TOKENS = 16  # the OpenAI API's default


class Kind(enum.Enum):
    """Which API; the values are the prefixes of answer ids."""

    CHAT = "chatcmpl"
    COMPLETION = "cmpl"
    MESSAGES = "msg"  # Anthropic's


@dataclass(frozen=True, slots=True)
class Served:
    """What a replica serves: model name, names of LoRA adapters, longest context [tokens]."""

    model: str
    context_tokens: int
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A valid request. `prompts`: token bytes, each answered `choices` times with `output_tokens` tokens."""

    kind: Kind
    model: str
    adapter: str
    cache_salt: str
    prompts: tuple[bytes, ...]
    choices: int
    output_tokens: int
    stream: bool
    usage_in_stream: bool
    reads_cache: bool


class CallError(Exception):
    """An error answer: HTTP status, vLLM's error type, a message without prompt text, the field."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param


def parse(kind: Kind, raw: bytes, served: Served) -> Call:
    """The call in a request body. Errors: CallError, status 400 or 404."""
    body = _decode(raw)
    adapter = _adapter(body, served)
    if kind is Kind.MESSAGES:
        if body.get("max_tokens") is None:
            raise _invalid("max_tokens: Field required", "max_tokens")
        body = messages.translate(body)
    prompts = _prompts(body) if kind is Kind.COMPLETION else (_chat(body),)
    stream = body.get("stream") or False
    options = body.get("stream_options")
    if options is not None and not (stream and isinstance(options, dict)):
        raise _invalid("Stream options can only be defined when `stream=True`.", "stream_options")
    salt = body.get("cache_salt")
    if salt is not None and not (isinstance(salt, str) and salt):
        raise _invalid("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    choices = 1 if kind is Kind.MESSAGES else _count(body, "n", 1, _CHOICES_MAX)
    prompt_tokens = max(len(prompt) // kv_cache.TOKEN_BYTES for prompt in prompts)
    return Call(
        kind=kind,
        model=body.get("model") or served.model,
        adapter=adapter,
        cache_salt=salt or "",
        prompts=prompts,
        choices=choices,
        output_tokens=_output_tokens(kind, body, prompt_tokens, served.context_tokens),
        stream=bool(stream),
        usage_in_stream=bool(options and options.get("include_usage")),
        reads_cache=body.get("prompt_logprobs") is None,
    )


def tokenize(kind: Kind, raw: bytes, served: Served) -> list[int]:
    """Token ids of a body that has messages (kind: chat or Anthropic's) or a prompt.

    Errors: CallError, status 400 or 404.
    """
    body = _decode(raw)
    _adapter(body, served)
    if kind is Kind.MESSAGES:
        body = messages.translate(body)
    if "messages" in body:
        tokens = _chat(body)
    elif isinstance(body.get("prompt"), str):
        tokens = template.pad(body["prompt"].encode(errors="surrogatepass"))
    else:
        raise _invalid("Field required", "prompt")
    width = kv_cache.TOKEN_BYTES
    return [int.from_bytes(tokens[i : i + width], "little") for i in range(0, len(tokens), width)]


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CallError(400, "Bad Request", "The request body is not valid JSON.") from None
    if not isinstance(body, dict):
        raise CallError(400, "Bad Request", "The request body must be a JSON object.")
    return body


def _adapter(body: dict[str, Any], served: Served) -> str:
    model = body.get("model")
    if model is None or model == served.model:
        return ""
    if model in served.adapters:
        return str(model)
    raise CallError(404, "NotFoundError", f"The model `{str(model)[:100]}` does not exist.", "model")


def _chat(body: dict[str, Any]) -> bytes:
    turns = body.get("messages")
    if not isinstance(turns, list) or not turns:
        raise _invalid("Field required: a list of messages", "messages")
    for message in turns:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _invalid("Each message must be an object with a role", "messages")
        if not isinstance(message.get("content"), (str, list, type(None))):
            raise _invalid("A message's content must be a string or a list of parts", "messages")
        if not isinstance(message.get("tool_calls"), (list, type(None))):
            raise _invalid("A message's tool_calls must be a list", "messages")
    if not isinstance(body.get("tools"), (list, type(None))):
        raise _invalid("Must be a list of tools", "tools")
    return template.render(body, turns)


def _prompts(body: dict[str, Any]) -> tuple[bytes, ...]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        items: Sequence[Any] = [prompt]
    elif isinstance(prompt, list) and prompt:
        items = prompt if isinstance(prompt[0], (str, list)) else [prompt]
    else:
        raise _invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if len(items) > _CHOICES_MAX:
        raise _invalid(f"At most {_CHOICES_MAX} prompts in one request.", "prompt")
    return tuple(_tokens(item) for item in items)


def _tokens(prompt: Any) -> bytes:
    if isinstance(prompt, str) and prompt:
        return template.pad(prompt.encode(errors="surrogatepass"))
    if isinstance(prompt, list) and prompt:
        try:
            return b"".join(token.to_bytes(kv_cache.TOKEN_BYTES, "little") for token in prompt)
        except (AttributeError, OverflowError):
            raise _invalid("Token ids must be integers in the vocabulary.", "prompt") from None
    raise _invalid("The decoder prompt cannot be empty", "prompt")


def _output_tokens(kind: Kind, body: dict[str, Any], prompt_tokens: int, context_tokens: int) -> int:
    """Tokens to generate: what is asked, or the default as far as the context has room."""
    room = context_tokens - prompt_tokens
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    if room < 1 or body.get(name) is None:
        default = _COMPLETION_OUTPUT_TOKENS if kind is Kind.COMPLETION else _CHAT_OUTPUT_TOKENS
        asked = min(default, max(room, 1))
    else:
        asked = _count(body, name, 1, None)
    if asked > room:
        raise _invalid(
            f"This model's maximum context length is {context_tokens} tokens. However, you requested "
            f"{asked} output tokens and your prompt contains {prompt_tokens} input tokens.",
            "input_tokens",
        )
    return asked


def _count(body: dict[str, Any], name: str, default: int, most: int | None) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid("Input should be a valid integer", name)
    if value < 1 or (most is not None and value > most):
        raise _invalid(f"{name} must be at least 1{f' and at most {most}' if most else ''}.", name)
    return value


def _invalid(message: str, param: str) -> CallError:
    return CallError(400, "BadRequestError", message, param)
