"""What was found, in words: as cells of a table, as a figure's caption, and for those who can't see it."""

from collections.abc import Callable, Iterable, Sequence

from gradtricks.lab.results.grouping import Axis, Curve, Found, Group
from gradtricks.lab.results.statistics import CONFIDENCE, FEWEST_CUT, FEWEST_RUNS, Summary

MINUS = "\N{MINUS SIGN}"
_SPACE = "\N{NO-BREAK SPACE}"
_LISTED = 7  # configurations that are named one by one


def number(value: float, digits: str = ".3g") -> str:
    """Write a number, with three digits unless told, such as ``0.123`` or ``1.23e−05``."""
    return f"{value:{digits}}".replace("e+0", "e").replace("e+", "e").replace("-", MINUS)


def counted(parts: Iterable[Group | Curve]) -> str:
    """Write how many runs are behind each mean, such as ``n = 8 to 10 each``."""
    low, *more = sorted({part.n for part in parts})
    return f"n = {low}{f' to {more[-1]}' if more else ''} each"


def summary_columns(found: Found, number: Callable[[float], str]) -> dict[str, list[str]]:
    """Write what was found under one name, with ``number``, which writes nothing for NaN.

    It returns cells by the name of their column; there is none for intervals that no configuration has, nor
    for what never happened. The parameters come beside it, from `Found.axes` and its parts.
    """
    curves = [part for part in found.parts if isinstance(part, Curve)]
    groups = [part for part in found.parts if isinstance(part, Group)]
    summaries = [group.summary for group in groups]
    if curves:
        of_all = {
            "length": [str(len(curve.mean)) for curve in curves],
            "at its start": [number(curve.mean[0]) if curve.n else "" for curve in curves],
            "at its end": [number(curve.mean[-1]) if curve.n else "" for curve in curves],
            "95% interval there": [_interval(c.low[-1], c.high[-1], number) if c.n else "" for c in curves],
            "runs": [str(curve.n) for curve in curves],
        }
        counts = {
            "cut to this length": [curve.cut for curve in curves],
            "left out": [curve.lost for curve in curves],
        }
    else:
        of_all = {
            mean_said(groups): [number(s.mean) for s in summaries],
            "95% interval": [_interval(s.low, s.high, number) for s in summaries],
            "lowest": [number(s.lowest) for s in summaries],
            "highest": [number(s.highest) for s in summaries],
            "runs": [str(s.n) for s in summaries],
        }
        counts = {
            "failed": [group.failed for group in groups],
            "without it": [group.missing for group in groups],
            "not finite": [s.non_finite for s in summaries],
        }
        if all(s.n <= 1 for s in summaries):
            of_all = {"value": of_all[mean_said(groups)]}
    columns = {name: cells for name, cells in of_all.items() if "interval" not in name or any(cells)}
    return columns | {name: [*map(str, some)] for name, some in counts.items() if any(some)}


def _interval(low: float, high: float, number: Callable[[float], str]) -> str:
    return f"{number(low)}{_SPACE}to{_SPACE}{number(high)}" if low == low else ""


def interval_said(parts: Iterable[Group | Curve], said: str) -> str:
    """Speak of intervals, ``{}`` in a text, or say why some or all are missing."""
    enough = [part.n >= FEWEST_RUNS for part in parts]
    if not any(enough):
        return f" without intervals, which take {FEWEST_RUNS} runs"
    some = "" if all(enough) else f" where there are {FEWEST_RUNS} runs"
    return said.format(f"{CONFIDENCE:.0%} bootstrap interval") + some


def mean_said(parts: Iterable[Group | Curve]) -> str:
    """Name the mean that is taken: of two or three runs, the interquartile mean is the mean."""
    return "interquartile mean" if any(part.n >= FEWEST_CUT for part in parts) else "mean"


def means(parts: Sequence[Group | Curve]) -> str:
    """Say what is shown: single runs, or means of several."""
    return f"{mean_said(parts)}s ({counted(parts)})" if any(p.n > 1 for p in parts) else "single runs"


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
    groups = [part for part in found.parts if isinstance(part, Group) and part.n]
    axes = found.axes
    *names, last = [axis.name for axis in axes] or [""]
    against = f" against {', '.join(names)}{' and ' if names else ''}{last}" if axes else ""
    if curves:
        ends = curves[:: len(curves) - 1] if len(curves) > _LISTED else curves
        listed = [_where(axes, c) + f"from {number(c.mean[0])} to {number(c.mean[-1])}" for c in ends]
        return f"{found.title} by position{against}, {counted(curves)}. Means go {'; '.join(listed)}."
    if not groups:
        return f"{found.title}{against}: no run gave it."
    begin = f"{found.title}{against}, {counted(groups)}. {mean_said(groups).capitalize()}s"
    few = len(groups) <= _LISTED
    ordered = groups if few else sorted(groups, key=lambda group: group.summary.mean)
    listed = [_where(axes, group) + _with_interval(group.summary) for group in ordered]
    if few:
        return f"{begin}: {'; '.join(listed)}."
    return f"{begin}, lowest: {listed[0]}; highest: {listed[-1]}."


def _where(axes: Sequence[Axis], part: Group | Curve) -> str:
    said = ", ".join(f"{axis.name} = {axis.spell(value)}" for axis, value in zip(axes, part.values))
    return f"{said}: " if said else ""


def _with_interval(summary: Summary) -> str:
    interval = _interval(summary.low, summary.high, number)
    return number(summary.mean) + (f" ({interval})" if interval else "")
