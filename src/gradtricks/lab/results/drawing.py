"""What figures of sweeps are drawn with: the book's style, fitting scales, texts as they are."""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib import colormaps, font_manager, rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from gradtricks.lab.figures import use_style
from gradtricks.lab.results.captions import MINUS, number
from gradtricks.lab.results.grouping import Axis, key_of, spell, wants_logarithm

# On a phone a figure is three quarters of its size: these are then letters of 11 pixels.
_READABLE: Any = dict.fromkeys(
    ("font.size", "axes.labelsize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize"), 11
)
_MOST_TICKS = 9
_LINE = 24  # letters of a tick's name
_DOT = 0.02  # of an axis: room for the half of a dot


@contextmanager
def book_style() -> Iterator[None]:
    """Draw in the book's style. Names and values are text, never formulas: ``$`` is a dollar."""
    with rc_context():
        use_style()
        rcParams.update(_READABLE | {"text.parse_math": False})
        yield


def new_figure(height: float, count: int = 1, across: int = 1, **shared: Any) -> tuple[Figure, list[Axes]]:
    """Make a figure of the book's width, so many inches high, with so many panels, some of them abreast.

    pyplot doesn't know it and needn't close it.
    """
    figure = Figure(figsize=(rcParams["figure.figsize"][0], height))
    panels = figure.subplots(-(-count // across), across, squeeze=False, **shared).ravel().tolist()
    for spare in panels[count:]:
        spare.remove()
    return figure, panels[:count]


def drawable(value: Any, longest: int = 60) -> str:
    """Write a value or a name with signs that the figures' font has: others are shown by their number."""
    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    return "".join(
        sign if font.get_char_index(ord(sign)) else sign.encode("unicode_escape").decode()
        for sign in spell(value, longest)
    )


def wrapped(text: str, width: int) -> str:
    """Break a text between words."""
    return textwrap.fill(text, width, break_on_hyphens=False, break_long_words=False)


def scale_of(values: np.ndarray) -> ScalarMappable:
    """Make a scale of colours that tells the finite ones of some numbers apart.

    The ends of viridis are left out: its yellow is hardly seen on a light page, and on a dark one, where
    figures are brightened, it can't be told from green.
    """
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    norm = (LogNorm if wants_logarithm(finite) else Normalize)(low, high)
    return ScalarMappable(norm, ListedColormap(colormaps["viridis"](np.linspace(0.08, 0.8, 256))))


def add_color_bar(axes: Axes, scale: ScalarMappable) -> None:
    """Say beside the axes what the colours mean."""
    bar = axes.figure.colorbar(scale, ax=axes)
    bar.outline.set_visible(False)
    bar.ax.grid(visible=False)
    _plain_ticks(bar.ax, "y")


def set_parameter_axis(axes: Axes, axis: Axis, side: str) -> None:
    """Set scale, ticks and label of an axis; what isn't a number stands at 0, 1, …, on ``y`` downwards."""
    if axis.numeric:
        set_scale(axes, side, axis.values)
    ticks = [place_of(axis, value) for value in axis.values]
    if len(ticks) <= _MOST_TICKS or not axis.numeric:
        set_ticks = getattr(axes, f"set_{side}ticks")
        lines = 2 if side == "y" else 1
        names = [wrapped(drawable(value, lines * _LINE), _LINE) for value in axis.values]
        set_ticks(ticks, [name.replace("-", MINUS) for name in names])
        set_ticks([], minor=True)
    getattr(axes, f"set_{side}label")(drawable(axis.name))
    if side == "y" and not axis.numeric:
        axes.set_ylim(len(ticks) - 0.5, -0.5)


def place_of(axis: Axis, value: Any) -> float:
    """Place a value on its axis: at the number that it is, or at its rank."""
    return float(value) if axis.numeric else float(axis.ranks[key_of(value)])


def set_scale(axes: Axes, side: str, values: Sequence[float]) -> None:
    """Make an axis logarithmic where the values that are drawn ask for it."""
    if wants_logarithm(values):
        axes.set(**{f"{side}scale": "log"})
    _plain_ticks(axes, side)


def set_result_axis(axes: Axes, side: str, values: Sequence[float]) -> None:
    """Set the scale of an axis of results: none begins below 0 for nothing, equal ones are seen beside 0."""
    set_scale(axes, side, values)
    low, high = getattr(axes, f"get_{side}lim")()
    if len({*values}) == 1:
        end = 1.1 * values[0] or 1.0
        low, high = sorted((-_DOT * end, end))
    if min(values, default=-1) >= 0:
        low = max(low, -_DOT * high)
    axes.set(**{f"{side}lim": (low, high)})


def _plain_ticks(axes: Axes, side: str) -> None:
    """Write 0.01 and 3,000,000 at ticks, no powers of ten, and below an axis so few that they stand apart."""
    ticks = getattr(axes, f"{side}axis")
    low, high = sorted(getattr(axes, f"get_{side}lim")())
    if ticks.get_scale() == "log":
        if low > 0 and high / low < 50:
            ticks.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ticks.set_minor_formatter(NullFormatter())
    elif side == "x":
        ticks.set_major_locator(MaxNLocator(4 if max(-low, high) > 1e5 else 5, steps=[1, 2, 2.5, 5, 10]))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: number(value, ",.10g")))
