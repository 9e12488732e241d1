"""Tables on a sweep's page: what each configuration came to, in Markdown."""

from collections.abc import Sequence
from typing import Any

from gradtricks.book.numbers import number_text
from gradtricks.lab.results.curves import Curve
from gradtricks.lab.results.grouping import Group, text_of
from gradtricks.lab.results.markup import code, escape
from gradtricks.lab.results.plots import PlotResult

MOST_ROWS = 100

_SPACE = "\N{NO-BREAK SPACE}"


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
    return {
        "interquartile mean": [number_text(s.mean) for s in found],
        **({"95 % interval": intervals} if any(intervals) else {}),
        "lowest": [number_text(s.lowest) for s in found],
        "highest": [number_text(s.highest) for s in found],
        "runs": [str(s.n) for s in found],
        **_counted("failed", [group.failed for group in groups]),
        **_counted("without it", [group.missing for group in groups]),
        **_counted("not finite", [s.non_finite for s in found]),
    }


def _of_curves(curves: Sequence[Curve]) -> dict[str, list[str]]:
    intervals = [_interval(curve.low[-1], curve.high[-1]) if curve.n else "" for curve in curves]
    return {
        "length": [str(len(curve.mean)) for curve in curves],
        "mean at its start": [number_text(curve.mean[0]) if curve.n else "" for curve in curves],
        "mean at its end": [number_text(curve.mean[-1]) if curve.n else "" for curve in curves],
        **({"95 % interval there": intervals} if any(intervals) else {}),
        "runs": [str(curve.n) for curve in curves],
        **_counted("cut to this length", [curve.cut for curve in curves]),
        **_counted("left out", [curve.lost for curve in curves]),
    }


def _counted(name: str, counts: Sequence[int]) -> dict[str, list[str]]:
    """Make a column of what mostly doesn't happen; none where it never does."""
    return {name: [*map(str, counts)]} if any(counts) else {}


def _interval(low: float, high: float) -> str:
    return f"{number_text(low)}{_SPACE}to{_SPACE}{number_text(high)}" if low == low else ""
