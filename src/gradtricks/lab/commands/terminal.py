"""The terminal: consoles that take values as they are, tables that fit, and errors as exit codes."""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 10_000  # letters, where it is no terminal: a file or another program wants whole lines
_MOST_ROWS = 20  # rows of a long table
_LONGEST = 120  # letters of a value
_EXIT_CODES = {"FileNotFoundError": 2, "ParameterError": 2, "Interrupted": 130}
_EXIT_CODES |= dict.fromkeys(("OSError", "RunError", "SchedulerError", "StoreError"), 1)


def make_console(*, stderr: bool = False) -> Console:
    """Make a console that shows texts as they are: a value may well be "[red]" or ":smile:"."""
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else _WIDE
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


output = make_console()


def show(what: Any) -> None:
    """Print a text as it is, however long its lines are, or a renderable of Rich."""
    if isinstance(what, str):
        output.out(what, highlight=False)
    else:
        output.print(what)


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
    In ``unbroken`` columns nothing is broken into lines, such as a path to be copied.
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
    """Turn a function's ValueError into a ParameterError: the request was wrong."""
    from gradtricks.lab.notebooks.texts import ParameterError

    try:
        yield
    except ValueError as error:
        raise ParameterError(str(error)) from error


@contextmanager
def explained() -> Iterator[None]:
    """Print an error without a traceback, and exit: 2 wrong request, 1 failure, 130 interrupted."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _complain(message, "yellow")
        try:
            yield
        except (typer.Exit, BrokenPipeError):  # who reads the output may stop, as `head` does
            raise
        except ModuleNotFoundError as error:
            package = str(error.name).partition(".")[0]
            if package == "gradtricks":
                raise
            _complain(
                f"expected {package}, which this command needs; got none installed; remedy: install "
                "gradtricks with its extra [lab], and for the book with [book] too",
                "red",
            )
            raise typer.Exit(2) from error
        except Exception as error:  # which of them are expected, _exit_code says
            code = _exit_code(error)
            if code is None:  # unexpected, so it deserves its traceback
                raise
            _complain(error, "red")
            raise typer.Exit(code) from error


def _complain(said: object, style: str) -> None:
    make_console(stderr=True).print(Text(str(said), style=style), soft_wrap=True)


def _exit_code(error: Exception) -> int | None:
    # By names: imports take time, and fail where the packages of other commands are missing.
    ours = (
        kind.__name__
        for kind in type(error).__mro__
        if kind.__module__.startswith(("builtins", "gradtricks."))
    )
    return next((_EXIT_CODES[name] for name in ours if name in _EXIT_CODES), None)
