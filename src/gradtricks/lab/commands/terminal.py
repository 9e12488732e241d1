"""The terminal: consoles that take values as they are, tables that fit, and errors as exit codes."""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 10_000  # letters, where it is no terminal: a file or another program wants whole lines
_MOST_ROWS = 20  # rows of a long table
_LONGEST = 120  # letters of a value


def make_console(*, stderr: bool = False) -> Console:
    """Make a console that shows texts as they are: a value may well be "[red]" or ":smile:"."""
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else _WIDE
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


output = make_console()


def show(what: Any) -> None:
    """Print a text as it is, however long its lines are, or what Rich knows how to lay out."""
    if isinstance(what, str):
        output.out(what, highlight=False)
    else:
        output.print(what)


def near(location: str) -> str:
    """Name a place as it is seen from the working directory if it lies below that."""
    path = Path(location)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else location


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


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Iterable[int] = (),
    whole: bool = False,
    unbroken: Iterable[int] = (),
) -> Table:
    """Lay out a table, whose cells are shown as `str` writes them; those of columns ``right`` stand there.

    Of a long one the middle is left out, and that is said in its place, unless it is wanted as a ``whole``.
    In ``unbroken`` columns nothing is broken into lines, such as a path that somebody wants to copy.
    """
    aligned, unbroken, rows, half = set(right), set(unbroken), list(rows), _MOST_ROWS // 2
    if (more := len(rows) - _MOST_ROWS) > 0 and not whole:
        rows[half:-half] = [[f"… {more} more"]]
    made = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(header):
        justify: Any = "right" if place in aligned else "left"
        made.add_column(Text(name), justify=justify, overflow="fold", no_wrap=place in unbroken)
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))
    return made


@contextmanager
def requested() -> Iterator[None]:
    """Say that what was asked for is wrong where a function takes its arguments for wrong."""
    from gradtricks.lab.notebooks.texts import ParameterError

    try:
        yield
    except ValueError as error:
        raise ParameterError(str(error)) from error


@contextmanager
def explained() -> Iterator[None]:
    """Print what went wrong without a traceback, and exit: 2 for a wrong request, 130 if interrupted."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _complain(message, "yellow")
        try:
            yield
        except (typer.Exit, BrokenPipeError):  # who reads the output may stop, as `head` does
            raise
        except ModuleNotFoundError as error:
            if str(error.name).startswith("gradtricks"):
                raise
            _complain(
                f"expected {error.name}, which this command needs; got none installed; remedy: install "
                "gradtricks with its extra [lab], and for the book with [book] too",
                "red",
            )
            raise typer.Exit(2) from error
        except Exception as error:  # which of them are expected, _exit_code says
            code = _exit_code(error)
            if code is None:  # nobody expects it, so it deserves its traceback
                raise
            _complain(error, "red")
            raise typer.Exit(code) from error


def _complain(said: object, style: str) -> None:
    make_console(stderr=True).print(Text(str(said), style=style), soft_wrap=True)


def _exit_code(error: Exception) -> int | None:
    # Imported when something went wrong: a command that only reads a notebook does without papermill.
    from gradtricks.lab.notebooks.schema import ParameterError
    from gradtricks.lab.runs.execution import RunError
    from gradtricks.lab.runs.many import Interrupted
    from gradtricks.lab.runs.schedulers import SchedulerError
    from gradtricks.lab.storage.places import StoreError

    codes: dict[int, Any] = {  # subclasses first
        2: (FileNotFoundError, ParameterError),
        1: (RunError, SchedulerError, StoreError, OSError),
        130: Interrupted,
    }
    return next((code for code, kinds in codes.items() if isinstance(error, kinds)), None)
