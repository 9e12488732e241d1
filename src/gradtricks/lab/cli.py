"""The commands ``gradtricks run`` and ``gradtricks book``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

# The commands import what they need when they are called: --help needs neither papermill nor Sphinx.
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console(soft_wrap=True)

BUILD = Path("_build")
BOOK = Path("book")
EXPERIMENTS = Path("experiments")


@app.callback()
def main() -> None:
    """Run the experiments of gradtricks, and build the book that shows them."""


@app.command()
def run(
    notebook: Annotated[Path, typer.Argument(help="Source notebook, such as experiments/masking.ipynb.")],
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", help="name=value; may be given several times.")
    ] = None,
) -> None:
    """Run a notebook, unless the same run is finished already, and say where its record is."""
    from gradtricks.lab.progress import execute_all
    from gradtricks.lab.runs import plan_run
    from gradtricks.lab.schema import parse_values
    from gradtricks.lab.store import Store

    with _explained():
        planned = plan_run(notebook, parse_values(notebook, parameter or []))
        folder = execute_all([planned], Store(BUILD / "runs"), BUILD / "failed", console)[planned.name]
    console.print(f"Finished: {folder}", highlight=False)


@app.command()
def book() -> None:
    """Run what has not been run with the same inputs before, then build the book."""
    from gradtricks.lab.pages import build, plan_book, publish
    from gradtricks.lab.progress import execute_all
    from gradtricks.lab.store import Store

    with _explained():
        runs = plan_book(EXPERIMENTS)
        with _alone():
            folders = execute_all(runs, Store(BUILD / "runs"), BUILD / "failed", console)
            publish(folders, BOOK / "experiments")
            with console.status("building the pages"):
                build(BOOK, BUILD / "html")
    console.print(
        f"The book is built: open {(BUILD / 'html' / 'index.html').resolve().as_uri()}", highlight=False
    )


@contextmanager
def _explained() -> Iterator[None]:
    """Print what went wrong without a traceback: 2 for a wrong request, 1 for a failure."""
    from gradtricks.lab.pages import BuildError
    from gradtricks.lab.runs import RunError
    from gradtricks.lab.schema import ParameterError

    try:
        yield
    except (RunError, BuildError) as error:
        Console(stderr=True, soft_wrap=True).print(str(error), markup=False, highlight=False, style="red")
        raise typer.Exit(1) from error
    except (ParameterError, FileNotFoundError) as error:
        Console(stderr=True, soft_wrap=True).print(str(error), markup=False, highlight=False, style="red")
        raise typer.Exit(2) from error


@contextmanager
def _alone() -> Iterator[None]:
    """Let one build at a time into the folder; a second one waits, and then finds everything done."""
    from filelock import FileLock, Timeout

    BUILD.mkdir(exist_ok=True)
    lock = FileLock(BUILD / ".lock")
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        console.print("Another build is going on here; waiting for it.")
        held = lock.acquire()
    with held:
        yield


if __name__ == "__main__":
    app()
