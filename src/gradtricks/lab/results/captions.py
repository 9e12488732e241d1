"""What is said of a figure: how to read it, how many runs are behind it, and what it shows."""

from collections.abc import Sequence

from gradtricks.lab.results.curves import Curve
from gradtricks.lab.results.drawing import counted, number
from gradtricks.lab.results.grouping import Axis, Group
from gradtricks.lab.results.statistics import CONFIDENCE, FEWEST_RUNS, Summary

_LISTED = 7  # configurations that are named one by one
_INTERVAL = f"{CONFIDENCE:.0%} bootstrap interval".replace("%", " %")


def of_points(groups: Sequence[Group]) -> str:
    """Say how to read points with their means.

    Args:
        groups: Configurations.

    Returns:
        A few sentences.
    """
    counts = [group.summary.n for group in groups]
    if max(counts) < 2:
        return f"Points are runs.{_lost(groups)}"
    means = f"interquartile means{_intervals(counts, f', with their {_INTERVAL}s')}"
    return f"Points are runs ({counted(counts)} each), diamonds {means}.{_lost(groups)}"


def of_heat_map(groups: Sequence[Group], *, written: bool) -> str:
    """Say how to read a heat map.

    Args:
        groups: Configurations.
        written: Whether its numbers are written in its cells.

    Returns:
        A few sentences.
    """
    read = "Numbers" if written else "Colours"
    return f"{read} are {_means(groups)}.{_lost(groups, marked=written)}"


def of_parallel(groups: Sequence[Group]) -> str:
    """Say how to read parallel coordinates.

    Args:
        groups: Configurations.

    Returns:
        A few sentences.
    """
    read = f"Each line is a configuration; its colour and its last point are {_means(groups)}."
    return f"{read}{_lost(groups, marked=False)}"


def of_curves(axes: Sequence[Axis], curves: Sequence[Curve]) -> str:
    """Say how to read a figure of curves.

    Args:
        axes: What was varied besides the seed.
        curves: That are drawn.

    Returns:
        A few sentences.
    """
    counts = [curve.n for curve in curves]
    bands = _intervals(counts, f", bands their {_INTERVAL}s")
    read = f"Lines are interquartile means ({counted(counts)} each){bands}."
    if max(counts) < 2:
        read = "Lines are single runs."
    pooled = ", ".join(axis.name for axis in axes[1:])
    pooled = f" Runs with different {pooled} are taken together." if pooled else ""
    lost = sum(curve.lost for curve in curves)
    why = "failed, or recorded nothing or something that isn't finite"
    left_out = f" Left out: {lost} that {why}." if lost else ""
    cut = sum(curve.cut for curve in curves)
    ends = f" Each line ends with the shortest of its runs: {cut} went on for longer." if cut else ""
    return f"{read}{pooled}{ends}{left_out}"


def alt(title: str, axes: Sequence[Axis], groups: Sequence[Group]) -> str:
    """Say what a figure of numbers shows, for those who can't see it.

    Args:
        title: Of the result.
        axes: What was varied besides the seed.
        groups: Configurations.

    Returns:
        A few sentences.
    """
    known = [group for group in groups if group.summary.n]
    against = f" against {_listed([axis.name for axis in axes])}" if axes else ""
    if not known:
        return f"{title}{against}: no run gave a number."
    begin = f"{title}{against}, {counted([group.summary.n for group in known])} each."
    if not axes:
        return f"{begin} The interquartile mean is {_with_interval(known[0].summary)}."
    if len(known) <= _LISTED:
        listed = "; ".join(f"{_where(axes, group)}: {_with_interval(group.summary)}" for group in known)
        return f"{begin} Interquartile means: {listed}."
    ordered = sorted(known, key=lambda group: group.summary.mean)
    low, high = ordered[0], ordered[-1]
    return (
        f"{begin} The interquartile mean is lowest, {_with_interval(low.summary)}, at {_where(axes, low)}, "
        f"and highest, {_with_interval(high.summary)}, at {_where(axes, high)}."
    )


def alt_of_curves(title: str, axes: Sequence[Axis], curves: Sequence[Curve]) -> str:
    """Say what a figure of curves shows, for those who can't see it.

    Args:
        title: Of the result.
        axes: What was varied besides the seed.
        curves: That are drawn.

    Returns:
        A few sentences.
    """
    known = [curve for curve in curves if curve.n]
    by = f" for each {axes[0].name}" if axes else ""
    if not known:
        return f"{title}{by}: no run gave a curve."
    begin = f"{title} by position{by}, {counted([curve.n for curve in known])} each."
    listed = [
        f"{f'{_where(axes[:1], curve)}: ' if axes else ''}"
        f"from {number(curve.mean[0])} to {number(curve.mean[-1])}"
        for curve in known[:: max(1, len(known) - 1) if len(known) > _LISTED else 1]
    ]
    return f"{begin} Interquartile means go {'; '.join(listed)}."


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _where(axes: Sequence[Axis], group: Group | Curve) -> str:
    return ", ".join(axis.spelled(value) for axis, value in zip(axes, group.values))


def _with_interval(summary: Summary) -> str:
    if summary.n < FEWEST_RUNS:
        return number(summary.mean)
    return f"{number(summary.mean)} ({number(summary.low)} to {number(summary.high)})"


def _intervals(counts: Sequence[int], said: str) -> str:
    """Speak of intervals, or say why some or all are missing."""
    needed = f"{FEWEST_RUNS} runs"
    if max(counts) < FEWEST_RUNS:
        return f" without intervals, which take {needed}"
    return f"{said} where there are {needed}" if min(counts) < FEWEST_RUNS else said


def _means(groups: Sequence[Group]) -> str:
    counts = [group.summary.n for group in groups]
    return "single runs" if max(counts) < 2 else f"interquartile means ({counted(counts)} each)"


def _lost(groups: Sequence[Group], *, marked: bool = True) -> str:
    parts = [
        (sum(group.failed for group in groups), "failed"),
        (sum(group.missing for group in groups), "recorded nothing here"),
        (sum(group.summary.non_finite for group in groups), "gave a number that isn't finite"),
    ]
    said = [f"{count} {what}" for count, what in parts if count]
    return f" Not part of it{' (×)' if marked else ''}: {', '.join(said)}." if said else ""
