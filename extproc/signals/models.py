"""Models: which names an engine serves, from its `/v1/models`: the base model's, and those of its adapters.

Never: an exception. Called by: scrape. Source: OpenAI's list of models as vLLM, SGLang, llama.cpp and TGI
answer it.
"""

from __future__ import annotations

import msgspec

__all__ = ["MODELS_MAX", "read_models"]

MODELS_MAX = 256
"""Names of one endpoint at most; of more, the first stay."""


class _Model(msgspec.Struct):
    id: str


class _List(msgspec.Struct):
    data: list[_Model]


_DECODER = msgspec.json.Decoder(_List)


def read_models(body: bytes) -> frozenset[str] | None:
    """The names in the answer; None if it is no list of models."""
    try:
        listed = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return frozenset(model.id for model in listed.data[:MODELS_MAX] if model.id)
