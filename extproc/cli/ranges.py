"""Ranges: options that take a number within bounds; anything else ends the command with the bounds named.

Called by: the commands that have such options.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["number", "whole"]


def whole(low: int, high: int) -> Callable[[str], int]:
    """A reader of whole numbers in [low, high]."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number in {low}..{high}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not in {low}..{high}")
        return value

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """A reader of numbers in [low, high]."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number in {low:g}..{high:g}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not in {low:g}..{high:g}")
        return value

    return parse
