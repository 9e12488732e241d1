"""A run of the book: every notebook once with each framework, then the pages; no run is done twice."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from gradtricks.book.pdf import chapters, print_pdf
from gradtricks.book.site import build
from gradtricks.book.sources import lay_out
from gradtricks.lab.commands.publishing import EXPERIMENTS, plan_book, plan_sweeps
from gradtricks.lab.notebooks.texts import duration, together
from gradtricks.lab.results.tables import runs_of
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.planning import Spec
from gradtricks.lab.runs.progress import estimate_s, execute_shown
from gradtricks.lab.storage import DEFAULT_STORE
from gradtricks.lab.storage.store import Store
from gradtricks.lab.sweeps.publication import as_published
from gradtricks.lab.sweeps.sweep import freeze
from gradtricks.lab.sweeps.witness import judge

__all__ = ["build_book", "print_book"]

BUILD, BOOK = Path("_build"), Path("book")


def build_book(
    *, workers: int | None = None, store: str | Path = DEFAULT_STORE, console: Console | None = None
) -> Path:
    """Run what the book shows and what isn't finished yet, then build the book in the working directory.

    It returns the folder of the pages. Where a run failed, the book is built, says so in its place, and a
    RunError is raised in the end. Where Sphinx complained or a published sweep has no records, it raises
    RunError or StoreError, and the old book is untouched; after Ctrl-C the same call goes on.
    """
    console = console or Console(quiet=True)
    specs, planned = together(partial(plan_book, EXPERIMENTS), partial(plan_sweeps, EXPERIMENTS))
    published = [as_published(sweep) for sweep in planned if sweep.published]
    sweeps = [sweep for sweep in planned if not sweep.published]
    opened = Store(store)
    with _alone(console):
        for sweep in sweeps:
            freeze(sweep, opened)
        wanted = (*specs, *(spec for sweep in sweeps for spec in sweep.specs))
        distinct = [*{spec.request: spec for spec in wanted}.values()]
        _announce(distinct, opened, console, workers)
        runs = execute_shown(distinct, opened, console, workers=workers, retry_failed=True)
        outcomes = {run.spec.request: run for run in runs}
        shown = [outcomes[spec.request] for spec in specs]
        done = [(run.spec.notebook, run.stored) for run in shown if run.stored]
        judged = [
            (replace(s, standing=judge(s.witnesses, (run for at, run in done if at == s.notebook))), found)
            for s, found in published
        ]
        lay_out(
            {run.spec.name: run.stored for run in shown if run.stored},
            BOOK / "experiments",
            sources={run.spec.name: run.spec.source for run in shown},
            failed=[run for run in shown if run.error],
            sweeps=[*((sweep, runs_of(opened, sweep.specs)) for sweep in sweeps), *judged],
        )
        console.print("Building the pages, which takes about half a minute.")
        build(BOOK, BUILD / "html")
    if failed := [f"{run.spec.title}\n{run.error}" for run in runs if run.error]:
        raise RunError(
            "\n".join(["The book is built, without what these runs would show. They failed:", *failed])
        )
    return BUILD / "html"


def print_book() -> Path:
    """Print the chapters of the built book in the working directory into one PDF, and return its path."""
    target = BUILD / "gradtricks.pdf"
    print_pdf(BUILD / "html", chapters(BOOK), target)
    return target


def _announce(specs: Sequence[Spec], store: Store, console: Console, workers: int | None) -> None:
    """Say before the first run ends what is to come."""
    finished = store.find_all(specs)
    missing = [spec for spec in specs if spec.request not in finished]
    if not missing:
        return
    left = estimate_s(missing, store, workers)
    about = f", about {duration(left)}" if left is not None else ""
    several = "" if len(missing) == 1 else "s"
    console.print(f"{len(missing)} run{several} to do{about}; then the pages.")


@contextmanager
def _alone(console: Console) -> Iterator[None]:
    """Let one build at a time into the folder; a second one waits, and then finds everything done."""
    BUILD.mkdir(exist_ok=True)
    lock = FileLock(BUILD / ".lock")
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        console.print("Another build is going on here; waiting for it.")
        held = lock.acquire()
    with held:
        yield
