"""Figures of sweeps: the runs of each configuration, their mean and its interval."""

import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import font_manager, rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import offset_copy

from gradtricks.lab.figures import draw_band, label_lines, name_rows, set_ticks, use_style, with_minus
from gradtricks.lab.results.captions import alt_of, caption_of, listed, number
from gradtricks.lab.results.grouping import Axis, Group, ResultSummary, key_of, spell

_UNNAMED = re.compile(r"[^a-z0-9]+")
_MOST_ROWS = 60  # configurations of which each has a row; of more, each parameter has a panel
_MOST_TOGETHER = 4  # lines in one panel: so many colours are told apart on both pages, in letters too
_MOST_PANELS, _ABREAST = 24, 3  # of curves
_NAME, _ROW, _TITLE = 17, 30, 54  # letters of a line above a panel, before a row, and above a figure
_LINE = 0.2  # inches
_MOST_TICKS = 9  # below a whole figure


@dataclass(frozen=True)
class PlotResult:
    """The figure of a result."""

    result: ResultSummary
    figure: Figure
    alt: str  # what it shows, for those who can't see it
    caption: str  # how to read it, and how many runs are behind it

    def svg(self) -> str:
        """Return the figure as SVG; equal figures are equal texts."""
        text = io.StringIO()
        with _style():
            self.figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    """Draw in the book's style. Names and values are text, never formulas: ``$`` is a dollar."""
    with rc_context():
        use_style()
        rcParams.update({"text.parse_math": False, "font.size": 11, "axes.labelsize": 11})
        rcParams.update({"figure.titlesize": "medium", "figure.titleweight": "bold"})
        yield


def plot_results(results: Iterable[ResultSummary]) -> dict[str, PlotResult]:
    """Draw the results of a sweep, a figure each.

    Each configuration has a row with its runs as dots, their interquartile mean and its bootstrap interval.
    One parameter of numbers is an axis instead, and so is each parameter of very many configurations. Lists
    are curves with bands. Figures come by name, such as ``growth_end``.
    """
    drawn: dict[str, PlotResult] = {}
    for each in results:
        name = _UNNAMED.sub("_", each.label.lower()).strip("_")
        name = name if name[:1].isalpha() else f"result_{name}"
        while name in drawn:
            name += "_"
        with _style():
            figure = _curves(each) if each.curves else _numbers(each)
            # Laid out once: each further time would move it by a millionth of a point.
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        drawn[name] = PlotResult(each, figure, alt_of(each), caption_of(each))
    return drawn


