"""The commands: each asks functions of the lab, yields what is shown, and exits with how it went.

What takes its time to import is imported when it is needed: --help needs neither papermill nor dask.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gradtricks import lab
from gradtricks.lab.commands import options as given
from gradtricks.lab.commands.options import DEFAULT_STORE, Printed, app, command, manual

if TYPE_CHECKING:
    from gradtricks.lab.sweeps.sweep import Sweep

__all__ = ["app"]


@app.callback(
    epilog=manual(
        "gradtricks describe experiments/unrolling.ipynb",
        "gradtricks run experiments/unrolling.ipynb -p seed=3",
        "gradtricks sweep experiments/unrolling.sweep.yaml",
        "gradtricks sweep --help",
    )
)
def main() -> None:
    """Rerun, sweep and reproduce the notebooks of gradtricks, and build the book that shows them.

    What is finished is kept in a store, and not done again while its cells, its
    parameters, the modules that it imported and their libraries mean the same.
    What is interrupted or killed goes on with the same command.
    """


@command("Look", "gradtricks list", "gradtricks list --experiments my/notebooks")
def list_(
    experiments: given.Experiments = Path("experiments"), store: given.StoreLocation = DEFAULT_STORE
) -> Printed:
    """List the experiments: how long a run takes, how many are finished, and below each what sweeps it."""
    from gradtricks.lab.commands.overviews import Experiment
    from gradtricks.lab.commands.terminal import table

    rows: list[tuple[Any, ...]] = []
    for *about, sweeps in lab.list_experiments(experiments, store=store):
        rows.append(tuple(about))
        rows += [(f"  {experiments / name}", "", "", "") for name in sweeps.split(", ") if name]
    yield table(Experiment._fields[:-1], rows, right={2, 3}, whole=True, unbroken={0})


@command("Look", "gradtricks describe experiments/unrolling.ipynb")
def describe(notebook: given.Notebook) -> Printed:
    """Show what a notebook takes: each parameter's type and range, default and meaning."""
    yield lab.describe(notebook)


