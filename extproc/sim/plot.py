"""Plot: a comparison as a picture: TTFT, hits and throughput by policy, seeds as dots.

matplotlib is imported when a picture is drawn, since only this needs it (extra `sim`).
Called by: cli.simulate.
"""

from __future__ import annotations

import statistics
from typing import Any

from extproc.sim import comparison, picture, policies, sheet

__all__ = ["draw"]

_PANELS = (
    ("ttft_mean_ms", "TTFT mean [ms]", 1.0),
    ("ttft_p99_ms", "TTFT P99 [ms]", 1.0),
    ("engine_hit", "engine hit [%]", 100.0),
    ("requests_per_s", "requests/s", 1.0),
)
_OURS, _OTHERS = "#0f766e", "#94a3b8"
_STYLE: dict[Any, Any] = {
    "text.color": sheet.INK,
    "axes.edgecolor": sheet.INK,
    "axes.labelcolor": sheet.INK,
    "axes.titlecolor": sheet.INK,
    "xtick.color": sheet.INK,
    "ytick.color": sheet.INK,
    "svg.hashsalt": "kvring",
}


def draw(made: comparison.Comparison) -> picture.Picture:
    """The picture. Raises picture.MissingError where matplotlib is not installed."""
    try:
        import matplotlib as mpl  # noqa: PLC0415  (see the module's docstring)
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise picture.MissingError(
            "no picture: it needs the extra sim (pip install '.[sim]' in the checkout)"
        ) from error
    names = list(made.runs)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(12, 1.6 + 0.32 * len(names)), layout="constrained")
        for place, (key, title, scale) in enumerate(_PANELS, 1):
            axes = figure.add_subplot(1, len(_PANELS), place)
            for row, name in enumerate(names):
                values = [getattr(run, key) for run in made.runs[name]]
                known = [value * scale for value in values if value is not None]
                if not known:
                    continue
                colour = _OURS if name == policies.OWN else _OTHERS
                axes.barh(row, statistics.fmean(known), color=colour, height=0.7)
                if len(known) > 1:
                    axes.plot(known, [row] * len(known), ".", color=sheet.INK, markersize=4)
            axes.set_yticks(range(len(names)), names if place == 1 else [""] * len(names))
            axes.invert_yaxis()
            axes.set_title(title, fontsize=9)
            axes.tick_params(labelsize=8)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        summary = f"{made.asked.summary}; {len(made.asked.models)} endpoints, {len(made.seeds)} seeds"
        figure.suptitle(summary, fontsize=10)
        return picture.Picture(
            png=picture.saved(figure, "png", dpi=130),
            svg=picture.saved(figure, "svg").decode(),
            svg_clear=picture.saved(figure, "svg", transparent=True).decode(),
        )
