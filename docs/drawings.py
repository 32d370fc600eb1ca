"""Writes the drawings of docs/concepts.md, docs/images/{chain,ring}.svg, from what the code really computes.

Usage: python docs/drawings.py [--check]. A test compares; `make docs` writes.
"""

from __future__ import annotations

import math
import sys
from html import escape
from pathlib import Path

from extproc import anchor, chain, pool, ring

_IMAGES = Path(__file__).parent / "images"
_COLOURS = ("#0f8b8d", "#d9822b", "#6a5acd", "#b5446e", "#4b8b3b", "#3973b8", "#8a6d00")
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#15202b}.q{fill:#51606e;font-size:11.5px}"
    ".m{font:10.5px monospace}.b{font-weight:600}"
)
_BLOCK_BYTES = 32


def _svg(width: int, height: int, says: str, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{escape(says)}</title><style>{_STYLE}</style>"
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor_: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}" text-anchor="{anchor_}">{escape(text)}</text>'


def chains() -> str:
    """Three conversations as chains: what they share, where their keys are taken."""
    system = "You are a helpful assistant of the railway. Answer in one sentence. "
    asked = [
        ("first turn", system + "When does the night train to Prague leave? Please."),
        (
            "its second turn",
            system + "When does the night train to Prague leave? Please. At ten. And from where?",
        ),
        ("another user", system + "May I take my bicycle with me on a regional train on Sundays?"),
    ]
    built = [chain.build(1, text.encode(), _BLOCK_BYTES, 99) for _, text in asked]
    seen = anchor.Anchors()
    others = [f"{system}Question {number} of somebody else, quite another one." for number in range(40)]
    for one in (*built, *(chain.build(1, text.encode(), _BLOCK_BYTES, 99) for text in others)):
        seen.observe(one, 4, 0.0)
    colours: dict[int, str] = {}
    parts = [
        _text(24, 32, "Prompts as chains of block hashes; the key is the first block that few send", "b")
    ]
    for row, ((name, text), one) in enumerate(zip(asked, built, strict=True)):
        y = 62 + 92 * row
        parts.append(_text(24, y, name))
        key = seen.locate(one, 4)
        for at, block in enumerate(one.hashes):
            colour = colours.setdefault(block, _COLOURS[len(colours) % len(_COLOURS)])
            x = 24 + 172 * at
            edge = ' stroke="#15202b" stroke-width="3"' if at == key.block else ""
            parts.append(
                f'<rect x="{x}" y="{y + 10}" width="162" height="42" rx="6" fill="{colour}22"{edge}/>'
            )
            shown = text[at * _BLOCK_BYTES : (at + 1) * _BLOCK_BYTES]
            parts.append(_text(x + 6, y + 27, shown[:24] + "…", "m"))
            parts.append(_text(x + 6, y + 45, f"{block:016x}", "m"))
            if at == key.block:
                parts.append(_text(x, y + 68, "anchor: its hash is the key", "q"))
    return _svg(760, 330, "Three prompts as chains of block hashes, the anchor marked in each", parts)


def rings() -> str:
    """A ring of five endpoints, three keys, and the order of endpoints for each."""
    names = [pool.EndpointId(f"vllm-{number}") for number in range(5)]
    wheel = ring.Ring([(name, 1) for name in names], points=8)
    colour = dict(zip(names, _COLOURS, strict=False))
    middle, radius = 190, 140
    parts = [_text(24, 32, "Hash ring: a key stands somewhere; the next point clockwise is its home", "b")]
    count = 360
    owners = wheel.slots(count)
    for at, name in enumerate(owners):
        x0, y0 = _at(at / count, middle, radius)
        x1, y1 = _at((at + 1) / count, middle, radius)
        parts.append(
            f'<path d="M{x0:.1f} {y0:.1f}A{radius} {radius} 0 0 1 {x1:.1f} {y1:.1f}" stroke="{colour[name]}"'
            ' stroke-width="16" fill="none"/>'
        )
    for number, key in enumerate((11, 24, 35)):
        place = ring.place(key)
        x, y = _at(place, middle, radius + 8)
        order = list(wheel.order(key))
        ax, ay = _at(place, middle, radius - 40)
        parts.append(f'<path d="M{ax:.1f} {ay:.1f}L{x:.1f} {y:.1f}" stroke="#15202b" stroke-width="2"/>')
        parts.append(f'<circle cx="{ax:.1f}" cy="{ay:.1f}" r="11" fill="#fff" stroke="#15202b"/>')
        parts.append(_text(ax, ay + 4, "ABC"[number], "b", "middle"))
        top = 90 + 84 * number
        parts.append(_text(380, top, f"key {'ABC'[number]}", "b"))
        for step, name in enumerate(order):
            box = f'x="{380 + 72 * step}" y="{top + 10}" width="64" height="26" rx="6"'
            parts.append(f'<rect {box} fill="{colour[name]}33"/>')
            parts.append(_text(412 + 72 * step, top + 28, name, "", "middle"))
        parts.append(_text(412, top + 52, "home", "q", "middle"))
        parts.append(_text(484, top + 52, "overflow, in this order", "q"))
    return _svg(760, 370, "A hash ring of five endpoints, and for three keys the order of endpoints", parts)


def _at(turn: float, middle: float, radius: float) -> tuple[float, float]:
    angle = 2 * math.pi * turn - math.pi / 2
    return middle + radius * math.cos(angle), middle + 15 + radius * math.sin(angle)


def main() -> int:
    """Write, or with --check compare."""
    stale = 0
    for name, text in (("chain.svg", chains()), ("ring.svg", rings())):
        file = _IMAGES / name
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if "--check" in sys.argv:
            print(f"docs/images/{name}: out of date; run make docs")
        else:
            file.write_text(text, encoding="utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
