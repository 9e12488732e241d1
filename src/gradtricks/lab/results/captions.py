"""Results in words: as columns of a table, as a figure's caption, and for those who can't see it."""

from collections.abc import Callable, Iterable, Sequence

from gradtricks.lab.results.grouping import Axis, Group, ResultSummary
from gradtricks.lab.results.statistics import CONFIDENCE, FEWEST_CUT, FEWEST_RUNS

MINUS = "\N{MINUS SIGN}"
_SPACE = "\N{NO-BREAK SPACE}"
_LISTED = 7  # configurations that are named one by one


def number(value: float, digits: str = ".3g") -> str:
    """Write a number, with three digits unless told, such as ``0.123`` or ``1.23e−05``."""
    return f"{value:{digits}}".replace("e+0", "e").replace("e+", "e").replace("-", MINUS)


def listed(texts: Sequence[str]) -> str:
    """Write texts one after another, such as ``a, b and c``."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def counted(parts: Iterable[Group]) -> str:
    """Write how many runs are behind each mean, such as ``n = 8 to 10 each``."""
    low, *more = sorted({part.n for part in parts})
    return f"n = {low}{f' to {more[-1]}' if more else ''} each"


def mean_said(parts: Iterable[Group]) -> str:
    """Name the mean that is taken: of two or three runs, the interquartile mean is the mean."""
    return "interquartile mean" if any(part.n >= FEWEST_CUT for part in parts) else "mean"


def summary_columns(result: ResultSummary, number: Callable[[float], str]) -> dict[str, list[str]]:
    """Write the table of one result, with ``number``, which writes nothing for NaN.

    It returns cells by the name of their column; there is none for intervals that no configuration has, nor
    for what never happened. The parameters come beside it, from `ResultSummary.axes` and its parts.
    """
    parts = result.parts
    intervals = [_interval(part, number) for part in parts]
    if result.curves:
        columns = {
            "length": [str(part.data.shape[-1]) for part in parts],
            "at its start": [number(part.mean[0]) if part.n else "" for part in parts],
            "at its end": [number(part.mean[-1]) if part.n else "" for part in parts],
            "95% interval there": intervals,
        }
    elif all(part.n <= 1 for part in parts):
        columns = {"value": [number(part.mean) for part in parts]}
    else:
        columns = {
            mean_said(parts): [number(part.mean) for part in parts],
            "95% interval": intervals,
            "lowest": [number(part.extremes[0]) for part in parts],
            "highest": [number(part.extremes[1]) for part in parts],
        }
    if "value" not in columns:
        columns["runs"] = [str(part.n) for part in parts]
    counts = {
        "failed": [part.failed for part in parts],
        "without it": [part.missing for part in parts],
        "not finite": [part.non_finite for part in parts],
        "cut to this length": [part.cut for part in parts],
    }
    columns = {name: cells for name, cells in columns.items() if "interval" not in name or any(cells)}
    return columns | {name: [*map(str, some)] for name, some in counts.items() if any(some)}


def _interval(part: Group, number: Callable[[float], str]) -> str:
    """Write an interval, of lists that at their end; nothing with too few runs for one."""
    if part.n < FEWEST_RUNS:
        return ""
    low, high = (end[-1] if part.data.ndim > 1 else end for end in part.interval)
    return f"{number(low)}{_SPACE}to{_SPACE}{number(high)}"


def caption_of(result: ResultSummary) -> str:
    """Say how to read the figure of one result, and how many runs are behind it."""
    parts = result.parts
    several, enough = any(part.n > 1 for part in parts), [part.n >= FEWEST_RUNS for part in parts]
    means = f"{mean_said(parts)}s ({counted(parts)})" if several else "single runs"
    mark = "bands" if result.curves else "bars"
    intervals = f", {mark} their {CONFIDENCE:.0%} bootstrap intervals"
    intervals += "" if all(enough) else f" where there are {FEWEST_RUNS} runs"
    if not any(enough):
        intervals = f" without intervals, which take {FEWEST_RUNS} runs"
    if result.curves:
        said = f"Lines are {means}"
    else:
        said = f"Dots are runs, diamonds {means}" if several else "Dots are runs"
    said += f"{intervals if several else ''}."
    if cut := sum(part.cut for part in parts):
        said += f" Each line ends with the shortest of its runs: {cut} went on for longer."
    happened = {
        "failed": sum(part.failed for part in parts),
        "recorded nothing here": sum(part.missing for part in parts),
        "gave a number that isn't finite": sum(part.non_finite for part in parts),
    }
    lost = ", ".join(f"{count} {name}" for name, count in happened.items() if count)
    return f"{said} Not part of it: {lost}." if lost else said


def alt_of(result: ResultSummary) -> str:
    """Say what a figure shows, for those who can't see it."""
    parts = [part for part in result.parts if part.n]
    against = f" against {listed([axis.name for axis in result.axes])}" if result.axes else ""
    if not parts:
        return f"{result.title}{against}: no run gave it."
    shown = parts if len(parts) <= _LISTED else parts[:: len(parts) - 1]
    if len(parts) > _LISTED and not result.curves:
        shown = [min(parts, key=lambda part: part.mean), max(parts, key=lambda part: part.mean)]
    said = [_where(result.axes, part) + _value(part) for part in shown]
    begin = f"{result.title}{' by position' if result.curves else ''}{against}, {counted(parts)}. "
    means = f"{mean_said(parts).capitalize()}s"
    if result.curves:
        return f"{begin}Means go {'; '.join(said)}."
    if shown is parts:
        return f"{begin}{means}: {'; '.join(said)}."
    return f"{begin}{means}, lowest: {said[0]}; highest: {said[1]}."


def _value(part: Group) -> str:
    if part.data.ndim > 1:
        return f"from {number(part.mean[0])} to {number(part.mean[-1])}"
    interval = _interval(part, number)
    return number(part.mean) + (f" ({interval})" if interval else "")


def _where(axes: Sequence[Axis], part: Group) -> str:
    said = ", ".join(f"{axis.name} = {axis.spell(value)}" for axis, value in zip(axes, part.values))
    return f"{said}: " if said else ""
