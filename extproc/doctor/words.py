"""Words: figures as people read them.

Called by: rules, telling.
"""

from __future__ import annotations

__all__ = ["DASH", "count", "rate", "seconds", "share", "tokens", "usd"]

DASH = "-"

_UNITS = (
    (0.9995, 0.001, "{:.0f} ms"),
    (99.5, 1.0, "{:.1f} s"),
    (5940.0, 60.0, "{:.0f} min"),
    (172_800.0, 3600.0, "{:.0f} h"),
)


def seconds(value: float | None) -> str:
    """A duration: "38 ms", "2.3 s", "4 min", "3 d"."""
    if value is None:
        return DASH
    for limit, unit_s, form in _UNITS:
        if value < limit:
            return form.format(value / unit_s)
    return f"{value / 86_400:.0f} d"


def share(value: float | None) -> str:
    """A share of 1 in per cent: "38 %", below 10 % with a decimal."""
    if value is None:
        return DASH
    return f"{value * 100:.1f} %" if 0 < value < 0.0995 else f"{value * 100:.0f} %"


def tokens(value: float | None) -> str:
    """A length: "96", "5,150", "450k", "4.7M"."""
    if value is None:
        return DASH
    if value < 10_000:
        return f"{value:,.0f}"
    return f"{value / 1000:.0f}k" if value < 995_000 else f"{value / 1e6:.1f}M"


def count(value: float | None) -> str:
    """A number, with a decimal below 10 unless it is whole."""
    if value is None:
        return DASH
    return f"{value:.1f}" if value < 9.95 and value != round(value) else f"{value:,.0f}"


def usd(value: float) -> str:
    """Money: "$1,331"."""
    return f"${value:,.0f}"


def rate(value: float | None) -> str:
    """A number per second, to three digits."""
    if value is None:
        return DASH
    return f"{value:.2f}" if value < 9.995 else f"{value:,.1f}" if value < 99.95 else f"{value:,.0f}"
