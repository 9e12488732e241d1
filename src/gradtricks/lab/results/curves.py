"""Results that are lists, such as a loss at each step: interquartile means over runs, with bands."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gradtricks.lab.results.drawing import (
    add_color_bar,
    counted,
    drawable,
    label_ends,
    new_figure,
    scale_of,
    set_result_axis,
)
from gradtricks.lab.results.grouping import Axis, Group, spell
from gradtricks.lab.results.statistics import bootstrap_interval, interquartile_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

_MOST_COLOURS = 6


@dataclass(frozen=True)
class Curve:
    """The curves of a group, as far as all of them go.

    Attributes:
        group: The runs.
        mean: Interquartile mean at each position.
        low: Lower end of its interval; NaN with too few runs for one.
        high: Upper end.
        n: How many runs are part of it.
        lost: How many aren't, because they failed, recorded nothing or a number that isn't finite.
        cut: How many of those that are part of it go on for longer.
    """

    group: Group
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: int
    lost: int
    cut: int

    @property
    def banded(self) -> bool:
        """Whether there are enough runs for an interval."""
        return bool(np.isfinite(self.low).all())

    @property
    def values(self) -> tuple[Any, ...]:
        """Of the axes."""
        return self.group.values


def curve_of(group: Group) -> Curve:
    """Summarize the curves of a group.

    Args:
        group: Its runs recorded lists of numbers.

    Returns:
        Mean and band at each position.
    """
    whole = [
        (curve, stratum)
        for curve, stratum in zip(group.found, group.strata, strict=True)
        if curve and all(map(math.isfinite, curve))
    ]
    length = min((len(curve) for curve, _ in whole), default=0)
    values = np.array([curve[:length] for curve, _ in whole], dtype=np.float64).reshape(len(whole), length)
    low, high = bootstrap_interval(values, strata=[stratum for _, stratum in whole])
    lost = group.failed + group.missing + len(group.found) - len(whole)
    cut = sum(len(curve) > length for curve, _ in whole)
    return Curve(group, interquartile_mean(values), low, high, len(whole), lost, cut)


def draw_curves(title: str, axes: Sequence[Axis], curves: Sequence[Curve]) -> "Figure":
    """Draw a curve for each value of the first parameter.

    Args:
        title: Of the result.
        axes: What was varied.
        curves: From `curve_of`; those without runs are left out.

    Returns:
        The figure.
    """
    from matplotlib.ticker import MaxNLocator

    figure, plot = new_figure()
    drawn = [curve for curve in curves if curve.n]
    scale = _scale(axes, drawn)
    for place, curve in enumerate(drawn):
        color = scale.to_rgba(curve.values[0]) if scale else f"C{place}"
        steps = np.arange(len(curve.mean))
        plot.plot(steps, curve.mean, color=color, marker="o" if len(steps) == 1 else "")
        if curve.banded:
            plot.fill_between(steps, curve.low, curve.high, color=color, alpha=0.22, lw=0)
    shown = [part for c in drawn for part in ((c.low, c.high) if c.banded else (c.mean,))]
    set_result_axis(plot, "y", np.concatenate([*shown, []]).tolist())
    by = f", by {axes[0].name}" if axes and not scale else ""
    plot.set_title(drawable(spell(f"{title}{by}", 60)))
    several = any(curve.n > 1 for curve in drawn)
    bands = "; bands: 95 % intervals" if any(curve.banded for curve in drawn) else ""
    counts = f" ({counted(curve.n for curve in drawn)} each{bands})" if several else ""
    plot.set_xlabel(f"position in the list{counts}")
    plot.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    plot.margins(x=0.02)
    if scale:
        add_color_bar(plot, scale, drawable(spell(axes[0].name, 22)))
    elif axes and drawn:
        _label(plot, drawn)
    return figure


def _scale(axes: Sequence[Axis], drawn: Sequence[Curve]) -> "ScalarMappable | None":
    """Colour the curves by their parameter where it is a number and there are too many for single colours."""
    if len(drawn) <= _MOST_COLOURS or not axes[0].numeric:
        return None
    return scale_of(np.array(axes[0].values, dtype=np.float64))


def _label(plot: "Axes", drawn: Sequence[Curve]) -> None:
    plot.autoscale_view()
    ends = [
        (_height(plot, curve.mean[-1]), drawable(spell(curve.values[0], 16)), f"C{place}")
        for place, curve in enumerate(drawn)
    ]
    label_ends(plot, ends)


def _height(plot: "Axes", value: float) -> float:
    _, pixel = plot.transData.transform((0, value))
    return float(plot.transAxes.inverted().transform((0, pixel))[1])
