"""Runs as points in a figure, and beside them what they come to together."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradtricks.lab.results.drawing import counted
from gradtricks.lab.results.grouping import Axis, Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NUDGE = 0.009  # in shares of the axis


def mark_lost(axes: "Axes", groups: Sequence[Group], at: Sequence[float], *, vertical: bool) -> None:
    """Say at each configuration how many of its runs gave no number.

    Args:
        axes: Of the figure.
        groups: Configurations.
        at: Their places on the axis of the parameter.
        vertical: Whether that is the y axis.
    """
    for group, place in zip(groups, at, strict=True):
        if group.lost:
            transform = axes.get_yaxis_transform() if vertical else axes.get_xaxis_transform()
            where = (1.0, place) if vertical else (place, 0.99)
            sides = ("left", "center") if vertical else ("center", "top")
            text = f" ×{group.lost}" if vertical else f"×{group.lost}"
            axes.text(*where, text, transform=transform, ha=sides[0], va=sides[1], color="C1", fontsize=9.5)


def _nudged(axis: Axis, at: Sequence[float], direction: int) -> list[float]:
    """Move what is drawn a little aside.

    Args:
        axis: A parameter.
        at: Places on it.
        direction: -1 or 1.

    Returns:
        The new places.
    """
    if not axis.numeric:
        return [place + direction * 0.14 for place in at]
    low, high = axis.values[0], axis.values[-1]
    if axis.logarithmic:
        return [place * (high / low) ** (direction * _NUDGE) for place in at]
    return [place + direction * _NUDGE * (high - low) for place in at]


def draw_points(axes: "Axes", axis: Axis, groups: Sequence[Group], at: Sequence[float]) -> None:
    """Draw each run as a point, and beside them the interquartile mean, with its interval where there is one.

    Args:
        axes: Of the figure.
        axis: The parameter; one that isn't numeric goes downwards.
        groups: Configurations.
        at: Their places on the axis.
    """
    several = any(group.summary.n > 1 for group in groups)
    around = _nudged(axis, at, -1) if several else at
    points = [(p, value) for group, p in zip(groups, around) for value in group.found if np.isfinite(value)]
    x, y = np.array(points).reshape(-1, 2).T[:: 1 if axis.numeric else -1]
    label = f"a run ({counted(group.summary.n for group in groups)} each)"
    axes.plot(x, y, "o", ms=4, mew=0, alpha=0.8, color="C0", label=label)
    if several:
        _draw_means(axes, axis, groups, _nudged(axis, at, 1))
        axes.figure.legend(loc="outside upper right", ncols=2, handletextpad=0.4, columnspacing=1.4)


def _draw_means(axes: "Axes", axis: Axis, groups: Sequence[Group], at: Sequence[float]) -> None:
    drawn = [(place, group.summary) for group, place in zip(groups, at, strict=True) if group.summary.n]
    where, means = [place for place, _ in drawn], [summary.mean for _, summary in drawn]
    reach = [[s.mean - s.low for _, s in drawn], [s.high - s.mean for _, s in drawn]]
    errors = np.clip(reach, 0, None)
    label = f"interquartile mean{', 95 % interval' if np.isfinite(errors).any() else ''}"
    options: dict[str, Any] = {"fmt": "D", "ms": 5.5, "capsize": 4, "color": "C1", "zorder": 3}
    options |= {"elinewidth": 2, "capthick": 2, "label": label}
    if axis.numeric:
        axes.errorbar(where, means, yerr=errors, **options)
    else:
        axes.errorbar(means, where, xerr=errors, **options)
