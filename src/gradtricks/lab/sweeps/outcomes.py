"""Run a sweep, and draw what came of it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.runs.many import Run
from gradtricks.lab.runs.progress import execute_shown
from gradtricks.lab.runs.schedulers import Scheduler
from gradtricks.lab.storage import DEFAULT_STORE
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.storage.store import store_of_runs
from gradtricks.lab.sweeps.reading import plot
from gradtricks.lab.sweeps.sweep import Sweep, freeze, read_sweep


@dataclass(frozen=True)
class SweepResult:
    """The outcome of a sweep.

    Attributes:
        name: Of the sweep.
        store: Where its runs are.
        runs: What came of each run, in the sweep's order.
        plots: Files of its plots.
        unplotted: Why there are none; None where there are some.
        published: Where `publish` has kept its runs; None where it hasn't.
        former: How many that were published before are kept beside these.
        gpus: Names of the GPUs here, of a published sweep that needs one; without any it was left out.
    """

    name: str
    store: str
    runs: tuple[Run, ...]
    plots: tuple[Path, ...] = ()
    unplotted: str | None = None
    published: str | None = None
    former: int = 0
    gpus: tuple[str, ...] | None = None

    @property
    def finished(self) -> list[StoredRun]:
        """The runs that are kept."""
        return [run.stored for run in self.runs if run.stored]

    @property
    def failed(self) -> list[Run]:
        """The runs that failed, now or, where they weren't tried again, before."""
        return [run for run in self.runs if run.error]


def sweep(
    source: str | Path | Sweep,
    *,
    workers: int | None = None,
    scheduler: Scheduler | None = None,
    timeout_s: float | None = None,
    retry_failed: bool = False,
    again: bool = False,
    store: str | Path = DEFAULT_STORE,
    console: Console | None = None,
) -> SweepResult:
    """Run a notebook over many values, and draw what came out. A run that fails doesn't stop the others.

    Args:
        source: A sweep's file, or what `plan_sweep` returned.
        workers: Runs at once; None means as many as the cores have room for.
        scheduler: Of a dask cluster; None means this machine.
        timeout_s: Ends a run that takes longer.
        retry_failed: Try those again that have failed before.
        again: As for `run`, of all runs.
        store: Of the runs; plots go into the folder ``sweeps`` beside it.
        console: As for `run`.

    Raises:
        ParameterError: Something in the sweep is wrong; nothing was started.
        Interrupted: By Ctrl-C; the same call goes on later.
    """
    wanted = source if isinstance(source, Sweep) else read_sweep(Path(source))
    opened = store_of_runs(store)
    options: dict[str, Any] = {"workers": workers, "scheduler": scheduler, "timeout_s": timeout_s}
    freeze(wanted, opened)
    options |= {"retry_failed": retry_failed, "again": again}
    runs = execute_shown(wanted.specs, opened, console, **options)
    result = SweepResult(wanted.name, opened.location, tuple(runs))
    if not result.finished:
        return result
    try:
        return replace(result, plots=tuple(plot(result.name, store=opened.location)))
    except (ParameterError, OSError) as error:  # nothing can be drawn, or written; the runs are there
        return replace(result, unplotted=str(error))
