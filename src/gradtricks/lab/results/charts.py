"""Figures of what a sweep found, each with a sentence that says how to read it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from gradtricks.lab.results.captions import counted, interval_said, lost, means, number
from gradtricks.lab.results.drawing import (
    add_color_bar,
    drawable,
    new_figure,
    place_of,
    scale_of,
    set_parameter_axis,
    set_result_axis,
    wrapped,
)
from gradtricks.lab.results.grouping import Axis, Curve, Group

_WRITTEN = (16, 9)  # rows and columns of a heat map up to which there is room for numbers
_MOST_NAMES = 16  # at one side of a heat map
_MOST_TOGETHER = 4  # lines in one panel: so many have colours that are told apart on both pages
_NAME = 17  # letters for which a panel is wide enough
_LINE = 0.09  # of a figure's height: how far apart the names of lines stand
_ABREAST = 3  # curves
_WHOLE = 54  # letters for which a figure is wide enough, in a title
_WIDTH = 48  # letters of a title that fit above a plot beside its labels
_HALF = 22  # letters side by side for which half of a figure is wide enough
_BRIGHT = 0.42  # luminance from which on a cell's number is dark; dark pages show cells brighter

Drawn = tuple[Figure, str]


def draw(title: str, axes: Sequence[Axis], groups: Sequence[Group]) -> Drawn:
    """Choose a figure for numbers. Random pairs of values would leave most of a heat map empty."""
    if len(axes) < 2:
        return draw_points(title, axes, groups)
    if len(axes) == 2 and 2 * len(groups) >= len(axes[0].values) * len(axes[1].values):
        return draw_heat_map(title, axes, groups)
    return draw_panels(title, axes, groups)


def draw_points(title: str, axes: Sequence[Axis], groups: Sequence[Group]) -> Drawn:
    """Draw runs as points, and beside them interquartile means, for one parameter or for none."""
    axis = axes[0] if axes else Axis("", ("",), numeric=False)
    side, other = ("x", "y") if axis.numeric else ("y", "x")
    at = [place_of(axis, group.values[0] if axes else "") for group in groups]
    figure, plot = new_figure(3.3 if axis.numeric else 1.3 + 0.42 * len(axis.values))
    points = [(p, value) for group, p in zip(groups, at) for value in group.found if np.isfinite(value)]
    x, y = np.array(points).reshape(-1, 2).T[:: 1 if axis.numeric else -1]
    several, said = any(group.n > 1 for group in groups), counted(groups)
    plot.plot(x, y, "o", ms=4, mew=0, alpha=0.8, color="C0", label=f"a run ({said} each)")
    if several:
        _draw_means(plot, [(p, g.summary) for p, g in zip(at, groups) if g.n], upright=axis.numeric)
        figure.legend(loc="outside upper right", ncols=2, handletextpad=0.4, columnspacing=1.4)
    set_parameter_axis(plot, axis, side)
    set_result_axis(plot, other, [value for _, value in points])
    plot.set_title(drawable(title))
    if axis.numeric:
        plot.margins(y=0.12)
    else:
        plot.grid(axis="y", visible=False)
    if not axes:
        plot.set_yticks([])
    with_intervals = interval_said(groups, ", with their {}s")
    means_too = f" ({said} each), diamonds interquartile means{with_intervals}" if several else ""
    return figure, f"Points are runs{means_too}.{lost(groups)}"


def _draw_means(plot: Axes, drawn: Sequence[tuple[float, Any]], *, upright: bool) -> None:
    where, middle = [place for place, _ in drawn], [s.mean for _, s in drawn]
    errors = np.clip([[s.mean - s.low for _, s in drawn], [s.high - s.mean for _, s in drawn]], 0, None)
    known = np.isfinite(errors).any()
    options: dict[str, Any] = {"fmt": "D", "ms": 5.5, "capsize": 4, "color": "C1", "zorder": 3}
    options |= {"label": f"interquartile mean{', 95 % interval' if known else ''}", "elinewidth": 2}
    # A little aside, so that they hide no run.
    aside = {"x": 6, "y": 0} if upright else {"x": 0, "y": -7}
    options["transform"] = offset_copy(plot.transData, plot.get_figure(root=True), units="points", **aside)
    if upright:
        plot.errorbar(where, middle, yerr=errors if known else None, **options)
    else:
        plot.errorbar(middle, where, xerr=errors if known else None, **options)


def draw_heat_map(title: str, axes: Sequence[Axis], groups: Sequence[Group]) -> Drawn:
    """Draw the interquartile mean for each pair of values; the first parameter's values are rows."""
    rows, columns = axes
    cells = [[axis.rank(value) for axis, value in zip(axes, group.values)] for group in groups]
    found = np.full((len(rows.values), len(columns.values)), np.nan)
    for (row, column), group in zip(cells, groups):
        found[row, column] = group.summary.mean
    figure, plot = new_figure(min(1.4 + 0.42 * len(rows.values), 7.0))
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
    if written:
        for (row, column), group in zip(cells, groups):
            _write_cell(plot, row, column, group, scale.to_rgba(np.array(group.summary.mean)))
    return figure, f"{'Numbers' if written else 'Colours'} are {means(groups)}.{lost(groups)}"


