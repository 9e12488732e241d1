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
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDE
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


output = make_console()


def near(location: str) -> str:
    """Name a place without passwords, and as it is seen from the working directory if it lies below that."""
    path = Path(location)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else public(location)


def say(text: str) -> None:
    """Print a line, however long."""
    output.print(Text(text), soft_wrap=True)


@contextmanager
def explained() -> Iterator[None]:
    """Print what went wrong without a traceback, and exit: 2 for a wrong request, 130 if interrupted."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            yield
        except (typer.Exit, BrokenPipeError):  # who reads the output may stop, as `head` does
            raise
        except Exception as error:  # sorted by _exit_code, and raised again where nobody expects it
            code = _exit_code(error)
            if code is None:
                raise
            make_console(stderr=True).print(Text(str(error), style="red"), soft_wrap=True)
            raise typer.Exit(code) from error


def _exit_code(error: Exception) -> int | None:
    """Return None for what nobody expects, which deserves its traceback."""
    # Imported when something went wrong: a command that only reads a notebook does without papermill.
    from gradtricks.lab.notebooks.schema import ParameterError
    from gradtricks.lab.runs.execution import RunError
    from gradtricks.lab.runs.many import Interrupted, SchedulerError
    from gradtricks.lab.storage.store import StoreError

    codes: tuple[tuple[int, tuple[type[Exception], ...]], ...] = (  # subclasses first
        (2, (FileNotFoundError, ParameterError)),
        (1, (RunError, SchedulerError, StoreError, OSError)),
        (130, (Interrupted,)),
    )
    return next((code for code, kinds in codes if isinstance(error, kinds)), None)


def watch(look: "Callable[[], Sequence[SweepStatus]]", show: Callable[[Any], Any]) -> None:
    """Show how far sweeps are until nothing is left, or somebody has seen enough."""
    try:
        with Live(console=output, auto_refresh=False) as live:
            while True:
                found = look()
                live.update(show(found), refresh=True)
                if not any(status.left or status.running for status in found):
                    return
                sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        return


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    make_console(stderr=True).print(Text(f"{message}", style="yellow"), soft_wrap=True)
