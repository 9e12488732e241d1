"""The book, from notebooks to pages: what it shows is run where that isn't done, laid out, and built."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from gradtricks.lab.commands.execution import execute, freeze
from gradtricks.lab.commands.options import DEFAULT_STORE
from gradtricks.lab.commands.running import SweepResult, sweep
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.pages.building import plan_book, plan_sweeps, published_sweep, sweep_runs
from gradtricks.lab.pages.building import publish as lay_out
from gradtricks.lab.pages.site import build
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.storage.store import Store
from gradtricks.lab.sweeps.planning import Sweep, read_sweep
from gradtricks.lab.sweeps.publication import keep

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
        BuildError: Sphinx complained, or a published sweep has no records; the old book is untouched.
        Interrupted: By Ctrl-C; the same call goes on later.
    """
    runs, planned_sweeps = plan_book(EXPERIMENTS), plan_sweeps(EXPERIMENTS)
    sweeps = [planned for planned in planned_sweeps if not planned.published]
    published = [published_sweep(planned) for planned in planned_sweeps if planned.published]
    opened = Store(store)
    with _alone(console):
        for planned in sweeps:
            freeze(planned, opened)
        everything = {run.request: run for run in (*runs, *(run for s in sweeps for run in s.runs))}
        outcomes = execute(list(everything.values()), opened, console, workers=workers, retry_failed=True)
        _refuse_failures(outcomes)
        stored = {outcome.run.request: outcome.stored for outcome in outcomes if outcome.stored}
        lay_out(
            {run.name: stored[run.request] for run in runs},
            BOOK / "experiments",
            sweeps=[*((planned, sweep_runs(planned, opened)) for planned in sweeps), *published],
        )
        with console.status("building the pages") if console else nullcontext():
            build(BOOK, BUILD / "html")
    return BUILD / "html"


def print_book() -> Path:
    """Print the chapters of the built book in the working directory into one PDF.

    Returns:
        The file.

    Raises:
        BuildError: The book isn't built, there is no Chromium, or it didn't print.
    """
    from gradtricks.lab.pages.articles import chapters
    from gradtricks.lab.pages.pdf import print_pdf

    target = BUILD / "gradtricks.pdf"
    print_pdf(BUILD / "html", chapters(BOOK), target)
    return target


def pack_book() -> Path:
    """Pack the chapters of the built book in the working directory into one EPUB.

    Returns:
        The file.

    Raises:
        BuildError: The book isn't built.
    """
    from gradtricks.lab.pages.epub import pack_epub

    target = BUILD / "gradtricks.epub"
    pack_epub(BOOK, BUILD / "html", target)
    return target


def plan_published(files: Sequence[str | Path] = ()) -> list[Sweep]:
    """Plan published sweeps. Nothing is started.

    Args:
        files: Of the sweeps; none means all in ``experiments/`` that say ``published: true``.

    Returns:
        The sweeps.

    Raises:
        FileNotFoundError: There is no such file.
        ParameterError: A file is wrong, or doesn't say that its runs are published.
    """
    found = [read_sweep(Path(file)) for file in files] or [s for s in plan_sweeps(EXPERIMENTS) if s.published]
    others = [str(planned.path) for planned in found if not planned.published]
    if others or not found:
        raise ParameterError(
            f"expected files of sweeps with 'published: true'; got {', '.join(others) or 'none'}; "
            "remedy: gradtricks sweep runs the others"
        )
    return found


def publish(
    files: Sequence[str | Path] = (), *, console: "Console | None" = None, **options: Any
) -> Iterator[SweepResult]:
    """Run published sweeps as `sweep` does, and keep their runs with the sources, in ``published/``.

    That is done for each sweep when all its runs have finished; its former runs are replaced.

    Args:
        files: Of the sweeps; none means all in ``experiments/`` that say ``published: true``.
        console: Where to show how it goes; None shows nothing.
        **options: Of `sweep`.

    Yields:
        What came of each.

    Raises:
        FileNotFoundError: There is no such file.
        ParameterError: A file is wrong, or doesn't say that its runs are published.
        StoreError: The runs can't be kept.
        Interrupted: By Ctrl-C; the same call goes on later.
    """
    for planned in plan_published(files):
        found = sweep(planned, console=console, **options)
        kept = None if found.failed else keep(planned, found.finished).location
        yield replace(found, published=kept)


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
