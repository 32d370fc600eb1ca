"""Allowed: what a setting may be, in words; read from the types in `values`.

Called by: config.reading (errors), docs/generate.py (the table).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from extproc.config import values

__all__ = ["Setting", "keys_at", "range_at", "settings"]

_NOTHING = inspect.NoneType()


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: dotted key, allowed values, default ("required" if none), meaning."""

    key: str
    allowed: str
    default: str
    meaning: str


def settings() -> Iterator[Setting]:
    """Every setting, in the order of the classes."""
    yield from _rows(inspect.type_info(values.Config), "")


def range_at(path: list[str | int]) -> str:
    """What is allowed at `path`, for example "an integer from 64 to 4096"."""
    return _words(_walk(path))


def keys_at(path: list[str | int]) -> list[str]:
    """The keys a block at `path` may have."""
    found = _walk(path)
    return [field.name for field in found.fields] if isinstance(found, inspect.StructType) else []


def _rows(found: inspect.Type, prefix: str) -> Iterator[Setting]:
    bare, _ = _bare(found)
    if isinstance(bare, inspect.ListType):
        yield from _rows(bare.item_type, prefix[:-1] + "[].")
    if not isinstance(bare, inspect.StructType):
        return
    for field in bare.fields:
        inner, meaning = _bare(field.type)
        default = "required" if field.required else _default(field.default)
        yield Setting(prefix + field.name, _words(inner), default, meaning)
        yield from _rows(inner, f"{prefix}{field.name}.")


def _default(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        return "see below"
    if value is msgspec.NODEFAULT:
        return "[]"  # made anew each time
    if value is None:
        return "unset"
    encoded = msgspec.json.encode(value).decode()
    return encoded if "\\" in encoded else encoded.strip('"')


def _walk(path: list[str | int]) -> inspect.Type:
    found: inspect.Type = inspect.type_info(values.Config)
    for step in path:
        found, _ = _bare(found)
        if isinstance(found, inspect.StructType):
            found = next((f.type for f in found.fields if f.name == step), inspect.AnyType())
        elif isinstance(found, inspect.ListType):
            found = found.item_type
    return _bare(found)[0]


def _bare(found: inspect.Type) -> tuple[inspect.Type, str]:
    """The type without its description and without "or nothing", and that description."""
    meaning = ""
    while True:
        match found:
            case inspect.Metadata(type=inner):
                meaning = meaning or (found.extra_json_schema or {}).get("description", "")
                found = inner
            case inspect.UnionType(types=types) if len(types) == 2 and _NOTHING in types:
                found = types[0] if types[1] == _NOTHING else types[1]
            case _:
                return found, meaning


def _words(found: inspect.Type) -> str:
    found, _ = _bare(found)
    match found:
        case inspect.IntType(ge=least, le=most):
            return f"an integer from {least} to {most}"
        case inspect.FloatType(ge=least, le=most):
            return f"a number from {least:.12g} to {most:.12g}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=words):
            return "one of " + ", ".join(str(word) for word in words)
        case inspect.StrType(pattern=pattern) if pattern:
            return f"text of the form {pattern}"
        case inspect.StrType():
            return "text"
        case inspect.ListType(min_length=least, max_length=most):
            return f"a list of {least}" if least == most else f"a list of {least} to {most}"
        case inspect.UnionType(types=types):
            return " or ".join(_words(one) for one in types if one != _NOTHING)
        case inspect.StructType(fields=fields):
            return "a block with the keys " + ", ".join(field.name for field in fields)
        case _:
            return "another value"