def _numbers(result: ResultSummary) -> Figure:
    axes, groups = result.axes, result.parts
    if len(groups) <= _MOST_ROWS and not (len(axes) == 1 and axes[0].numeric):
        names = [_wrapped(", ".join(spell(v, 2 * _ROW) for v in group.values), _ROW) for group in groups]
        row = max(0.42 if len(groups) <= 12 else 0.26, *(_LINE * name.count("\n") + _LINE for name in names))
        figure, [plot] = _panels(result.title + _by(axes), 1 + row * len(groups))
        name_rows(plot, names)
        _draw_runs(plot, range(len(groups)), groups, upright=False)
        _set_scale(plot, "x", groups)
        return figure
    height = 3.1 if len(axes) == 1 else 2.6 * -(-len(axes) // 2)
    figure, panels = _panels(result.title, height, len(axes), 2, sharey=True)
    for place, (panel, axis) in enumerate(zip(panels, axes)):
        at = [_place_of(axis, group.values[place]) for group in groups]
        _draw_runs(panel, at, groups, upright=True, means=len(axes) == 1)
        _set_parameter_axis(panel, axis, _TITLE if len(axes) == 1 else _NAME + 5)
    _set_scale(panels[0], "y", groups)
    return figure


def _curves(result: ResultSummary) -> Figure:
    there = [group for group in result.parts if group.n][:_MOST_PANELS]
    together = len(there) <= _MOST_TOGETHER
    count, across = (1, 1) if together else (len(there), _ABREAST)
    height = 3.1 if together else 0.5 + 1.9 * -(-count // across)
    title = result.title + _by(result.axes)
    figure, panels = _panels(title, height, count, across, sharex=True, sharey=True)
    for place, group in enumerate(there):
        panel, color = (panels[0], f"C{place}") if together else (panels[place], "C0")
        steps, marker = np.arange(len(group.mean)) + 1, "o" if len(group.mean) == 1 else ""
        name = _wrapped(spell(", ".join(spell(v, 3 * _NAME) for v in group.values), 3 * _NAME), _NAME)
        panel.plot(steps, group.mean, color=color, marker=marker, label=name or "_")
        if np.isfinite(group.interval[0]).all():
            draw_band(panel, steps, *group.interval, color)
        if not together:
            panel.set_title(name, fontweight="normal", fontsize="medium")
        panel.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    more = len([group for group in result.parts if group.n]) - len(there)
    figure.supxlabel(
        _wrapped(result.counted + (f"; {more} more aren't drawn" if more else ""), _TITLE), size="medium"
    )
    _set_scale(panels[0], "y", there)
    if together:
        label_lines(panels[0])
    return figure


def _by(axes: Sequence[Axis]) -> str:
    return f", by {listed([axis.name for axis in axes])}" if axes else ""


def _panels(
    title: str, height: float, count: int = 1, across: int = 1, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Make titled panels of which some stand abreast; pyplot doesn't know the figure and needn't close it."""
    title = _wrapped(title, _TITLE)
    size = rcParams["figure.figsize"][0], height + _LINE * (title.count("\n") + 1)
    figure = Figure(figsize=size)
    figure.suptitle(title, x=0.01, ha="left")
    across = min(across, count)
    panels = figure.subplots(-(-count // across), across, squeeze=False, **shared).ravel().tolist()
    for spare in panels[count:]:
        spare.remove()
    return figure, panels[:count]


def _draw_runs(
    plot: Axes, at: Sequence[float], groups: Sequence[Group], *, upright: bool, means: bool = True
) -> None:
    """Draw each run as a dot, and a little aside the means of configurations that were run several times."""
    dots = [(place, value) for place, group in zip(at, groups) for value in group.data]
    places, values = np.reshape(dots, (-1, 2)).T
    plot.plot(*((places, values) if upright else (values, places)), "o", ms=4, mew=0, alpha=0.6, color="C0")
    shown = [(place, group) for place, group in zip(at, groups) if group.n > 1]
    if not (means and shown):
        return
    middle = np.array([group.mean for _, group in shown])
    low, high = np.transpose([group.interval for _, group in shown])
    aside = {"x": 6, "y": 0} if upright else {"x": 0, "y": -6}
    options: dict[str, Any] = {"fmt": "D", "ms": 5, "color": "C1", "elinewidth": 2, "zorder": 3}
    options["transform"] = offset_copy(plot.transData, plot.get_figure(root=True), units="points", **aside)
    if np.isfinite(low).any():
        options["yerr" if upright else "xerr"] = np.clip([middle - low, high - middle], 0, None)
    where = np.array([place for place, _ in shown])
    plot.errorbar(*((where, middle) if upright else (middle, where)), **options)


def _place_of(axis: Axis, value: Any) -> float:
    return float(value) if axis.numeric else float(axis.ranks[key_of(value)])


def _set_parameter_axis(plot: Axes, axis: Axis, width: int) -> None:
    """Set scale, ticks and label of the x axis; what isn't a number stands at 0, 1, …."""
    if not axis.numeric:
        names = [_wrapped(spell(value, _NAME), _NAME) for value in axis.values]
        plot.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    else:
        _plain(plot, "x", axis.values)
        values = [*map(float, axis.values)]
        places = np.log(values) if plot.get_xscale() == "log" else values
        if width == _TITLE and np.ptp(places) <= _MOST_TICKS * np.diff(places).min(initial=np.inf):
            set_ticks(plot, x=values)
    plot.set_xlabel(_wrapped(axis.name, width))
    plot.margins(x=0.1)


def _set_scale(plot: Axes, side: str, groups: Sequence[Group]) -> None:
    """Set the scale of an axis of results; none begins far below 0 for nothing."""
    values = np.concatenate([np.empty(0), *(group.data.ravel() for group in groups)])
    _plain(plot, side, values)
    low, high = getattr(plot, f"get_{side}lim")()
    if values.size and values.min() >= 0 and low < 0:
        plot.set(**{f"{side}lim": (-0.02 * high, high)})


def _plain(plot: Axes, side: str, values: Sequence[float] | np.ndarray) -> None:
    """Make an axis logarithmic where its values ask for it, and write 0.01 and 3,000,000 at its ticks."""
    axis = getattr(plot, f"{side}axis")
    if wants_logarithm(values):
        plot.set(**{f"{side}scale": "log"})
        axis.set_minor_formatter(NullFormatter())
        if np.max(values) < 50 * np.min(values):  # powers of ten alone would be one number, or two
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    elif side == "x":
        axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value, ",.10g")))


def wants_logarithm(values: Iterable[float]) -> bool:
    """Say whether numbers are positive, span a factor of 20, and lie more evenly on a logarithmic axis."""
    array = np.sort(np.asarray([*values], dtype=np.float64))
    if array.size < 3 or array[0] <= 0 or array[-1] < 20 * array[0]:
        return False
    # How far the median lies from the middle of the range, relative to the range.
    plain, logarithmic = (abs((np.median(a) - a[0]) / (a[-1] - a[0]) - 0.5) for a in (array, np.log(array)))
    return bool(logarithmic < plain)


def _wrapped(text: str, width: int) -> str:
    """Break a text between words; signs that the figures' fonts lack are shown by their number."""
    fonts = [font_manager.get_font(font_manager.findfont(name)) for name in rcParams["font.family"]]
    known = "".join(
        sign
        if any(font.get_char_index(ord(sign)) for font in fonts)
        else sign.encode("unicode_escape").decode()
        for sign in text
    )
    return textwrap.fill(with_minus(known), width, break_on_hyphens=False)
