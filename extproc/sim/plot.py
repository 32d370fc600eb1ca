"""Plot: a comparison as a picture: TTFT, hits and throughput by policy, seeds as dots.

matplotlib is imported when a picture is drawn, since only this needs it (extra `sim`).
Called by: cli.simulate.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from extproc.sim import comparison

__all__ = ["PlotError", "draw"]

_PANELS = (
    ("ttft_mean_ms", "TTFT mean [ms]", 1.0),
    ("ttft_p99_ms", "TTFT P99 [ms]", 1.0),
    ("engine_hit", "engine hit [%]", 100.0),
    ("requests_per_s", "requests/s", 1.0),
)
_INK = "#334155"


class PlotError(RuntimeError):
    """matplotlib is not there; the text says what to install."""


def draw(made: comparison.Comparison, path: Path) -> None:
    """Write the picture to `path`; its ending gives the format. Errors: PlotError, OSError, ValueError."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  (see the module's docstring)
    except ImportError as error:
        raise PlotError('plots need matplotlib: install "kvring[sim]"') from error
    names = list(made.runs)
    figure = Figure(figsize=(12, 1.6 + 0.32 * len(names)), layout="constrained")
    for place, (key, title, scale) in enumerate(_PANELS, 1):
        axes = figure.add_subplot(1, len(_PANELS), place)
        for row, name in enumerate(names):
            values = [getattr(run, key) for run in made.runs[name]]
            known = [value * scale for value in values if value is not None]
            if not known:
                continue
            colour = "#0f766e" if name == "cost" else "#94a3b8"
            axes.barh(row, statistics.fmean(known), color=colour, height=0.7)
            axes.plot(known, [row] * len(known), ".", color=_INK, markersize=4)
        axes.set_yticks(range(len(names)), names if place == 1 else [""] * len(names))
        axes.invert_yaxis()
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.suptitle(
        f"{made.asked.summary}; {len(made.asked.models)} endpoints, {len(made.seeds)} seeds", fontsize=10
    )
    figure.savefig(path, dpi=130)
