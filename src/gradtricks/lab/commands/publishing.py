"""What the book shows: quick runs of every experiment, sweeps, and those that are published."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtricks.lab.commands.running import SweepResult, sweep
from gradtricks.lab.notebooks.schema import ParameterError, read_notebook, read_parameters, read_settings
from gradtricks.lab.notebooks.texts import together
from gradtricks.lab.runs.planning import Spec, plan_runs
from gradtricks.lab.runs.provenance import describe_source
from gradtricks.lab.sweeps.files import ENDING
from gradtricks.lab.sweeps.plans import Sweep, read_sweep
from gradtricks.lab.sweeps.publication import keep

if TYPE_CHECKING:
    from rich.console import Console

EXPERIMENTS = Path("experiments")


def plan_book(experiments: Path) -> list[Spec]:
    """List the runs that the book shows: every experiment, once for each of its backends.

    A notebook without a parameter ``backend`` runs once.
    """
    notebooks = sorted(experiments.glob("*.ipynb"))
    if not notebooks:
        raise FileNotFoundError(
            f"expected notebooks in {experiments}; got none; remedy: run in the project's root"
        )
    source = describe_source(experiments)
    planned = together(*(partial(_plan_shown, path, source) for path in notebooks))
    return [run for runs in planned for run in runs]


def _plan_shown(path: Path, source: Mapping[str, Any]) -> list[Spec]:
    """Plan a notebook's runs for the book: quick ones where it has parameters for that."""
    node = read_notebook(path)
    backend = read_parameters(node, str(path)).get("backend")
    given = [{"backend": name} for name in (backend.choices if backend else ())] or [{}]
    quick = read_settings(node, str(path)).quick
    if quick is None:
        return plan_runs(path, given, source=source)
    # A quick run shows that everything works; its times count for nothing, so others may run beside it.
    runs = plan_runs(path, [some | quick for some in given], threads=1, source=source)
    return [replace(run, alone=False) for run in runs]


def plan_sweeps(experiments: Path) -> list[Sweep]:
    """List the sweeps that have a page in the book: every sweep file beside the experiments, but searches."""
    source = describe_source(experiments)
    files = sorted(experiments.glob(f"*{ENDING}"))
    found = together(*(partial(read_sweep, path, source=source) for path in files))
    return [sweep for sweep in found if not sweep.optuna]


def plan_published(files: Sequence[str | Path] = ()) -> list[Sweep]:
    """Plan published sweeps, as `publish` does them."""
    found = together(*(partial(read_sweep, Path(file)) for file in files)) or [
        s for s in plan_sweeps(EXPERIMENTS) if s.published
    ]
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
