"""Run a notebook or a sweep, and tidy up what they leave."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from gradtricks.lab.commands.options import DEFAULT_STORE
from gradtricks.lab.commands.printing import duration
from gradtricks.lab.commands.progress import execute
from gradtricks.lab.commands.views import plot
from gradtricks.lab.notebooks.schema import ParameterError, parse_values
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.many import Run, Scheduler
from gradtricks.lab.runs.planning import plan_run
from gradtricks.lab.storage.published import store_of_runs
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.storage.store import Store
from gradtricks.lab.sweeps.plans import Sweep, plan_of, read_sweep

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class SweepResult:
    """What came of a sweep.

    Attributes:
        name: Of the sweep.
        store: Where its runs are.
        runs: What came of each run, in the sweep's order.
        best: Of a search, the runs of the best trial, one for each seed.
        plots: Files of its plots.
        unplotted: Why there are none; None where there are some.
        published: Where `publish` has kept its runs; None where it hasn't.
    """

    name: str
    store: str
    runs: tuple[Run, ...]
    best: tuple[StoredRun, ...] = ()
    plots: tuple[Path, ...] = ()
    unplotted: str | None = None
    published: str | None = None

    @property
    def finished(self) -> list[StoredRun]:
        """The runs that are kept."""
        return [run.stored for run in self.runs if run.stored]

    @property
    def failed(self) -> list[Run]:
        """The runs that failed, now or, where they weren't tried again, before."""
        return [run for run in self.runs if run.error]


def run(
    notebook: str | Path,
    parameters: Mapping[str, Any] | Iterable[str] = (),
    *,
    threads: int | None = None,
    timeout_s: float | None = None,
    store: str | Path = DEFAULT_STORE,
    mlflow: str | None = None,
    console: "Console | None" = None,
) -> StoredRun:
    """Run a notebook, unless the same run is finished already.

    Args:
        notebook: Path of the source notebook.
        parameters: By name, or texts such as ``scale=0.5``; the others keep their defaults.
        threads: That the run may use; None leaves it to the notebook.
        timeout_s: Ends the run when it takes longer.
        store: Of the runs.
        mlflow: URI of an MLflow server, or of a database, that gets the run too.
        console: Where to show how it goes; None shows nothing.

    Returns:
        The finished run.

    Raises:
        FileNotFoundError: There is no such notebook.
        ParameterError: A parameter is unknown or of the wrong type; nothing was started.
        RunError: The run failed; its notebook is kept.
        Interrupted: By Ctrl-C.
    """
    notebook = Path(notebook)
    planned = plan_run(notebook, parse_values(notebook, parameters), threads=threads)
    _check_mlflow(mlflow)
    opened = store_of_runs(store)
    (done,) = execute([planned], opened, console, workers=1, timeout_s=timeout_s, retry_failed=True)
    _log(mlflow, [done], opened)
    if done.stored is None:
        raise RunError(done.error or f"{planned.title} wasn't run")
    return done.stored


def sweep(
    source: str | Path | Sweep,
    *,
    workers: int | None = None,
    scheduler: Scheduler | None = None,
    timeout_s: float | None = None,
    retry_failed: bool = False,
    store: str | Path = DEFAULT_STORE,
    mlflow: str | None = None,
    console: "Console | None" = None,
) -> SweepResult:
    """Run a notebook over many values, and draw what came out. A run that fails doesn't stop the others.

    Args:
        source: A sweep's file, or what `plan_sweep` returned.
        workers: Runs at once; None means as many as the cores have room for.
        scheduler: Of a dask cluster; None means this machine.
        timeout_s: Ends a run that takes longer; None leaves it to the sweep's file.
        retry_failed: Try those again that have failed before.
        store: Of the runs.
        mlflow: As for `run`.
        console: As for `run`.

    Returns:
        What came of each run, and where the plots are.

    Raises:
        FileNotFoundError: There is no such file.
        ParameterError: Something in the sweep is wrong; nothing was started.
        Interrupted: By Ctrl-C; the same call goes on later.
    """
    wanted = source if isinstance(source, Sweep) else read_sweep(Path(source))
    if wanted.optuna and retry_failed:
        raise ParameterError(f"{wanted.name}: nothing was run.\nexpected a sweep for --retry; got a search")
    opened = store_of_runs(store)
    _check_mlflow(mlflow)
    timeout_s = wanted.timeout_s if timeout_s is None else timeout_s
    options: dict[str, Any] = {"workers": workers, "scheduler": scheduler, "timeout_s": timeout_s}
    best: list[StoredRun] = []
    if wanted.optuna:
        runs, best = _search(wanted, opened, console, **options)
    else:
        freeze(wanted, opened)
        runs = execute(wanted.runs, opened, console, retry_failed=retry_failed, **options)
    _log(mlflow, runs, opened)
    result = SweepResult(wanted.name, opened.location, tuple(runs), tuple(best))
    if not result.finished:
        return result
    try:
        return replace(result, plots=tuple(plot(result.name, store=opened.location)))
    except ParameterError as error:  # nothing that could be drawn; the runs are there all the same
        return replace(result, unplotted=str(error))


def freeze(planned: Sweep, store: Store) -> None:
    """Write down in a store which runs belong to a sweep, for `status`, `table` and `plot`."""
    store.write_plan(planned.name, plan_of(planned))


def clean(
    *,
    failed: bool = False,
    stale: bool = False,
    dry_run: bool = False,
    store: str | Path = DEFAULT_STORE,
) -> list[str]:
    """Delete from a store what killed processes left behind, and damaged records.

    Args:
        failed: Delete failed runs too.
        stale: Delete finished runs too whose code or libraries have changed since.
        dry_run: Delete nothing.
        store: Of the runs.

    Returns:
        What was deleted, or would be.

    Raises:
        StoreError: The runs are published ones, or can't be deleted.
    """
    return store_of_runs(store).clean(failed=failed, stale=stale, dry_run=dry_run)


def _search(
    wanted: Sweep, store: Store, console: "Console | None", **options: Any
) -> tuple[list[Run], list[StoredRun]]:
    """Search for good parameters, keeping the plan as it grows."""
    from gradtricks.lab.sweeps.searching import search

    ended = count(1)

    def tell(run: Run) -> None:
        if console is not None and not run.missing:
            said = run.error or duration(run.seconds)
            console.print(Text(f"{next(ended)}. {run.spec.title}: {said}"), soft_wrap=True)

    return search(wanted, store, on_change=tell, on_planned=lambda grown: freeze(grown, store), **options)


def _check_mlflow(uri: str | None) -> None:
    """Find out before hours of work whether MLflow will take them."""
    try:
        _log(uri, [], None)
    except (ParameterError, RunError) as error:
        raise ParameterError(f"nothing was run.\n{error}") from error


def _log(uri: str | None, runs: Sequence[Run], store: Store | None) -> None:
    """Log what is kept of runs, finished and failed, to MLflow."""
    if uri is None:
        return
    from gradtricks.lab.runs.tracking import log_to_mlflow

    kept = (run.stored or (store and store.failure(run.spec)) for run in runs)
    log_to_mlflow(uri, (stored for stored in kept if stored))
