"""Picture: the demo's result in one figure, as PNG and SVG.

Left, where requests wait: the share of requests whose first token came within a time, for both arms, time
on a log scale; the P50 and P99 are marked. Right, what the caches and the hardware gave: hit rates and
throughput. The PNG is 1200 px wide, as a README shows it.

Invariant: draws what the report says and computes nothing; text is drawn as outlines, so that the SVG looks
the same without fonts. Called by: demo. matplotlib (the extra `sim`) is imported only here, only when asked.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from extproc.sim import report, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MissingError", "Picture", "draw", "saved"]

_WIDTH_IN, _HEIGHT_IN = 12.0, 5.6
_COLORS = {report.BASELINE: "#94a3b8", report.CANDIDATE: "#0d9488"}
_NAMES = {report.BASELINE: "round robin", report.CANDIDATE: "kvring"}
_GRID = "#94a3b8"
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 11.5,
    "text.color": sheet.INK,
    "axes.edgecolor": sheet.INK,
    "axes.labelcolor": sheet.INK,
    "xtick.color": sheet.INK,
    "ytick.color": sheet.INK,
    "svg.hashsalt": "kvring",
}


class MissingError(RuntimeError):
    """matplotlib is not installed."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The figure: `png` and `svg` on white, `svg_clear` on nothing (for a page with its own ground)."""

    png: bytes
    svg: str
    svg_clear: str


