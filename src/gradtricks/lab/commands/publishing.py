"""Published sweeps: runs that take hours, done on request and kept with the sources."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtricks.lab.commands.running import SweepResult, sweep
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.runs.provenance import describe_source
from gradtricks.lab.sweeps.files import ENDING
from gradtricks.lab.sweeps.plans import Sweep, read_sweep
from gradtricks.lab.sweeps.publication import keep

if TYPE_CHECKING:
    from rich.console import Console

EXPERIMENTS = Path("experiments")


def plan_sweeps(experiments: Path) -> list[Sweep]:
    """List the sweeps that have a page in the book: every sweep file beside the experiments.

    Args:
        experiments: Folder of the source notebooks.

    Returns:
        The sweeps, by name. Searches have no page.

    Raises:
        ParameterError: A file is wrong.
    """
    source = describe_source(experiments)
    found = [read_sweep(path, source=source) for path in sorted(experiments.glob(f"*{ENDING}"))]
    return [sweep for sweep in found if not sweep.optuna]


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
        kept = None if found.failed else str(keep(planned, found.finished))
        yield replace(found, published=kept)
