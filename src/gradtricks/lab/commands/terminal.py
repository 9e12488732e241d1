"""Where the commands speak: consoles that take values as they are, and errors as exit codes."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gradtricks.lab.storage.troubles import public

if TYPE_CHECKING:
    from gradtricks.lab.commands.overviews import SweepStatus

_WIDE = 10_000  # letters, where it is no terminal: a file or another program wants whole lines
_LOOK_EVERY_S = 1.0


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
    """Name a place without passwords, and as it is seen from the working directory if it lies below that."""
    path = Path(location)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else public(location)


@contextmanager
def explained() -> Iterator[None]:
    """Print what went wrong without a traceback, and exit: 2 for a wrong request, 130 if interrupted."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _complain(message, "yellow")
        try:
            yield
        except (typer.Exit, BrokenPipeError):  # who reads the output may stop, as `head` does
            raise
        except Exception as error:
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
    from gradtricks.lab.runs.many import Interrupted, SchedulerError
    from gradtricks.lab.storage.troubles import StoreError

    codes: tuple[tuple[int, tuple[type[Exception], ...]], ...] = (  # subclasses first
        (2, (FileNotFoundError, ParameterError)),
        (1, (RunError, SchedulerError, StoreError, OSError)),
        (130, (Interrupted,)),
    )
    return next((code for code, kinds in codes if isinstance(error, kinds)), None)


def watch(look: "Callable[[], Sequence[SweepStatus]]", lay_out: Callable[[Any], Any]) -> None:
    """Show how far sweeps are until nothing is left, or somebody has seen enough."""
    try:
        with Live(console=output, auto_refresh=False) as live:
            while True:
                found = look()
                live.update(lay_out(found), refresh=True)
                if not any(status.left or status.running for status in found):
                    return
                sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        return
