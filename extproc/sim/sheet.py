"""Sheet: the HTML that the simulator's and the demo's pages have in common: one file that needs nothing else.

Light and dark follow the reader's setting; no script, no font, no other file; the SVG stands inline with its
ink in the page's colour.

Invariant: `text` escapes, and every text of a page goes through it. Called by: page, comparison_page.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

__all__ = ["INK", "inline", "notes", "pairs", "sheet", "table", "text"]

INK = "#1f2937"
"""The colour of a picture's text, replaced by the page's own."""

_STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1f2937; --soft: #64748b; --line: #e2e8f0;
  --card: #f8fafc; --ours: #0d9488; --base: #94a3b8; --bad: #b91c1c; --good: #047857; }
@media (prefers-color-scheme: dark) { :root { --ground: #0f172a; --ink: #e2e8f0; --soft: #94a3b8;
  --line: #334155; --card: #1e293b; --ours: #2dd4bf; --bad: #f87171; --good: #34d399; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.1rem; margin: 2.6rem 0 .8rem; }
p { margin: .4rem 0; max-width: 75ch; }
.soft { color: var(--soft); }
figure { margin: 1.6rem 0 0; }
figure svg { width: 100%; height: auto; display: block; color: var(--ink); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .45rem .75rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { font-weight: 600; color: var(--soft); }
td.ours { font-weight: 600; color: var(--ours); }
ul.claims { list-style: none; padding: 0; margin: 0; }
ul.claims li { padding: .3rem 0; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.note { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--bad);
  border-radius: 6px; padding: .7rem 1rem; margin: 1rem 0; }
.arms { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 1.2rem 2.5rem; }
.arms h3 { font-size: .95rem; margin: 0 0 .4rem; }
.bar { display: grid; grid-template-columns: 5.5rem 1fr 3.5rem; gap: .6rem; align-items: center;
  font-size: .85rem; font-variant-numeric: tabular-nums; }
.bar i { display: block; height: .8rem; border-radius: 3px; background: var(--base); min-width: 1px; }
.bar b { text-align: right; font-weight: 400; }
.arms section.ours .bar i { background: var(--ours); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.5rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; }
"""


def sheet(title: str, parts: Iterable[str]) -> str:
    """The whole page. Args: title, plain text; parts, HTML, empty ones left out."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def table(heads: Sequence[str], lines: Iterable[Sequence[str]], ours: int | None = None) -> str:
    """A table; `ours`: the column that is set off."""
    head = "".join(f"<th>{text(one)}</th>" for one in heads)
    rows = []
    for line in lines:
        cells = "".join(
            f'<td class="ours">{text(cell)}</td>' if at == ours else f"<td>{text(cell)}</td>"
            for at, cell in enumerate(line)
        )
        rows.append(f"<tr>{cells}</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table>{body}</table></div>'


def pairs(of: Iterable[tuple[str, str]]) -> str:
    """Names and what they are."""
    return "<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in of) + "</dl>"


def notes(of: Iterable[str]) -> Iterable[str]:
    """Warnings, each in a box."""
    return (f'<p class="note">{text(one)}</p>' for one in of)


def inline(svg: str | None) -> str:
    """The SVG element in a figure, its ink in the page's text colour; nothing for None."""
    if not svg:
        return ""
    return f"<figure>{svg[svg.index('<svg') :].replace(INK, 'currentColor')}</figure>"


def text(plain: str) -> str:
    """`plain`, escaped."""
    return html.escape(plain)
