"""What is said of a figure: how many runs are behind it, and what it shows to those who can't see it."""

from collections.abc import Sequence

from gradtricks.lab.results.drawing import counted, number
from gradtricks.lab.results.grouping import Axis, Curve, Found, Group, spell
from gradtricks.lab.results.statistics import CONFIDENCE, FEWEST_RUNS, Summary

_LISTED = 7  # configurations that are named one by one
_INTERVAL = f"{CONFIDENCE:.0%} bootstrap interval".replace("%", " %")


def interval_said(counts: Sequence[int], said: str) -> str:
    """Speak of intervals, ``{}`` in a text, or say why some or all are missing."""
    needed = f"{FEWEST_RUNS} runs"
    if max(counts) < FEWEST_RUNS:
        return f" without intervals, which take {needed}"
    return said.format(_INTERVAL) + (f" where there are {needed}" if min(counts) < FEWEST_RUNS else "")


def means(groups: Sequence[Group]) -> str:
    """Say what numbers are: single runs, or means of several."""
    counts = [group.summary.n for group in groups]
    return "single runs" if max(counts) < 2 else f"interquartile means ({counted(counts)} each)"


def lost(groups: Sequence[Group]) -> str:
    """Say how many runs gave no number, and why; nothing where all did."""
    parts = [
        (sum(group.failed for group in groups), "failed"),
        (sum(group.missing for group in groups), "recorded nothing here"),
        (sum(group.summary.non_finite for group in groups), "gave a number that isn't finite"),
    ]
    said = [f"{count} {what}" for count, what in parts if count]
    return f" Not part of it: {', '.join(said)}." if said else ""


def alt_of(found: Found) -> str:
    """Say what a figure shows, for those who can't see it."""
    curves = [part for part in found.parts if isinstance(part, Curve) and part.n]
    groups = [part for part in found.parts if isinstance(part, Group) and part.summary.n]
    axes = found.axes if groups else found.axes[:1]
    against = f" against {_listed([axis.name for axis in axes])}" if axes else ""
    if curves:
        begin = f"{found.title} by position{against}, {counted([curve.n for curve in curves])} each."
        ends = curves[:: len(curves) - 1] if len(curves) > _LISTED else curves
        listed = [
            f"{_where(axes, curve)}from {number(curve.mean[0])} to {number(curve.mean[-1])}" for curve in ends
        ]
        return f"{begin} Interquartile means go {'; '.join(listed)}."
    if not groups:
        return f"{found.title}{against}: no run gave it."
    begin = f"{found.title}{against}, {counted([group.summary.n for group in groups])} each."
    if len(groups) <= _LISTED:
        listed = [f"{_where(axes, group)}{_with_interval(group.summary)}" for group in groups]
        return f"{begin} Interquartile means: {'; '.join(listed)}."
    ordered = sorted(groups, key=lambda group: group.summary.mean)
    low, high = (f"{_where(axes, each)}{_with_interval(each.summary)}" for each in (ordered[0], ordered[-1]))
    return f"{begin} Interquartile means, lowest: {low}; highest: {high}."


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _where(axes: Sequence[Axis], part: Group | Curve) -> str:
    said = ", ".join(f"{axis.name} = {spell(value)}" for axis, value in zip(axes, part.values))
    return f"{said}: " if said else ""


def _with_interval(summary: Summary) -> str:
    if summary.n < FEWEST_RUNS:
        return number(summary.mean)
    return f"{number(summary.mean)} ({number(summary.low)} to {number(summary.high)})"
