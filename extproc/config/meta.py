"""Meta: range and meaning of a setting, attached to its type.

Called by: config.values, config.pools, config.sources.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["NAME", "listed", "meaning", "number", "text", "whole"]

NAME = r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$"


def whole(least: int, most: int, means: str) -> Any:
    """An integer from `least` to `most`."""
    return msgspec.Meta(ge=least, le=most, description=means)


def number(least: float, most: float, means: str) -> Any:
    """A number from `least` to `most`."""
    return msgspec.Meta(ge=least, le=most, description=means)


def text(pattern: str, means: str) -> Any:
    """Text of a form, at most 253 characters."""
    return msgspec.Meta(pattern=pattern, min_length=1, max_length=253, description=means)


def listed(least: int, most: int, means: str) -> Any:
    """A list of `least` to `most` entries."""
    return msgspec.Meta(min_length=least, max_length=most, description=means)


def meaning(means: str) -> Any:
    """Anything of its type."""
    return msgspec.Meta(description=means)
