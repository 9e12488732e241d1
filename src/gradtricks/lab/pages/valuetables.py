"""Tables on a sweep's page: what each configuration came to, in Markdown."""

from collections.abc import Callable, Sequence
from typing import Any

from gradtricks.lab.results.curves import Curve
from gradtricks.lab.results.grouping import Group, text_of
from gradtricks.lab.results.markup import code, escape
from gradtricks.lab.results.plots import PlotResult
from gradtricks.lab.results.quoting import format_result

MOST_ROWS = 100

_SPACE = "\N{NO-BREAK SPACE}"
_SUPERSCRIPTS = str.maketrans("0123456789−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def values_table(plot: PlotResult) -> str:
    """Write what a figure shows as a table: a line for each configuration.

    Args:
        plot: The figure.

    Returns:
        Markdown; the first hundred lines where there are more.
    """
    curves = [part for part in plot.parts if isinstance(part, Curve)]
    groups = [part for part in plot.parts if isinstance(part, Group)]
    axes = plot.axes[: len(plot.parts[0].values)]
    columns = {
        escape(axis.name): [value_text(part.values[place]) for part in plot.parts]
        for place, axis in enumerate(axes)
    }
    columns |= _of_curves(curves) if curves else _of_numbers(groups)
    table = markdown_table([list(columns), *zip(*columns.values())][: MOST_ROWS + 1])
    left_out = len(plot.parts) - MOST_ROWS
    return f"{table}\n\nAnd {left_out} more, which the downloads hold." if left_out > 0 else table


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Write a table.

    Args:
        rows: Markdown of the cells; the first row is the head.

    Returns:
        Markdown.
    """
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def value_text(value: Any) -> str:
    """Write a parameter's value.

    Args:
        value: Any.

    Returns:
        Markdown: numbers as they are, anything else as code.
    """
    text = text_of(value)
    return escape(text) if value is None or isinstance(value, bool | int | float) else code(text)


def _of_numbers(groups: Sequence[Group]) -> dict[str, list[str]]:
    found = [group.summary for group in groups]
    intervals = [_interval(s.low, s.high) for s in found]
    columns = {
        "interquartile mean": [number_text(s.mean) for s in found],
        **({"95 % interval": intervals} if any(intervals) else {}),
        "lowest": [number_text(s.lowest) for s in found],
        "highest": [number_text(s.highest) for s in found],
        "runs": [str(s.n) for s in found],
    }
    lost: dict[str, Callable[[Group], int]] = {
        "failed": lambda group: group.failed,
        "without it": lambda group: group.missing,
        "not finite": lambda group: group.summary.non_finite,
    }
    return columns | {
        name: [str(count(group)) for group in groups]
        for name, count in lost.items()
        if any(map(count, groups))
    }


def _of_curves(curves: Sequence[Any]) -> dict[str, list[str]]:
    intervals = [_interval(curve.low[-1], curve.high[-1]) if curve.n else "" for curve in curves]
    columns = {
        "length": [str(len(curve.mean)) for curve in curves],
        "mean at its start": [number_text(curve.mean[0]) if curve.n else "" for curve in curves],
        "mean at its end": [number_text(curve.mean[-1]) if curve.n else "" for curve in curves],
        **({"95 % interval there": intervals} if any(intervals) else {}),
        "runs": [str(curve.n) for curve in curves],
    }
    apart = {
        "cut to this length": [curve.cut for curve in curves],
        "left out": [curve.lost for curve in curves],
    }
    return columns | {name: [*map(str, counts)] for name, counts in apart.items() if any(counts)}


def number_text(value: float) -> str:
    """Write a number with three digits.

    Args:
        value: Any number.

    Returns:
        Such as ``0.123`` or ``1.23 × 10⁻⁵``; nothing for NaN.
    """
    if value != value:
        return ""
    text, exponent = format_result(float(value), ".3g")
    return text + (exponent or "").translate(_SUPERSCRIPTS)


def _interval(low: float, high: float) -> str:
    return f"{number_text(low)}{_SPACE}to{_SPACE}{number_text(high)}" if low == low else ""
