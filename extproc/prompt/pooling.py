"""Requests without an answer text: rerank, score, classify, pooling, tokenize, detokenize.

What several inputs share stands first in the engine's prompt: the query of a rerank, the first text of a
score. Tokenizing prefills nothing, and is keyed all the same.
Source: vLLM's API: /rerank (Jina, Cohere), /score, /classify, /pooling, /tokenize, /detokenize.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from extproc.prompt import body as _body
from extproc.prompt import chat, completions
from extproc.prompt import text as _text

__all__ = ["classify", "detokenize", "rerank", "score", "tokenize"]


def rerank(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The query, then the documents."""
    return _pair(body, "rerank", (("query",), ("documents",)))


def score(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The first text or texts, then the second ones."""
    return _pair(body, "score", (("text_1", "queries", "data_1"), ("text_2", "documents", "items", "data_2")))


def classify(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """One input, or messages."""
    if "messages" in body.fields:
        return chat.read(body)
    return completions.prompt_at(body, "pooling", "input")


def tokenize(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The prompt, or messages, that would be prefilled."""
    found = chat.read(body) if "messages" in body.fields else completions.read(body)
    return replace(found, prefills=False) if isinstance(found, _body.Prompt) else found


def detokenize(body: _body.Body) -> _body.Prompt | _body.Unkeyed:
    """The token ids."""
    found = completions.prompt_at(body, "completions", "tokens")
    return replace(found, prefills=False) if isinstance(found, _body.Prompt) else found


def _pair(body: _body.Body, api: str, names: tuple[tuple[str, ...], ...]) -> _body.Prompt | _body.Unkeyed:
    rendered = body.text()
    for known in names:
        name = next((name for name in known if name in body.fields), None)
        if name is None:
            if body.cut_key is None:
                return _body.Unkeyed.SHAPE
            break  # it may still come
        if not _texts(rendered, body.fields[name], cut=body.is_cut(name)):
            return _body.Unkeyed.SHAPE
        if body.is_cut_behind(name) and known is names[-1]:
            return _body.Unkeyed.CUT
    return body.prompt(api, rendered)


def _texts(rendered: _text.Text, given: Any, *, cut: bool) -> bool:
    texts = given if isinstance(given, list) else [given]
    last = len(texts) - 1
    for position, one in enumerate(texts):
        if rendered.ended:
            break
        ends_cut = cut and position == last
        if isinstance(one, str):
            rendered.add("text", _text.PART, one, cut=ends_cut)
        elif isinstance(one, dict):
            rendered.add_json("media", one, cut=ends_cut)
        else:
            return False
    return bool(texts)
