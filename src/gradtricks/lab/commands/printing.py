"""What all that is printed is made of: durations, values in a line, and tables that fit a terminal."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from gradtricks.lab.results.columns import values_of
from gradtricks.lab.results.markup import one_line

if TYPE_CHECKING:
    import pandas

_SHOWN = 20  # rows of a long table
_LONGEST = 120  # letters of a value


def duration(seconds: float | None) -> str:
    """Say how long something takes, in seconds, minutes or hours."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def short(value: Any) -> str:
    """Show a value in a line: numbers with four digits, and nothing for nothing."""
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> Table:
    """Make a table for Rich, whose cells are shown as they are; those of columns ``right`` stand there."""
    aligned = set(right)
    made = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(header):
        made.add_column(Text(name), justify="right" if place in aligned else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def thinned(rows: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    """Leave out the middle of a long table, and say so in its place."""
    half = _SHOWN // 2
    more = len(rows) - 2 * half
    return [*rows[:half], [f"… {more} more"], *rows[-half:]] if more > 0 else rows


def whole_table(frame: "pandas.DataFrame") -> str:
    """Show every column and every row, a line each however long; quick where there are thousands."""
    named = [(str(name), values_of(column)) for name, column in frame.items()]
    columns = [[name, *(one_line(short(value)) for value in values)] for name, values in named]
    widths = [max(map(len, column)) for column in columns]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in zip(*columns))
    return "\n".join(line.rstrip() for line in lines)