@command(
    "Run",
    "gradtricks run experiments/masking.ipynb",
    "gradtricks run experiments/masking.ipynb -p backend=tensorflow -p seed=3",
    "gradtricks run experiments/unrolling.ipynb -p unroll_lengths=[1,5] -p num_unroll_steps=5",
)
def run(
    notebook: given.Notebook,
    parameters: given.Parameters = None,
    threads: given.Threads = None,
    timeout: given.Timeout = None,
    again: given.Again = False,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Run a notebook, unless the same run is finished already, and say where it is kept.

    Values are read by the types that the notebook declares; lists and dicts
    are JSON. All that is wrong with them is said before anything starts. It
    runs in the folder where you give the command, as with papermill, and in
    this Python: there is no choice of a kernel.
    """
    from gradtricks.lab.commands.terminal import near, output

    how: dict[str, Any] = {"threads": threads, "timeout_s": timeout, "again": again, "store": store}
    stored = lab.run(notebook, parameters or (), console=output, **how)
    yield f"Notebook: {near(stored.location)}/notebook.ipynb"


@command(
    "Run",
    "gradtricks sweep experiments/unrolling.sweep.yaml --dry-run",
    "gradtricks sweep experiments/unrolling.sweep.yaml",
    "gradtricks sweep experiments/unrolling.sweep.yaml --retry failed --timeout 600",
    "gradtricks sweep experiments/unrolling.ipynb --grid hidden_gradient_scale=0,0.5,1 --seeds 10",
    "gradtricks sweep experiments/unrolling.ipynb --zip episodes=64,256 --zip batch_size=128,512",
    "gradtricks sweep experiments/unrolling.sweep.yaml --scheduler tls://head:8786 --tls-ca ca.pem "
    "--tls-cert me.pem --tls-key me.key --store /shared/runs",
)
def sweep(
    source: given.Source,
    grid: given.Grid = None,
    zip_: given.Zip = None,
    seeds: given.Seeds = None,
    parameters: given.Parameters = None,
    shown: given.Results = None,
    workers: given.Workers = None,
    threads: given.Threads = None,
    timeout: given.Timeout = None,
    retry: given.Retry = None,
    again: given.Again = False,
    dry_run: given.DryRun = False,
    scheduler: given.SchedulerAddress = None,
    tls_ca: given.TlsCa = None,
    tls_cert: given.TlsCert = None,
    tls_key: given.TlsKey = None,
    plain_tcp: given.PlainTcp = False,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Run a notebook over many values, several runs at once, and draw what came out.

    A file says what varies; the book's chapter on sweeps says how. A run that
    fails doesn't stop the others. Interrupted or killed, the same command goes
    on: what is finished isn't done again. Plots go into the folder sweeps beside
    the store. All runs run in the folder where you give the command.
    """
    from gradtricks.lab.commands import running
    from gradtricks.lab.commands.terminal import output
    from gradtricks.lab.notebooks.texts import together

    varied = {"grid": grid, "zip": zip_, "seeds": seeds, "given": parameters, "shown": shown}
    planned, cluster = together(
        partial(_plan, source, threads, {name: said for name, said in varied.items() if said}),
        partial(running.cluster_at, scheduler, tls_ca, tls_cert, tls_key, plain_tcp),
    )
    if dry_run:
        yield running.dry_run(planned, store=store, workers=workers)
        return
    how: dict[str, Any] = {"workers": workers, "timeout_s": timeout, "again": again}
    how |= {"retry_failed": retry == "failed", "scheduler": cluster, "store": store}
    found = running.sweep(planned, console=output, **how)
    yield found
    raise typer.Exit(1 if found.failed else 0)


def _plan(source: Path, threads: int | None, said: Mapping[str, Any]) -> "Sweep":
    """Plan a sweep: a file says everything itself, of a notebook `plan_sweep` takes what varies."""
    from gradtricks.lab.notebooks.texts import ParameterError

    if source.suffix == ".ipynb":
        return lab.plan_sweep(source, threads=threads, **said)
    if said:
        options = ", ".join({"given": "--set", "shown": "--show"}.get(name, f"--{name}") for name in said)
        raise ParameterError(
            f"{source}: nothing was run.\nexpected that the file says all that varies; got {options} too; "
            "remedy: write it into the file, or name the notebook instead"
        )
    return lab.read_sweep(source, threads=threads)


@command(
    "Run",
    "gradtricks publish --dry-run",
    "gradtricks publish",
    "gradtricks publish experiments/pong.sweep.yaml --workers 1",
)
def publish(
    files: given.SweepFiles = None,
    workers: given.Workers = None,
    timeout: given.Timeout = None,
    retry: given.Retry = None,
    dry_run: given.DryRun = False,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Run the sweeps that are too long for the book's build, and keep their records with the sources.

    They are those whose files say [bold]published: true[/bold]. When all runs of one have
    finished, they replace its former ones in experiments/published, which belongs
    into git, and which [bold]--store experiments/published[/bold] shows. Runs that a
    [bold]sweep[/bold] has done in the same store, on a cluster for example, aren't done again.
    """
    from gradtricks.lab.commands import publishing, running
    from gradtricks.lab.commands.terminal import output

    if dry_run:
        for planned in publishing.plan_published(files or ()):
            yield f"{planned.name}:"
            yield running.dry_run(planned, store=store, workers=workers)
        return
    how = {"workers": workers, "timeout_s": timeout, "retry_failed": retry == "failed", "store": store}
    failed = 0
    for found in publishing.publish(files or (), console=output, **how):
        yield found
        failed += len(found.failed)
    raise typer.Exit(1 if failed else 0)


@command("Results", "gradtricks status")
def status(store: given.StoreLocation = DEFAULT_STORE) -> Printed:
    """Show how far each sweep of a store is, whichever process runs it: done, failed, running now, left."""
    from gradtricks.lab.commands.overviews import SweepStatus
    from gradtricks.lab.commands.terminal import table

    yield table(SweepStatus._fields, lab.status(store=store), right=range(1, 6), whole=True)


@command(
    "Results",
    "gradtricks table unrolling",
    "gradtricks table unrolling --all",
    "gradtricks table unrolling --to parquet --output unrolling.parquet",
)
def table(
    sweep_name: given.SweepName = None,
    everything: given.All = False,
    to: given.To = None,
    path: given.Output = None,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Tabulate what a sweep found: the mean, its interval and the number of runs of each configuration.

    Without a sweep, list the runs of the store. --all and files have a row for each run,
    with the columns run, status, error, stem, parameters.NAME, results.NAME,
    varying.NAME, provenance.NAME, started and duration_s.
    """
    from gradtricks.lab.commands import views

    frame = lab.table(sweep_name, store=store)
    if everything or to or path:
        yield from views.write(frame, to, path)
    else:
        sweep = None if frame.empty else sweep_name
        yield views.summary_of(frame, views.found(sweep, frame, store=store) if sweep else ())


@command("Results", "gradtricks plot unrolling", "gradtricks plot unrolling --show results.loss_after")
def plot(
    sweep_name: given.SweepName = None,
    shown: given.Results = None,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Draw what a sweep has found so far, as SVG, in the folder sweeps beside the store."""
    yield from map(str, lab.plot(sweep_name, shown=shown or (), store=store))


@command("Results", "gradtricks show masking-torch")
def show(name: given.StoredName, store: given.StoreLocation = DEFAULT_STORE) -> Printed:
    """Show what a run recorded, and where its executed notebook is, for Jupyter or an editor to open."""
    from gradtricks.lab.commands.terminal import near
    from gradtricks.lab.commands.views import record_of

    stored = lab.show(name, store=store)
    yield record_of(stored)
    if stored.executed:
        yield f"Notebook: {near(stored.location)}/notebook.ipynb"


@command("Results", "gradtricks reproduce masking-torch", "gradtricks reproduce --book")
def reproduce(
    name: given.OptionalStoredName = None,
    book: given.Book = False,
    timeout: given.Timeout = None,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Run a recorded run again, and say value by value: identical, within tolerance, or different.

    It also says what differs in the environment. It keeps nothing. Results that were recorded and files that
    were kept are compared: of a notebook that does neither it only says that it ran again.
    """
    from gradtricks.lab.commands.publishing import verdict_of
    from gradtricks.lab.notebooks.texts import ParameterError

    if book == (name is not None):
        raise ParameterError("expected either a run or --book")
    how: dict[str, Any] = {"timeout_s": timeout, "store": store}
    code = 0
    for found in lab.reproduce_book(**how) if name is None else [lab.reproduce(name, **how)]:
        yield verdict_of(found)
        code |= found.verdict == "different"
    raise typer.Exit(code)


@command("Results", "gradtricks clean --stale --dry-run", "gradtricks clean --failed")
def clean(
    failed: given.Failed = False,
    stale: given.Stale = False,
    dry_run: given.DryRun = False,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Printed:
    """Delete from a store what killed processes left behind, damaged records, and what is asked for."""
    from gradtricks.lab.storage.store import store_of_runs

    gone = store_of_runs(store).clean(failed=failed, stale=stale, dry_run=dry_run)
    yield from gone
    yield f"{len(gone)} {'would be deleted' if dry_run else 'deleted'}."
