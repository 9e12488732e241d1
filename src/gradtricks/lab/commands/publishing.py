"""Runs that are shown: those of the book, published sweeps, and one recorded run; published, or run again."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from gradtricks.lab.commands.terminal import short, table
from gradtricks.lab.notebooks.schema import ParameterError, read_settings
from gradtricks.lab.notebooks.texts import together
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.kernels import Kernels
from gradtricks.lab.runs.planning import Spec, parse_notebook, plan_runs
from gradtricks.lab.runs.progress import execute_shown
from gradtricks.lab.runs.provenance import describe_source, find_gpus
from gradtricks.lab.runs.reproduction import Difference, Verdict
from gradtricks.lab.runs.reproduction import reproduce as repeat
from gradtricks.lab.storage import DEFAULT_STORE
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.storage.store import store_of_runs
from gradtricks.lab.sweeps.files import ENDING
from gradtricks.lab.sweeps.outcomes import SweepResult, sweep
from gradtricks.lab.sweeps.publication import keep, still_given
from gradtricks.lab.sweeps.reading import find_run, opened
from gradtricks.lab.sweeps.sweep import Sweep, read_sweep

EXPERIMENTS = Path("experiments")
_LISTED = 10  # missing runs


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
    planned = together(*(partial(_plan_notebook, path, source) for path in notebooks))
    return [run for runs in planned for run in runs]


def _plan_notebook(path: Path, source: Mapping[str, Any]) -> list[Spec]:
    """Plan a notebook's runs for the book: quick ones where it has parameters for that."""
    parsed = parse_notebook(path)
    backend = parsed.parameters.get("backend")
    given = [{"backend": name} for name in (backend.choices if backend else ())] or [{}]
    quick = read_settings(parsed.node, str(path)).quick
    if quick is None:
        return plan_runs(parsed, given, source=source)
    # A quick run shows that everything works; its times count for nothing, so others may run beside it.
    runs = plan_runs(parsed, [some | quick for some in given], threads=1, source=source)
    return [replace(run, alone=False) for run in runs]


def plan_sweeps(experiments: Path) -> list[Sweep]:
    """List the sweeps that have a page in the book: every sweep file beside the experiments."""
    source = describe_source(experiments)
    files = sorted(experiments.glob(f"*{ENDING}"))
    return together(*(partial(read_sweep, path, source=source) for path in files))


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
    files: Sequence[str | Path] = (), *, missing: bool = False, **options: Any
) -> Iterator[SweepResult]:
    """Run published sweeps as `sweep` does, and keep their runs with the sources, in ``published/``.

    That is done for each sweep when all its runs have finished; its former runs are replaced. Before them the
    notebook's quick runs are done, as the book does them, by which later code is judged. Sweeps that
    need a GPU are left out where there is none.

    Args:
        files: Of the sweeps; none means all in ``experiments/`` that say ``published: true``.
        missing: Do only those runs that aren't published yet, and keep the others, if the quick runs give the
            same numbers as when they were published, or another processor explains others; otherwise all.
        **options: Of `sweep`.

    Yields:
        The outcome of each.

    Raises:
        ParameterError: A file is wrong, or doesn't say that its runs are published.
        RunError: A quick run failed, and nothing else was begun.
        StoreError: The runs can't be kept.
    """
    planned_sweeps, gpus = plan_published(files), find_gpus()
    possible = [planned for planned in planned_sweeps if gpus or not planned.gpu]
    notebooks = dict.fromkeys(planned.notebook for planned in possible)
    quick = {notebook: _quick_runs(notebook, **options) for notebook in notebooks}
    for planned in planned_sweeps:
        if planned not in possible:
            yield SweepResult(planned.name, str(options.get("store", DEFAULT_STORE)), (), gpus=())
            continue
        now = quick[planned.notebook]
        former = still_given(planned, now) if missing else {}
        found = sweep(
            replace(planned, specs=tuple(s for s in planned.specs if s.request not in former)), **options
        )
        kept = None if found.failed else str(keep(planned, found.finished, now, former))
        yield replace(found, published=kept, former=len(former), gpus=gpus if planned.gpu else None)


