"""Figures of what a sweep found, each with a sentence that says how to read it."""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from gradtricks.lab.results.captions import alt_of, counted, interval_said, lost, mean_said, means, number
from gradtricks.lab.results.drawing import (
    add_color_bar,
    book_style,
    drawable,
    new_figure,
    place_of,
    scale_of,
    set_parameter_axis,
    set_result_axis,
    wrapped,
)
from gradtricks.lab.results.grouping import Axis, Curve, Found, Group, key_of, spell

_UNNAMED = re.compile(r"[^a-z0-9]+")
_WRITTEN = (16, 9)  # rows and columns of a heat map up to which there is room for numbers
_MOST_NAMES = 16  # at one side of a heat map
_MOST_TOGETHER = 4  # lines in one panel: so many have colours that are told apart on both pages
_NAME = 17  # letters for which a panel is wide enough
_LINE = 0.09  # of a figure's height: how far apart the names of lines stand
_ABREAST, _MOST_PANELS = 3, 24  # curves
_WHOLE = 54  # letters for which a figure is wide enough, in a title
_WIDTH = 48  # letters of a title that fit above a plot beside its labels
_HALF = 22  # letters side by side for which half of a figure is wide enough
_BRIGHT = 0.42  # luminance from which on a cell's number is dark; dark pages show cells brighter

_Drawn = tuple[Figure, str]


@dataclass(frozen=True)
class PlotResult:
    """A figure of what was found."""

    found: Found
    figure: Figure
    alt: str  # what it shows, for those who can't see it
    caption: str  # how to read it, and how many runs are behind it

    def svg(self) -> str:
        """Return the figure as SVG; equal figures are equal texts."""
        text = io.StringIO()
        with book_style():
            self.figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()


def plot_results(found: Iterable[Found]) -> dict[str, PlotResult]:
    """Draw what a sweep found, a figure for each result.

    No parameter besides the seed, or one: each run is a point, with interquartile means and their bootstrap
    intervals. Two: a heat map. More, or pairs at random: a panel for each. Lists are drawn as curves with
    bands. Figures come by name, such as ``growth_end``.
    """
    drawn: dict[str, PlotResult] = {}
    for each in found:
        name = _UNNAMED.sub("_", each.label.lower()).strip("_")
        name = name if name[:1].isalpha() else f"result_{name}"
        while name in drawn:
            name += "_"
        with book_style():
            figure, caption = _draw(each)
            # Laid out once: each further time would move it by a millionth of a point.
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        drawn[name] = PlotResult(each, figure, alt_of(each), caption)
    return drawn


def _draw(found: Found) -> _Drawn:
    title, axes = found.title, found.axes
    if isinstance(found.parts[0], Curve):
        return _curves(found, axes, cast(Sequence[Curve], found.parts))
    groups = cast(Sequence[Group], found.parts)
    if len(axes) < 2:
        return _points(title, axes, groups)
    # Random pairs of values would leave most of a heat map empty.
    if len(axes) == 2 and 2 * len(groups) >= len(axes[0].values) * len(axes[1].values):
        return _heat_map(title, axes, groups)
    return _panels(title, axes, groups)


def _points(title: str, axes: Sequence[Axis], groups: Sequence[Group]) -> _Drawn:
    """Draw runs as points, and beside them interquartile means, for one parameter or for none."""
    axis = axes[0] if axes else Axis("", ("",), numeric=False)
    side, other = ("x", "y") if axis.numeric else ("y", "x")
    at = [place_of(axis, group.values[0] if axes else "") for group in groups]
    figure, [plot] = new_figure(3.3 if axis.numeric else 1.3 + 0.42 * len(axis.values))
    points = [(p, value) for group, p in zip(groups, at) for value in group.found if np.isfinite(value)]
    x, y = np.array(points).reshape(-1, 2).T[:: 1 if axis.numeric else -1]
    several, said = any(group.n > 1 for group in groups), counted(groups)
    plot.plot(x, y, "o", ms=4, mew=0, alpha=0.8, color="C0", label=f"a run ({said})")
    if several:
        shown = [(p, g.summary) for p, g in zip(at, groups) if g.n]
        _means(plot, shown, mean_said(groups), upright=axis.numeric)
        figure.legend(loc="outside upper right", ncols=2, handletextpad=0.4, columnspacing=1.4)
    set_parameter_axis(plot, axis, side)
    plot.margins(y=0.12 if axis.numeric else None)
    set_result_axis(plot, other, [value for _, value in points])
    plot.set_title(drawable(title))
    if not axis.numeric:
        plot.grid(axis="y", visible=False)
    if not axes:
        plot.set_yticks([])
    intervals = interval_said(groups, ", with their {}s")
    means_too = f" ({said}), diamonds {mean_said(groups)}s{intervals}" if several else ""
    return figure, f"Points are runs{means_too}.{lost(groups)}"


