"""Comparison files: what `kvring simulate --out` leaves in a folder.

    index.html    verdict, picture, table: needs nothing else
    picture.png, picture.svg
    figures.csv   a line for each policy and seed
    result.json   every figure of every seed, and what was run

Called by: cli.simulate.
"""

from __future__ import annotations

import json
from pathlib import Path

from extproc.sim import comparison, comparison_page, picture, plot

__all__ = ["json_text", "write"]


def write(made: comparison.Comparison, directory: Path) -> str | None:
    """Write them; why there are no pictures, if there are none. Errors: OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    missing = clear = None
    try:
        drawn = plot.draw(made)
        clear = drawn.svg_clear
        (directory / "picture.png").write_bytes(drawn.png)
        (directory / "picture.svg").write_text(drawn.svg, encoding="utf-8")
    except picture.MissingError as error:
        missing = str(error)
    (directory / "index.html").write_text(comparison_page.render(made, clear), encoding="utf-8")
    (directory / "figures.csv").write_text(comparison.to_csv(made), encoding="utf-8")
    (directory / "result.json").write_text(json_text(made), encoding="utf-8")
    return missing


def json_text(made: comparison.Comparison) -> str:
    """`comparison.to_json` as text."""
    return json.dumps(comparison.to_json(made), indent=2) + "\n"