def _quick_runs(notebook: Path, store: str | Path = DEFAULT_STORE, **options: Any) -> list[StoredRun]:
    specs, opened = _plan_notebook(notebook, describe_source(notebook.parent)), store_of_runs(store)
    shown, workers = options.get("console"), options.get("workers")
    runs = execute_shown(specs, opened, shown, workers=workers, retry_failed=True)
    if failed := [run.error for run in runs if run.error]:
        raise RunError("\n".join(["Nothing was published, because of quick runs that failed:", *failed]))
    return [run.stored for run in runs if run.stored]


def reproduce(
    name: str,
    *,
    timeout_s: float | None = None,
    store: str | Path = DEFAULT_STORE,
) -> Verdict:
    """Run a recorded run again, and compare value by value. Nothing of the rerun is kept.

    A published run is done with the notebook as it is now.

    Args:
        name: Path of the run, its title or the beginning of that.
        timeout_s: How long it may take.
        store: Of the runs.

    Returns:
        Whether it is identical, within tolerance or different, in what, and what differs in the environment;
        or that there was nothing to compare, where a run recorded no result and kept no file.

    Raises:
        ParameterError: The text means no run, or several.
        StoreError: The run can't be repeated: it failed, or its notebook was edited.
        RunError: This time it failed.
    """
    stored = find_run(opened(store), name)
    with closing(Kernels()) as kernels:
        return repeat(stored, kernels, timeout_s=timeout_s)


def reproduce_book(*, timeout_s: float | None = None, store: str | Path = DEFAULT_STORE) -> Iterator[Verdict]:
    """Run again what the book's build runs, one after another. One that fails this time counts as different.

    Published sweeps take hours: `reproduce` runs one of their runs again.

    Args:
        timeout_s: How long each may take.
        store: Of the runs.

    Yields:
        A verdict each, as `reproduce`.

    Raises:
        ParameterError: The store doesn't hold all runs of the book as it is now.
    """
    there = opened(store)
    specs, sweeps = together(partial(plan_book, EXPERIMENTS), partial(plan_sweeps, EXPERIMENTS))
    runs = [*specs, *(run for sweep in sweeps if not sweep.published for run in sweep.specs)]
    wanted = {run.request: run for run in runs}
    found = there.find_all(wanted.values())
    if missing := [run.title for request, run in wanted.items() if request not in found]:
        listed = ", ".join(missing[:_LISTED]) + (", …" if len(missing) > _LISTED else "")
        raise ParameterError(
            f"expected all runs of the book in {there.location}; got none of {listed}; "
            "remedy: gradtricks book"
        )
    with closing(Kernels()) as kernels:
        for request in wanted:
            try:
                yield repeat(found[request], kernels, timeout_s=timeout_s)
            except RunError as error:
                failure = Difference("run", "finished", str(error))
                yield Verdict(found[request].title, "different", 0, (failure,), ())


def verdict_of(verdict: Verdict) -> RenderableType:
    """Show what a rerun said: first the verdict, then every value that differs, then the environment."""
    said, compared = verdict.verdict, f"{verdict.count} values compared"
    style = {"different": "red", "nothing to compare": "yellow"}.get(said, "green")
    if said == "nothing to compare":
        compared = "it ran again, but neither then nor now did it record a result or keep a file; "
        compared += "remedy: from gradtricks.lab import record"
    head = Text.assemble(f"{verdict.title}: ", (said, style), f" ({compared})")
    rows = [
        (d.name, short(d.recorded), short(d.now), "" if d.relative is None else f"{d.relative:.1g}")
        for d in (*verdict.differences, *verdict.environment)
    ]
    return Group(head, table(("differs", "then", "now", "relative"), rows)) if rows else head
