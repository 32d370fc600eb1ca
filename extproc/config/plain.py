"""Plain: the settings in force as JSON has them, without secrets, to be shown to whoever asks.

A secret stands in a file, and settings name the file; what is a secret all the same, by its name or inside a
URL, is left out. Called by: app (for the page).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from extproc.config import values

__all__ = ["plain"]

_HIDDEN = "***"
_SECRET_NAME = re.compile(r"(password|secret|token|credential|api_?key)s?$", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(\w+://)[^/\s]+@")
_QUERY_OF_URL = re.compile(r"(\w+://[^\s?]*\?)\S+")


def plain(config: values.Config) -> dict[str, Any]:
    """All settings of `config`, defaults included."""
    shown: dict[str, Any] = _without_secrets("", msgspec.to_builtins(config))
    return shown


def _without_secrets(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(key, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_secrets(name, inner) for inner in value]
    if isinstance(value, str):
        if _SECRET_NAME.search(name):
            return _HIDDEN
        return _QUERY_OF_URL.sub(rf"\1{_HIDDEN}", _USER_IN_URL.sub(rf"\1{_HIDDEN}@", value))
    return value