def _means(plot: Axes, drawn: Sequence[tuple[float, Any]], said: str, *, upright: bool) -> None:
    where, middle = [place for place, _ in drawn], [s.mean for _, s in drawn]
    errors = np.clip([[s.mean - s.low for _, s in drawn], [s.high - s.mean for _, s in drawn]], 0, None)
    known = np.isfinite(errors).any()
    options: dict[str, Any] = {"fmt": "D", "ms": 5.5, "capsize": 4, "color": "C1", "zorder": 3}
    options |= {"label": f"{said}{', 95% interval' if known else ''}", "elinewidth": 2}
    # A little aside, so that they hide no run.
    aside = {"x": 6, "y": 0} if upright else {"x": 0, "y": -7}
    options["transform"] = offset_copy(plot.transData, plot.get_figure(root=True), units="points", **aside)
    options["yerr" if upright else "xerr"] = errors if known else None
    plot.errorbar(*((where, middle) if upright else (middle, where)), **options)


def _heat_map(title: str, axes: Sequence[Axis], groups: Sequence[Group]) -> _Drawn:
    """Draw the interquartile mean for each pair of values; the first parameter's values are rows."""
    rows, columns = axes
    cells = [[axis.ranks[key_of(value)] for axis, value in zip(axes, group.values)] for group in groups]
    found = np.full((len(rows.values), len(columns.values)), np.nan)
    for (row, column), group in zip(cells, groups):
        found[row, column] = group.summary.mean
    figure, [plot] = new_figure(min(1.4 + 0.42 * len(rows.values), 7.0))
    plot.set_facecolor("none")
    scale = scale_of(found)
    plot.imshow(np.where(np.isfinite(found)[..., None], scale.to_rgba(found), 0), aspect="auto")
    plot.grid(visible=False)
    for axis, set_ticks, longest in ((columns, plot.set_xticks, 14), (rows, plot.set_yticks, 24)):
        step = -(-len(axis.values) // _MOST_NAMES)
        names = [drawable(value, longest) for value in axis.values[::step]]
        set_ticks(range(0, len(axis.values), step), names)
        if axis is columns and sum(map(len, names)) > 40:
            plot.tick_params(axis="x", labelrotation=45)
    plot.set(xlabel=drawable(columns.name), ylabel=drawable(rows.name, 40), title=_titled(title, groups))
    add_color_bar(plot, scale)
    written = all(len(axis.values) <= most for axis, most in zip(axes, _WRITTEN))
    for (row, column), group in zip(cells, groups if written else ()):
        red, green, blue, _ = scale.to_rgba(np.array(group.summary.mean))
        bright = 0.299 * red + 0.587 * green + 0.114 * blue > _BRIGHT
        ink = ("black" if bright else "white") if group.n else "C1"
        text = number(group.summary.mean) if group.n else "none"
        plot.text(column, row, text, ha="center", va="center", color=ink)
    return figure, f"{'Numbers' if written else 'Colours'} are {means(groups)}.{lost(groups)}"


def _panels(title: str, axes: Sequence[Axis], groups: Sequence[Group]) -> _Drawn:
    """Draw the interquartile means of all configurations against each parameter, in a panel each."""
    figure, panels = new_figure(0.6 + 2.6 * -(-len(axes) // 2), len(axes), across=2, sharey=True)
    known = [group for group in groups if group.n]
    values = [group.summary.mean for group in known]
    for place, (panel, axis) in enumerate(zip(panels, axes)):
        at = [place_of(axis, group.values[place]) for group in known]
        panel.plot(at, values, "o", ms=4, mew=0, alpha=0.6)
        set_parameter_axis(panel, axis, "x")
        panel.set_xlabel(wrapped(panel.get_xlabel(), _HALF))
        names = [label.get_text() for label in panel.get_xticklabels()]
        if sum(len(name) + 1 for name in names) > _HALF:
            for label in panel.get_xticklabels():
                label.set(rotation=45, horizontalalignment="right", rotation_mode="anchor")
        panel.margins(x=0.15)
    set_result_axis(panels[0], "y", values)
    figure.suptitle(_titled(title, groups))
    read = f"Each point is a configuration, and stands once in each panel: {means(groups)}."
    return figure, read + lost(groups)


def _curves(found: Found, axes: Sequence[Axis], curves: Sequence[Curve]) -> _Drawn:
    """Draw a curve with its band for each configuration: a few together, many in panels."""
    there = [curve for curve in curves if curve.n]
    drawn = there[:_MOST_PANELS]
    together = len(drawn) <= _MOST_TOGETHER
    longest = (2 if together else 3) * _NAME
    names = [drawable(", ".join(spell(value, longest) for value in c.values), longest) for c in drawn]
    names = names if together else [wrapped(name, _NAME) for name in names]
    count, across = (1, 1) if together else (len(drawn), _ABREAST)
    third = 0.16 * any(name.count("\n") > 1 for name in names)  # inches, for a third line above each panel
    height = 3.3 if together else 0.8 + (1.75 + third) * -(-count // across)
    figure, panels = new_figure(height, count, across, sharex=True, sharey=True)
    seen: list[float] = []
    for place, curve in enumerate(drawn):
        panel = panels[0 if together else place]
        if not together:
            for other in drawn:
                panel.plot(np.arange(len(other.mean)) + 1, other.mean, color="0.55", alpha=0.4, lw=0.7)
            panel.set_title(names[place], fontsize="medium", fontweight="normal")
        seen += _draw_curve(panel, curve, f"C{place if together else 0}").tolist()
    set_result_axis(panels[0], "y", seen)
    if together:
        _name_lines(panels[0], drawn, names)
    several = f" ({counted(drawn)})" if any(curve.n > 1 for curve in drawn) else ""
    by = f", by {' and '.join(drawable(axis.name, 30) for axis in axes)}" if axes else ""
    figure.suptitle(wrapped(drawable(found.title) + by, _WHOLE))
    figure.supxlabel(f"{drawable(found.counted)}{several}", fontsize="medium")
    more = len(there) - len(drawn)
    return figure, _read_curves(curves) + (f" {more} more aren't drawn." if more else "")


def _draw_curve(plot: Axes, curve: Curve, color: str) -> np.ndarray:
    """Draw one curve and its band, and return the numbers that are seen."""
    steps = np.arange(len(curve.mean)) + 1
    plot.plot(steps, curve.mean, color=color, marker="o" if len(steps) == 1 else "")
    plot.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    plot.margins(x=0.02)
    if not np.isfinite(curve.low).all():
        return curve.mean
    plot.fill_between(steps, curve.low, curve.high, color=color, alpha=0.22, lw=0)
    return np.concatenate([curve.low, curve.high])


def _name_lines(plot: Axes, curves: Sequence[Curve], names: Sequence[str]) -> None:
    """Write the name of each line beside its end, in its colour, none upon another."""
    plot.autoscale_view()  # or else the heights are those of an empty plot
    ends = [(0.0, curve.mean[-1]) for curve in curves]
    places = plot.transAxes.inverted().transform(plot.transData.transform(np.reshape(ends, (-1, 2))))
    heights, below = places[:, 1], -np.inf
    for place in np.argsort(heights):
        below = max(heights[place], below + _LINE)
        plot.text(1.02, below, names[place], color=f"C{place}", va="center", transform=plot.transAxes)


def _read_curves(curves: Sequence[Curve]) -> str:
    several = any(curve.n > 1 for curve in curves)
    read = f"Lines are {means(curves)}{interval_said(curves, ', bands their {}s') if several else ''}."
    if cut := sum(curve.cut for curve in curves):
        read += f" Each line ends with the shortest of its runs: {cut} went on for longer."
    if left_out := sum(curve.lost for curve in curves):
        read += f" Left out: {left_out} that failed, or recorded nothing or something that isn't finite."
    return read


def _titled(title: str, groups: Sequence[Group]) -> str:
    each = counted(groups).replace(" ", "\N{NO-BREAK SPACE}")
    said = f" ({mean_said(groups)}, {each})" if any(group.n > 1 for group in groups) else ""
    return wrapped(drawable(title, 60) + said, _WIDTH)
