"""What figures of sweeps are drawn with: axes that fit their values, and labels that stay apart."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from gradtricks.lab.recording import PACKAGE
from gradtricks.lab.results.grouping import Axis, spell, wants_logarithm

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

_STYLE = PACKAGE / "lab" / "figures.mplstyle"
_MINUS = "\N{MINUS SIGN}"
_MOST_TICKS = 9
_APART = 0.062  # height of a line of text in shares of a figure's height


@contextmanager
def book_style() -> Iterator[None]:
    """Draw in the book's style. Names and values are text, never formulas: ``$`` is a dollar."""
    from matplotlib import rc_context, style

    with rc_context(), style.context([_STYLE, {"text.parse_math": False}]):
        yield


def new_figure(height: float = 3.3) -> tuple["Figure", "Axes"]:
    """Make a figure of the book's width.

    Args:
        height: In inches.

    Returns:
        The figure and its axes; pyplot doesn't know them, so that nothing has to be closed.
    """
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    figure = Figure(figsize=(rcParams["figure.figsize"][0], height))
    return figure, figure.add_subplot()


def drawable(text: str) -> str:
    """Write a text with the signs that the figures' font has.

    Args:
        text: Any.

    Returns:
        The same; signs that the font lacks are shown by their number.
    """
    from matplotlib import font_manager

    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    return "".join(
        sign if font.get_char_index(ord(sign)) else sign.encode("unicode_escape").decode() for sign in text
    )


def scale_of(values: np.ndarray) -> "ScalarMappable":
    """Make a scale of colours for numbers.

    Args:
        values: Of which the finite ones are to be told apart.

    Returns:
        What a colour bar needs. The ends of viridis are left out: its yellow is hardly seen on a light page,
        and on a dark one, where figures are brightened, it can't be told from green.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, LogNorm, Normalize

    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    norm = (LogNorm if wants_logarithm(finite) else Normalize)(low, high)
    return ScalarMappable(norm, ListedColormap(colormaps["viridis"](np.linspace(0.08, 0.8, 256))))


def add_color_bar(axes: "Axes", scale: "ScalarMappable", title: str = "") -> None:
    """Say what the colours mean.

    Args:
        axes: Of the figure.
        scale: From `scale_of`.
        title: Above the bar.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter

    bar = axes.figure.colorbar(scale, ax=axes)
    bar.outline.set_visible(False)
    bar.ax.grid(visible=False)
    bar.ax.set_title(title, fontsize=9.5, fontweight="normal", loc="right")
    if isinstance(scale.norm, LogNorm):
        plain_ticks(bar.ax, "y")
    else:
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def number(value: float) -> str:
    """Write a number with three or four digits.

    Args:
        value: Any number.

    Returns:
        Such as ``0.123`` or ``1.23e−05``.
    """
    return f"{value:.3g}".replace("e+0", "e").replace("e+", "e").replace("-", _MINUS)


def counted(counts: Iterable[int]) -> str:
    """Write how many runs are behind each mean.

    Args:
        counts: One or more.

    Returns:
        Such as ``n = 8 to 10``.
    """
    ordered = sorted(counts)
    low, high = ordered[0], ordered[-1]
    return f"n = {low}" if low == high else f"n = {low} to {high}"


def set_parameter_axis(axes: "Axes", axis: Axis, *, vertical: bool = False) -> None:
    """Set scale, ticks and label of an axis for a parameter; what isn't a number gets a place for each value.

    Args:
        axes: Of the figure.
        axis: The parameter.
        vertical: Whether it is the y axis, where the first value stands on top.
    """
    side = "y" if vertical else "x"
    if axis.logarithmic:
        axes.set(**{f"{side}scale": "log"})
        plain_ticks(axes, side)
    ticks = places(axis)
    if len(ticks) <= _MOST_TICKS or not axis.numeric:
        set_ticks = getattr(axes, f"set_{side}ticks")
        set_ticks(ticks, [drawable(spell(value)).replace("-", _MINUS) for value in axis.values])
        set_ticks([], minor=True)
    getattr(axes, f"set_{side}label")(drawable(spell(axis.name, 60)))
    if vertical and not axis.numeric:
        axes.set_ylim(len(ticks) - 0.5, -0.5)


def places(axis: Axis) -> list[float]:
    """Place the values of a parameter on its axis.

    Args:
        axis: The parameter.

    Returns:
        The numbers themselves, or 0, 1, 2, …
    """
    return [float(value) for value in axis.values] if axis.numeric else [*map(float, range(len(axis.values)))]


def set_result_axis(axes: "Axes", side: str, values: Sequence[float]) -> None:
    """Make the axis of a result logarithmic where its values ask for it.

    Args:
        axes: Of the figure.
        side: ``x`` or ``y``.
        values: All that are drawn.
    """
    if wants_logarithm(values):
        axes.set(**{f"{side}scale": "log"})
        plain_ticks(axes, side)


def plain_ticks(axes: "Axes", side: str) -> None:
    """Write 0.01, not a power of ten, at the ticks of a logarithmic axis.

    Args:
        axes: Of the figure.
        side: ``x`` or ``y``.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ticks = getattr(axes, f"{side}axis")
    low, high = sorted(getattr(axes, f"get_{side}lim")())
    if low > 0 and high / low < 50:
        ticks.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    ticks.set_minor_formatter(NullFormatter())


def label_ends(axes: "Axes", ends: Sequence[tuple[float, str, Any]]) -> None:
    """Write a label at the right end of each line, moved apart where lines end close together.

    Args:
        axes: Of the figure, with its limits final.
        ends: Height in shares of the axes, text and colour of each line.
    """
    ordered = sorted(ends, key=lambda end: end[0])
    heights = [height for height, _, _ in ordered]
    for place in range(1, len(heights)):
        heights[place] = max(heights[place], heights[place - 1] + _APART)
    excess = heights[-1] - 1.0
    if excess > 0:
        heights[-1] -= excess
        for place in range(len(heights) - 2, -1, -1):
            heights[place] = min(heights[place], heights[place + 1] - _APART)
    for height, (_, text, color) in zip(heights, ordered, strict=True):
        axes.text(1.015, height, text, transform=axes.transAxes, color=color, va="center", fontsize=9.5)
