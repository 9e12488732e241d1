"""Figures of a sweep: what each result came to for each value that was tried."""

import io
import os
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gradtricks.lab.results import captions, charts
from gradtricks.lab.results.columns import values_of
from gradtricks.lab.results.curves import Curve, curve_of, draw_curves
from gradtricks.lab.results.drawing import book_style
from gradtricks.lab.results.grouping import Axis, Group, PlotError, axes_of, column_of, groups_of
from gradtricks.lab.storage.dotted import split_name

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

__all__ = ["PlotError", "PlotResult", "can_draw", "plot_sweep"]

_UNNAMED = re.compile(r"[^a-z0-9]+")
_PNG_DPI = 200


class Swept(Protocol):
    """What a plot needs to know of a sweep."""

    @property
    def varied(self) -> Sequence[str]:
        """Parameters with more than one value."""

    @property
    def shown(self) -> Sequence[str]:
        """Results to draw."""


@dataclass(frozen=True)
class PlotResult:
    """A figure.

    Attributes:
        column: Of the table, that it shows.
        axes: What was varied besides the seed.
        parts: What is drawn: a group for each configuration, or a curve for each value of the first axis.
        figure: Drawn with matplotlib.
        alt: What it shows, for those who can't see it.
        caption: How to read it, and how many runs are behind it.
    """

    column: str
    axes: Sequence[Axis]
    parts: Sequence[Group] | Sequence[Curve]
    figure: "Figure"
    alt: str
    caption: str

    def svg(self) -> str:
        """Return the figure as SVG; equal figures are equal texts."""
        buffer = io.StringIO()
        with book_style():
            self.figure.savefig(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()

    def save(self, path: Path) -> None:
        """Write the figure.

        Args:
            path: Ending in ``.svg``, without a background, or in ``.png``, on white.

        Raises:
            ValueError: It ends in something else.
        """
        if path.suffix not in (".svg", ".png"):
            raise ValueError(f"path must end in .svg or .png; got {path.name}")
        unfinished = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
        if path.suffix == ".svg":
            unfinished.write_text(self.svg(), encoding="utf-8")
        else:
            with book_style():
                self.figure.savefig(unfinished, dpi=_PNG_DPI, transparent=False, facecolor="white")
        os.replace(unfinished, path)


def plot_sweep(sweep: Swept, frame: "pandas.DataFrame") -> dict[str, PlotResult]:
    """Draw what a sweep found, one figure for each result that is to be shown.

    One parameter besides the seed: each run as a point, with interquartile means and their bootstrap
    intervals, or curves with bands where the result is a list. Two parameters: a heat map. More, or pairs at
    random: parallel coordinates. Curves are drawn for each value of the first parameter, and the others are
    pooled.

    Args:
        sweep: Says what was varied and what is to be shown.
        frame: Its runs, from `gradtricks.lab.results.tables.table`.

    Returns:
        Figures by name, such as ``growth_end``.

    Raises:
        PlotError: There are no runs, or a result isn't there or is nothing that could be drawn.
    """
    if frame.empty:
        raise PlotError(
            "expected runs to draw; got none: none has been run, or code or libraries have changed since; "
            "remedy: run the sweep, what is finished and unchanged isn't done again"
        )
    if not sweep.shown:
        raise PlotError("expected a number, or a list of numbers, among the results; got none")
    axes = axes_of(frame, sweep.varied)
    drawn: dict[str, PlotResult] = {}
    for shown in sweep.shown:
        column = column_of(frame, shown)
        drawn[_name(column, drawn)] = _plot(frame, axes, column)
    return drawn


def can_draw(frame: "pandas.DataFrame", column: str) -> bool:
    """Say whether a result is one that `plot_sweep` draws.

    Args:
        frame: From `gradtricks.lab.results.tables.table`.
        column: Of it.

    Returns:
        Whether all its values are numbers, or lists of numbers.
    """
    try:
        _is_curve(frame, column)
    except PlotError:
        return False
    return True


def _plot(frame: "pandas.DataFrame", axes: Sequence[Axis], column: str) -> PlotResult:
    title = label_of(column)
    if _is_curve(frame, column):
        curves = [curve_of(group) for group in groups_of(frame, axes, column, pooled=max(0, len(axes) - 1))]
        with book_style():
            figure = draw_curves(title, axes, curves)
        said = captions.alt_of_curves(title, axes, curves), captions.of_curves(axes, curves)
        return PlotResult(column, axes, curves, figure, *said)
    groups = groups_of(frame, axes, column)
    draw, caption = _chart(axes, groups)
    with book_style():
        figure = draw(title, axes, groups)
    return PlotResult(column, axes, groups, figure, captions.alt(title, axes, groups), caption(groups))


def _chart(
    axes: Sequence[Axis], groups: Sequence[Group]
) -> tuple[Callable[..., "Figure"], Callable[[Sequence[Group]], str]]:
    """Choose what to draw. Random pairs of values would leave most of a heat map empty."""
    if len(axes) < 2:
        return charts.draw_values, captions.of_points
    if len(axes) == 2 and 2 * len(groups) >= len(axes[0].values) * len(axes[1].values):
        return charts.draw_heat_map, partial(captions.of_heat_map, written=charts.is_written(axes))
    return charts.draw_parallel, captions.of_parallel


def _is_curve(frame: "pandas.DataFrame", column: str) -> bool:
    values = [value for value in values_of(frame[column]) if value is not None]
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    odd = [item for item in items if not isinstance(item, bool | int | float)]
    kinds = {isinstance(value, list) for value in values}
    if odd or len(kinds) > 1:
        got = f"{odd[0]!r:.60}" if odd else "both"
        raise PlotError(f"{column} must be numbers, or lists of numbers, to be drawn; got {got}")
    return kinds == {True}


def label_of(column: str) -> str:
    """Name a result for people.

    Args:
        column: Such as ``results.growth.end``.

    Returns:
        Such as ``growth.end``.
    """
    return ".".join(split_name(column)[1:])


def _name(column: str, taken: Container[str]) -> str:
    plain = _UNNAMED.sub("_", label_of(column).lower()).strip("_")
    name = plain if plain[:1].isalpha() else f"result_{plain}"
    while name in taken:
        name += "_"
    return name
