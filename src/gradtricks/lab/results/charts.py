"""Figures of results that are numbers: points, heat maps and parallel coordinates."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from gradtricks.lab.results.drawing import (
    add_color_bar,
    counted,
    drawable,
    new_figure,
    number,
    places,
    scale_of,
    set_parameter_axis,
    set_result_axis,
)
from gradtricks.lab.results.grouping import Axis, Group, key_of, spell
from gradtricks.lab.results.points import draw_points, mark_lost

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

_WRITTEN = (16, 9)  # rows and columns of a heat map up to which there is room for numbers
_MOST_NAMES = 16  # at one side of a heat map
_SIGN = 0.08  # width of a sign beside a coordinate, in inches
_SPREAD = 0.06
_BRIGHT = 0.42  # luminance from which on a cell's number is dark; dark pages show cells brighter


def draw_values(title: str, axes: Sequence[Axis], groups: Sequence[Group]) -> "Figure":
    """Draw runs as points, with interquartile means and their intervals, for no parameter or for one.

    Args:
        title: Of the result.
        axes: What was varied besides the seed: nothing, or one parameter.
        groups: Configurations.

    Returns:
        The figure.
    """
    axis = axes[0] if axes else Axis("", ("",), numeric=False)
    vertical = not axis.numeric
    at = [places(axis)[_rank(axis, group, 0)] for group in groups] if axes else [0.0]
    figure, plot = new_figure(1.3 + 0.42 * len(axis.values) if vertical else 3.3)
    draw_points(plot, axis, groups, at)
    set_parameter_axis(plot, axis, vertical=vertical)
    set_result_axis(plot, "x" if vertical else "y", [v for group in groups for v in _finite(group)])
    mark_lost(plot, groups, at, vertical=vertical)
    plot.set_title(drawable(spell(title, 60)))
    if vertical:
        plot.grid(axis="y", visible=False)
    else:
        plot.margins(y=0.12)
    if not axes:
        plot.set_yticks([])
    return figure


def draw_heat_map(title: str, axes: Sequence[Axis], groups: Sequence[Group]) -> "Figure":
    """Draw the interquartile mean for each pair of values.

    Args:
        title: Of the result.
        axes: The two parameters; the first one's values are rows.
        groups: Configurations.

    Returns:
        The figure.
    """
    rows, columns = axes
    means = np.full((len(rows.values), len(columns.values)), np.nan)
    for group in groups:
        means[_rank(rows, group, 0), _rank(columns, group, 1)] = group.summary.mean
    figure, plot = new_figure(min(1.4 + 0.42 * len(rows.values), 7.0))
    plot.set_facecolor("none")
    scale = scale_of(means)
    plot.imshow(np.where(np.isfinite(means)[..., None], scale.to_rgba(means), 0), aspect="auto")
    plot.grid(visible=False)
    _name_cells(plot, rows, columns)
    plot.set(xlabel=drawable(spell(columns.name, 60)), ylabel=drawable(spell(rows.name, 40)))
    _set_title(plot, title, groups)
    add_color_bar(plot, scale)
    if is_written(axes):
        _write_cells(plot, scale, axes, groups)
    return figure


def is_written(axes: Sequence[Axis]) -> bool:
    """Say whether the cells of a heat map have room for numbers.

    Args:
        axes: Of its rows and of its columns.

    Returns:
        Whether numbers are written in them.
    """
    return all(len(axis.values) <= most for axis, most in zip(axes, _WRITTEN, strict=True))


def _set_title(plot: "Axes", title: str, groups: Sequence[Group]) -> None:
    counts = [group.summary.n for group in groups]
    means = f" (interquartile mean, {counted(counts)} each)" if max(counts) > 1 else ""
    plot.set_title(drawable(f"{spell(title, 60 - len(means))}{means}"))


def _name_cells(plot: "Axes", rows: Axis, columns: Axis) -> None:
    """Write the values at rows and columns; of many only some."""
    for axis, set_ticks, longest in ((columns, plot.set_xticks, 14), (rows, plot.set_yticks, 24)):
        step = -(-len(axis.values) // _MOST_NAMES)
        names = [drawable(spell(value, longest)) for value in axis.values[::step]]
        set_ticks(range(0, len(axis.values), step), names)
        if axis is columns and sum(map(len, names)) > 40:
            plot.tick_params(axis="x", labelrotation=45)


def draw_parallel(title: str, axes: Sequence[Axis], groups: Sequence[Group]) -> "Figure":
    """Draw each configuration as a line through its values, coloured by its interquartile mean.

    Args:
        title: Of the result.
        axes: Two parameters or more.
        groups: Configurations.

    Returns:
        The figure.
    """
    means = np.array([group.summary.mean for group in groups])
    result = Axis(title, tuple(sorted(means[np.isfinite(means)].tolist())) or (0.0,), numeric=True)
    coordinates = [*axes, result]
    figure, plot = new_figure(4.0)
    scale = scale_of(means)
    room = figure.get_figwidth() / len(coordinates)
    gutters = [_mark_coordinate(plot, place, axis, room) for place, axis in enumerate(coordinates)]
    # The highest lines come last, on top; those without a number are dotted and end before the result.
    order = sorted(range(len(groups)), key=lambda place: (np.isfinite(means[place]), means[place]))
    for rank, place in enumerate(order):
        known = bool(np.isfinite(means[place]))
        beside = _SPREAD * (rank / max(1, len(groups) - 1) - 0.5)  # so that equal values stay apart
        heights = [_share(axis, value) + beside for axis, value in zip(axes, groups[place].values)]
        heights += [_share(result, float(means[place]))] if known else []
        color = scale.to_rgba(means[place : place + 1])[0] if known else "C1"
        for left, pair in enumerate(pairwise(heights)):
            plot.plot([left + gutters[left], left + 1], pair, color=color, lw=1.4, ls="-" if known else ":")
    _set_title(plot, title, groups)
    plot.set(xlim=(-0.1, len(axes) + 0.4), ylim=(-0.06, 1.06), yticks=[])
    names = [drawable(spell(axis.name, 70 // len(coordinates))) for axis in coordinates]
    plot.set_xticks(range(len(coordinates)), names)
    plot.grid(visible=False)
    plot.spines[:].set_visible(False)
    plot.tick_params(axis="x", length=0)
    return figure


def _mark_coordinate(plot: "Axes", place: int, axis: Axis, room: float) -> float:
    """Write values beside their coordinate, of many numbers only some; return the share of room they need."""
    plot.axvline(place, color=plot.spines["left"].get_edgecolor(), lw=1, zorder=0)
    values: Sequence[Any] = axis.values
    if axis.numeric and len(values) > 6:
        values = [axis.values[0], axis.values[len(values) // 2], axis.values[-1]]
    texts = [drawable(number(value) if isinstance(value, float) else spell(value, 10)) for value in values]
    for text, value in zip(texts, values, strict=True):
        plot.text(place + 0.04, _share(axis, value), text, va="center", fontsize=9)
    return min(0.08 + max(map(len, texts)) * _SIGN / room, 0.7)


def _share(axis: Axis, value: Any) -> float:
    """Place a value on a coordinate from 0 to 1."""
    if not axis.numeric:
        rank = [key_of(item) for item in axis.values].index(key_of(value))
        return 1 - (rank + 0.5) / len(axis.values)
    low, high = axis.values[0], axis.values[-1]
    if low == high:
        return 0.5
    if axis.logarithmic:
        return float(np.log(value / low) / np.log(high / low))
    return float((value - low) / (high - low))


def _write_cells(
    plot: "Axes", scale: "ScalarMappable", axes: Sequence[Axis], groups: Sequence[Group]
) -> None:
    for group in groups:
        row, column = (_rank(axis, group, place) for place, axis in enumerate(axes))
        text = number(group.summary.mean) if group.summary.n else "none"
        text += f"\n×{group.lost}" if group.lost else ""
        red, green, blue, _ = scale.to_rgba(np.array(group.summary.mean))
        bright = 0.299 * red + 0.587 * green + 0.114 * blue > _BRIGHT
        color = ("black" if bright else "white") if group.summary.n else "C1"
        plot.text(column, row, text, ha="center", va="center", color=color, fontsize=9)


def _rank(axis: Axis, group: Group, place: int) -> int:
    return [key_of(value) for value in axis.values].index(key_of(group.values[place]))


def _finite(group: Group) -> list[float]:
    return [value for value in group.found if np.isfinite(value)]