def _write_cell(plot: Axes, row: int, column: int, group: Group, color: np.ndarray) -> None:
    red, green, blue, _ = color
    bright = 0.299 * red + 0.587 * green + 0.114 * blue > _BRIGHT
    ink = ("black" if bright else "white") if group.n else "C1"
    text = number(group.summary.mean) if group.n else "none"
    plot.text(column, row, text, ha="center", va="center", color=ink)


def draw_panels(title: str, axes: Sequence[Axis], groups: Sequence[Group]) -> Drawn:
    """Draw the interquartile means of all configurations against each parameter, in a panel each."""
    down, across = -(-len(axes) // 2), min(len(axes), 2)
    figure, spare = new_figure(0.6 + 2.6 * down)
    spare.remove()
    panels = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
    known = [group for group in groups if group.n]
    values = [group.summary.mean for group in known]
    for place, (panel, axis) in enumerate(zip(panels, axes)):
        at = [place_of(axis, group.values[place]) for group in known]
        panel.plot(at, values, "o", ms=4, mew=0, alpha=0.6)
        set_parameter_axis(panel, axis, "x")
        panel.set_xlabel(wrapped(panel.get_xlabel(), _HALF))
        names = [label.get_text() for label in panel.get_xticklabels()]
        if sum(len(name) + 1 for name in names) > _HALF:
            panel.tick_params(axis="x", labelrotation=45)
            for label in panel.get_xticklabels():
                label.set(horizontalalignment="right", rotation_mode="anchor")
        panel.margins(x=0.15)
    set_result_axis(panels[0], "y", values)
    for panel in panels[len(axes) :]:
        panel.remove()
    figure.suptitle(_titled(title, groups))
    read = f"Each point is a configuration, and stands once in each panel: {means(groups)}."
    return figure, read + lost(groups)


def draw_curves(title: str, axes: Sequence[Axis], curves: Sequence[Curve]) -> Drawn:
    """Draw a curve with its band for each value of the first parameter: a few together, many in panels."""
    drawn = [curve for curve in curves if curve.n]
    names = [drawable(curve.values[0], 2 * _NAME) if axes else "" for curve in drawn]
    together = len(drawn) <= _MOST_TOGETHER
    down, across = (1, 1) if together else (-(-len(drawn) // _ABREAST), _ABREAST)
    figure, spare = new_figure(3.3 if together else 0.8 + 1.75 * down)
    spare.remove()
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel().tolist()
    if together:
        shown = [_draw_curve(panels[0], curve, f"C{place}") for place, curve in enumerate(drawn)]
    else:
        shown = [_draw_among(panel, drawn, place, names) for place, panel in enumerate(panels[: len(drawn)])]
        for panel in panels[len(drawn) :]:
            panel.remove()
    set_result_axis(panels[0], "y", [value for numbers in shown for value in numbers.tolist()])
    if together:
        _name_lines(panels[0], drawn, names)
    several = f" ({counted(drawn)} each)" if any(curve.n > 1 for curve in drawn) else ""
    by = f", by {drawable(axes[0].name, 30)}" if axes else ""
    figure.suptitle(wrapped(drawable(title) + by, _WHOLE))
    figure.supxlabel(f"position in the list{several}", fontsize="medium")
    return figure, _read_curves(axes, curves)


def _draw_among(panel: Axes, curves: Sequence[Curve], place: int, names: Sequence[str]) -> np.ndarray:
    """Draw one of many curves, before all of them in grey."""
    for curve in curves:
        panel.plot(curve.mean, color="0.55", alpha=0.4, lw=0.7)
    panel.set_title(wrapped(names[place], _NAME), fontsize="medium", fontweight="normal")
    return _draw_curve(panel, curves[place], "C0")


def _draw_curve(plot: Axes, curve: Curve, color: str) -> np.ndarray:
    """Draw one curve and its band, and return the numbers that are seen."""
    steps = np.arange(len(curve.mean))
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


def _read_curves(axes: Sequence[Axis], curves: Sequence[Curve]) -> str:
    read = "Lines are single runs."
    if any(curve.n > 1 for curve in curves):
        said = interval_said(curves, ", bands their {}s")
        read = f"Lines are interquartile means ({counted(curves)} each){said}."
    pooled = ", ".join(axis.name for axis in axes[1:])
    read += f" Runs with different {pooled} are taken together." if pooled else ""
    if cut := sum(curve.cut for curve in curves):
        read += f" Each line ends with the shortest of its runs: {cut} went on for longer."
    if left_out := sum(curve.lost for curve in curves):
        why = "failed, or recorded nothing or something that isn't finite"
        read += f" Left out: {left_out} that {why}."
    return read


def _titled(title: str, groups: Sequence[Group]) -> str:
    several = any(group.n > 1 for group in groups)
    said = f" (interquartile mean, {counted(groups)} each)" if several else ""
    return wrapped(drawable(title, 60) + said, _WIDTH)
