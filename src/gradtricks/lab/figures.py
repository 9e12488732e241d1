"""How the book's figures are drawn: its style, its width, and names beside lines instead of legends.

A figure begins with its size and ends with its names::

    figure, axes = new_figure(height=2.9)
    axes.plot(steps, losses, label="Adam")
    axes.axhline(best, color=GREY, linestyle="--", label="the best constant")
    axes.set(xlabel="step", ylabel="loss")
    label_lines(axes)  # last, when all that a name must not cover is drawn
    record_figure("losses", figure, alt="...")
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import font_manager, pyplot, rcParams, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from gradtricks.lab.labels import SMALLEST, label_lines

__all__ = [
    "GREY",
    "draw_band",
    "draw_bars",
    "draw_means",
    "draw_ranges",
    "label_lines",
    "name_rows",
    "new_figure",
    "set_ticks",
    "shade",
    "show_picture",
    "use_style",
    "with_minus",
]

GREY = "#68717d"  # of what is only context; the style's colour of text and axes
_HERE = Path(__file__).parent


def use_style() -> None:
    """Draw every figure from here on in the book's style: readable on light and on dark pages."""
    known = {font.fname for font in font_manager.fontManager.ttflist}
    for path in sorted((_HERE / "fonts").glob("*.ttf")):
        if str(path) not in known:
            font_manager.fontManager.addfont(path)
    style.use(_HERE / "figures.mplstyle")


def new_figure(rows: int = 1, columns: int = 1, *, height: float = 2.9, **options: Any) -> tuple[Figure, Any]:
    """Begin a figure in the book's style that fits on a phone.

    Args:
        rows: Of panels.
        columns: Of panels.
        height: In inches; the width is the page's, 5.4 inches.
        **options: For `matplotlib.pyplot.subplots`, such as ``sharey=True``.

    Returns:
        The figure, and its axes as `matplotlib.pyplot.subplots` returns them.
    """
    use_style()
    return pyplot.subplots(rows, columns, figsize=(rcParams["figure.figsize"][0], height), **options)


def draw_band(axes: Axes, x: ArrayLike, low: ArrayLike, high: ArrayLike, color: str) -> None:
    """Shade an interval around a line, from ``low`` to ``high`` at each ``x``."""
    axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)


def shade(axes: Axes, begin: float, end: float, name: str = "") -> None:
    """Mark a part of the x axis as another phase, and write its name at the upper left."""
    axes.axvspan(begin, end, color=GREY, alpha=0.12, linewidth=0)
    if name:
        corner: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "top"}
        axes.annotate(name, (begin, 1), (4, -2), color=GREY, fontsize=SMALLEST, **corner)


def with_minus(text: str) -> str:
    """Write numbers in a text with minus signs instead of hyphens."""
    return re.sub(r"(?<!\w)-(?=[\d.])|(?<=\de)-(?=\d)", "\N{MINUS SIGN}", text)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name what is drawn at y = 0, 1, ..., from above downwards."""
    axes.set_yticks(range(len(names)), [with_minus(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def draw_bars(
    axes: Axes, bars: Mapping[str, float], *, form: str = "{:.3g}", color: str = "C0", **options: Any
) -> None:
    """Draw a horizontal bar for each name, with its value at its end, written as ``form`` says."""
    name_rows(axes, list(bars))
    drawn = axes.barh(range(len(bars)), list(bars.values()), 0.6, color=color, **options)
    said = [with_minus(form.format(value)) for value in bars.values()]
    axes.bar_label(drawn, said, padding=7, color=color, fontsize=SMALLEST)
    axes.margins(x=0.15)


def draw_ranges(
    axes: Axes, ranges: Mapping[str, Sequence[float]], *, color: str | Sequence[str] = "C0"
) -> None:
    """Draw a dot and its interval for each name, given as ``(middle, low, high)``, in one or many colours."""
    name_rows(axes, list(ranges))
    colors = [color] * len(ranges) if isinstance(color, str) else color
    for row, ((middle, low, high), own) in enumerate(zip(ranges.values(), colors, strict=True)):
        axes.plot([low, high], [row, row], color=own)
        axes.plot([middle], [row], "o", color=own)


def draw_means(axes: Axes, places: ArrayLike, found: Sequence[Any], **look: Any) -> None:
    """Draw means with their intervals, as `gradtricks.lab.results.statistics.summarize` returns them.

    ``look`` is for `matplotlib.axes.Axes.errorbar`, such as ``label="Adam"``.
    """
    means, low, high = np.array([(each.mean, each.low, each.high) for each in found]).T
    axes.errorbar(places, means, [means - low, high - means], ms=4, elinewidth=1.2, **look)


def set_ticks(axes: Axes, **values: Sequence[float]) -> None:
    """Put ticks at these numbers and nowhere else, written out, on ``x`` and ``y`` of linear and log axes."""
    for side, ticks in values.items():
        axis = getattr(axes, f"{side}axis")
        axis.set_ticks(list(ticks), [with_minus(f"{tick:,.6g}") for tick in ticks])
        axis.set_ticks([], minor=True)


def show_picture(axes: Axes, picture: np.ndarray, title: str = "", **options: Any) -> None:
    """Show an array [H, W] without axes; ``options`` are those of `matplotlib.axes.Axes.imshow`."""
    axes.imshow(picture, **options)
    axes.set(title=title, xticks=[], yticks=[])
    axes.grid(visible=False)
