"""The book, from notebooks to pages: what it shows is run where that isn't done, laid out, and built."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from gradtricks.lab.commands.execution import execute, freeze
from gradtricks.lab.commands.options import DEFAULT_STORE
from gradtricks.lab.pages.building import build, plan_book, plan_sweeps, publish, sweep_runs
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.storage.store import Store

if TYPE_CHECKING:
    from rich.console import Console

    from gradtricks.lab.engine.executing import Outcome

BUILD, BOOK, EXPERIMENTS = Path("_build"), Path("book"), Path("experiments")


def build_book(
    *, workers: int | None = None, store: str | Path = DEFAULT_STORE, console: "Console | None" = None
) -> Path:
    """Run what the book shows and what isn't finished yet, then build the book in the working directory.

    Args:
        workers: Runs at once; None means as many as the cores have room for.
        store: Of the runs.
        console: Where to show how it goes; None shows nothing.

    Returns:
        Folder of the finished pages.

    Raises:
        FileNotFoundError: The working directory has no experiments.
        RunError: A run failed; the old book is untouched.
        BuildError: Sphinx complained; the old book is untouched.
        Interrupted: By Ctrl-C; the same call goes on later.
    """
    runs, sweeps = plan_book(EXPERIMENTS), plan_sweeps(EXPERIMENTS)
    opened = Store(store)
    with _alone(console):
        for planned in sweeps:
            freeze(planned, opened)
        everything = {run.request: run for run in (*runs, *(run for s in sweeps for run in s.runs))}
        outcomes = execute(list(everything.values()), opened, console, workers=workers, retry_failed=True)
        _refuse_failures(outcomes)
        stored = {outcome.run.request: outcome.stored for outcome in outcomes if outcome.stored}
        publish(
            {run.name: stored[run.request] for run in runs},
            BOOK / "experiments",
            sweeps=[(planned, sweep_runs(planned, opened)) for planned in sweeps],
        )
        with console.status("building the pages") if console else nullcontext():
            build(BOOK, BUILD / "html")
    return BUILD / "html"


def _refuse_failures(outcomes: "Sequence[Outcome]") -> None:
    failed = [f"{outcome.run.title}\n{outcome.error}" for outcome in outcomes if outcome.error]
    if failed:
        raise RunError("\n".join(["The book wasn't built, because of runs that failed:", *failed]))


@contextmanager
def _alone(console: "Console | None") -> Iterator[None]:
    """Let one build at a time into the folder; a second one waits, and then finds everything done."""
    BUILD.mkdir(exist_ok=True)
    lock = FileLock(BUILD / ".lock")
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        if console is not None:
            console.print("Another build is going on here; waiting for it.")
        held = lock.acquire()
    with held:
        yield
