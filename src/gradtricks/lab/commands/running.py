"""Run a notebook or a sweep, say before what would be run and after what came of it, and tidy up."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gradtricks.lab.commands.options import DEFAULT_STORE
from gradtricks.lab.commands.progress import Board, estimate_s
from gradtricks.lab.commands.terminal import duration, near, requested, table
from gradtricks.lab.commands.views import plot
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.local import count_workers
from gradtricks.lab.runs.many import Run, execute_missing, look_up
from gradtricks.lab.runs.planning import Spec, plan_run
from gradtricks.lab.runs.schedulers import Scheduler
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.storage.store import Store, store_of_runs
from gradtricks.lab.sweeps.sweep import Sweep, freeze, read_sweep


@dataclass(frozen=True)
class SweepResult:
    """What came of a sweep.

    Attributes:
        name: Of the sweep.
        store: Where its runs are.
        runs: What came of each run, in the sweep's order.
        plots: Files of its plots.
        unplotted: Why there are none; None where there are some.
        published: Where `publish` has kept its runs; None where it hasn't.
    """

    name: str
    store: str
    runs: tuple[Run, ...]
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

    def __rich__(self) -> RenderableType:
        """Say how many are done, where, and why some failed."""
        found = sum(run.stored is not None and not run.worker for run in self.runs)
        before = f" ({found} of them kept from before)" if found else ""
        done = f"{len(self.runs) - len(self.failed)} done{before}"
        lines = [f"{self.name}: {done}, {len(self.failed)} failed."]
        lines.append(f"Runs: {near(self.store)}")
        lines += [f"Published: {near(self.published)}"] if self.published else []
        lines += [f"Plot: {path}" for path in self.plots]
        lines += [f"No plot: {self.unplotted}"] if self.unplotted else []
        said = Text("\n".join(lines))
        if not self.failed:
            return said
        kept = Store(self.store).find_all((run.spec for run in self.failed), "failed")
        rows = []
        for run in self.failed:  # a line of each error: without where, and with which parameters
            failure = kept.get(run.spec.request)
            error = failure.record["error"] if failure else run.error or ""
            rows.append((run.spec.title, error.strip().partition("\n")[0].rstrip()))
        return Group(table(("failed run", "why"), rows), said)


def run(
    notebook: str | Path,
    parameters: Mapping[str, Any] | Iterable[str] = (),
    *,
    threads: int | None = None,
    timeout_s: float | None = None,
    again: bool = False,
    store: str | Path = DEFAULT_STORE,
    console: Console | None = None,
) -> StoredRun:
    """Run a notebook, unless the same run is finished already, and return the finished run.

    It runs in this process's working directory, as papermill runs it.

    Args:
        notebook: Path of the source notebook.
        parameters: By name, or texts such as ``scale=0.5``; the others keep their defaults.
        threads: That the run may use; None leaves it to the notebook.
        timeout_s: Ends the run when it takes longer.
        again: Run it in any case; a run that is kept is replaced when the new one has finished.
        store: Of the runs.
        console: Where to show how it goes, and at the end where the run is kept; None shows nothing.

    Raises:
        ParameterError: A parameter is unknown or of the wrong type; nothing was started.
        RunError: The run failed; its notebook is kept.
    """
    notebook = Path(notebook)
    planned = plan_run(notebook, parameters, threads=threads)
    opened = store_of_runs(store)
    how: dict[str, Any] = {"workers": 1, "timeout_s": timeout_s, "retry_failed": True, "again": again}
    (done,) = execute_shown([planned], opened, console, **how)
    if done.stored is None:
        raise RunError(done.error or f"{planned.title} wasn't run")
    if console is not None:
        kept = f"Kept from {done.stored.record['started']}, nothing was run (--again does)"
        said = "Finished" if done.worker else kept
        console.print(Text(f"{said}: {near(done.stored.location)}"), soft_wrap=True)
    return done.stored


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


def execute_shown(
    specs: Sequence[Spec],
    store: Store,
    console: Console | None = None,
    *,
    retry_failed: bool = False,
    again: bool = False,
    **options: Any,
) -> list[Run]:
    """Execute runs, and show how far they are; return what came of each, in their order.

    Without a console nothing is shown. Runs that failed before are left alone but for ``retry_failed``, and
    finished ones but for ``again``, with which each is replaced when its new run has finished. The other
    options are those of `gradtricks.lab.runs.many.execute_missing`, and so is what it raises.
    """
    specs = [replace(spec, anew=again) for spec in specs]
    runs = look_up(specs, store, retry_failed=retry_failed)
    board = Board(runs, store, console or Console(quiet=True), workers=options.get("workers"))
    with board.live():
        execute_missing(runs, store, on_change=board.tell, on_stop=board.stop, **options)
    return runs


def cluster_at(
    address: str | None, ca_file: Path | None, cert: Path | None, key: Path | None, plain_tcp: bool
) -> Scheduler | None:
    """Check what is said of a dask cluster, without asking anybody; no address means this machine."""
    if address is None:
        if ca_file or cert or key or plain_tcp:
            raise ParameterError("expected --scheduler too, which the certificates are for; got none")
        return None
    with requested():
        found = Scheduler(address, ca_file, cert, key, plain_tcp=plain_tcp)
        found.security()  # reads the certificates
    return found


def dry_run(planned: Sweep, *, store: str, workers: int | None) -> RenderableType:
    """Show what a sweep would run, and how long that takes."""
    opened = store_of_runs(store)
    finished = opened.find_all(planned.specs)
    missing = [spec for spec in planned.specs if spec.request not in finished]
    rows = []
    for number, each in enumerate(planned.specs, start=1):
        values = (repr(each.parameters.get(name)) for name in planned.varied)
        rows.append((str(number), *values, "done" if each.request in finished else ""))
    at_once = workers or count_workers(planned.specs)
    seconds = estimate_s(missing, opened, at_once)
    known = f"about {duration(seconds)}" if seconds is not None else "nobody knows how long"
    left = f" The others take {known}, {at_once} at once." if missing else ""
    said = f"{len(rows)} runs, {len(finished)} of them done.{left}"
    return Group(table(("run", *planned.varied, ""), rows, right={0}), Text(said))