def draw(result: report.Report) -> Picture:
    """The figure of a run. Raises MissingError where matplotlib is not installed."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise MissingError(
            "no picture: it needs the extra sim (pip install '.[sim]' in the checkout)"
        ) from error
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), dpi=100)
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(
            2,
            2,
            width_ratios=(1.7, 1),
            height_ratios=(1.35, 1),
            left=0.065,
            right=0.965,
            top=0.79,
            bottom=0.115,
            wspace=0.28,
            hspace=0.62,
        )
        figure.text(0.025, 0.935, _headline(result), fontsize=17, fontweight="bold", va="center")
        figure.text(0.025, 0.878, _subtitle(result), fontsize=11, va="center", alpha=0.75)
        _draw_waits(figure.add_subplot(grid[:, 0]), result)
        _draw_hits(figure.add_subplot(grid[0, 1]), result)
        _draw_rates(figure.add_subplot(grid[1, 1]), result)
        return Picture(
            png=saved(figure, "png", dpi=100),
            svg=saved(figure, "svg").decode(),
            svg_clear=saved(figure, "svg", transparent=True).decode(),
        )


def _headline(result: report.Report) -> str:
    base, ours = result.arms[report.BASELINE], result.arms[report.CANDIDATE]
    if base.ttft_p99_ms is None or ours.ttft_p99_ms is None or base.requests_per_s <= 0:
        return "Round robin and kvring through one Envoy"
    change = ours.requests_per_s / base.requests_per_s - 1
    return (
        f"Time to first token, P99: {_duration(base.ttft_p99_ms)} → {_duration(ours.ttft_p99_ms)}, "
        f"throughput {change:+.0%}"
    )


def _subtitle(result: report.Report) -> str:
    setup = result.setup
    return (
        f"{setup.endpoints} simulated replicas (CodeLlama-13B on A100-40), {setup.users} users, "
        f"{len(setup.prefix_tokens)} shared prefixes; the same requests both ways through a real Envoy"
    )


def _draw_waits(axes: Axes, result: report.Report) -> None:
    """Cumulative share of requests over TTFT, with P50 and P99."""
    axes.set_title("Requests whose first token came within …", loc="left", fontsize=12, pad=10)
    for name, arm in result.arms.items():
        waits = arm.ttfts_ms
        if not waits:
            continue
        shares = [100 * (index + 1) / len(waits) for index in range(len(waits))]
        color = _COLORS.get(name, sheet.INK)
        axes.step(
            [waits[0], *waits], [0, *shares], where="post", color=color, lw=2.6, label=_NAMES.get(name, name)
        )
        _mark(axes, "P50", arm.ttft_p50_ms, 50, color)
        _mark(axes, "P99", arm.ttft_p99_ms, 99, color)
    axes.set_xscale("log")
    axes.set_ylim(0, 103)
    axes.set_yticks([0, 25, 50, 75, 100], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    low, high = _reach(result)
    axes.set_xlim(low, high)
    ticks = [
        tick for tick in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000) if low <= tick <= high
    ]
    axes.set_xticks(ticks, [_duration(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(visible=True, color=_GRID, alpha=0.25, lw=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", fontsize=12)


def _mark(axes: Axes, label: str, wait_ms: float | None, share: float, color: str) -> None:
    """A dot on a curve, its label below and to the right, where the curve never is."""
    if wait_ms is None:
        return
    axes.plot([wait_ms], [share], "o", color=color, ms=7)
    axes.annotate(
        f"{label} {_duration(wait_ms)}",
        (wait_ms, share),
        xytext=(9, -13),
        textcoords="offset points",
        fontsize=10.5,
        fontweight="bold",
    )


def _draw_hits(axes: Axes, result: report.Report) -> None:
    """Both hit rates, a pair of bars each."""
    axes.set_title("Cache hits", loc="left", fontsize=12, pad=10)
    labels = ["prompt\ntokens", "affinity"]
    for place, (name, arm) in enumerate(result.arms.items()):
        values = [100 * (share or 0.0) for share in (arm.engine_hit, arm.affinity_hit)]
        _bars(axes, [row + (place - 0.5) * 0.38 for row in range(2)], values, name, "{:.0f} %")
    axes.set_yticks(range(2), labels)
    axes.set_xlim(0, 118)
    _bare(axes)


def _draw_rates(axes: Axes, result: report.Report) -> None:
    """Throughput, one bar an arm."""
    axes.set_title("Throughput, same hardware", loc="left", fontsize=12, pad=10)
    values = [arm.requests_per_s for arm in result.arms.values()]
    for place, name in enumerate(result.arms):
        _bars(axes, [place], [values[place]], name, "{:.2f} req/s")
    axes.set_yticks(range(len(values)), [_NAMES.get(name, name) for name in result.arms])
    axes.set_xlim(0, 1.32 * max([*values, 1e-9]))
    _bare(axes)


def _bars(axes: Axes, places: Sequence[float], values: Sequence[float], name: str, form: str) -> None:
    """Bars of one arm with their numbers; `places` are 0.38 apart where arms stand in pairs, else 1."""
    height = 0.34 if len(places) > 1 else 0.68
    bars = axes.barh(places, values, height=height, color=_COLORS.get(name, sheet.INK))
    texts = [form.format(value) for value in values]
    axes.bar_label(bars, texts, padding=5, fontsize=10.5, fontweight="bold")


def _bare(axes: Axes) -> None:
    """Bars that carry their numbers need no scale."""
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _reach(result: report.Report) -> tuple[float, float]:
    """The span of the time axis [ms]: all waits but the fastest and slowest few, with a margin."""
    waits = [wait for arm in result.arms.values() for wait in arm.ttfts_ms]
    if not waits:
        return 10.0, 10_000.0
    ordered = sorted(waits)
    low = report.percentile(ordered, 0.002) or 1.0
    return max(1.0, low / 1.4), max(ordered[-1] * 3, low * 10)


def _duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.3g} s"


def saved(figure: Any, kind: str, **options: Any) -> bytes:
    """`figure` as a file of `kind` ("png", "svg"); `options` are matplotlib's."""
    buffer = io.BytesIO()
    # No date: the same result gives the same file.
    metadata = {"Date": None} if kind == "svg" else None
    figure.savefig(buffer, format=kind, metadata=metadata, **options)
    return buffer.getvalue()
