"""The commands: each asks a function of `gradtricks.lab`, yields what is shown, and exits with how it went.

They import what they need when they are called: --help needs neither papermill nor dask.
"""

from pathlib import Path

import typer

from gradtricks.lab.commands import options as given
from gradtricks.lab.commands.options import DEFAULT_STORE, Shown, app, command, manual

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

    What is finished is kept in a store, and not done again while its notebook,
    its parameters, the files of the package that it imported and its libraries
    stay the same. What is interrupted or killed goes on with the same command.
    """


@command("Look", "gradtricks list", "gradtricks list --experiments my/notebooks", name="list")
def list_(
    experiments: given.Experiments = Path("experiments"), store: given.StoreLocation = DEFAULT_STORE
) -> Shown:
    """List the experiments: how long a run takes, how many are finished, which sweeps there are."""
    from gradtricks.lab.commands.overviews import list_experiments
    from gradtricks.lab.commands.reporting import experiments_table

    yield experiments_table(list_experiments(experiments, store=store))


@command("Look", "gradtricks describe experiments/unrolling.ipynb")
def describe(notebook: given.Notebook) -> Shown:
    """Show what a notebook takes: each parameter's type and range, default and meaning."""
    from gradtricks.lab.commands import overviews
    from gradtricks.lab.commands.reporting import description

    yield description(overviews.describe(notebook))


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
    store: given.StoreLocation = DEFAULT_STORE,
    mlflow: given.Mlflow = None,
) -> Shown:
    """Run a notebook, unless the same run is finished already, and say where it is kept.

    Values are read by the types that the notebook declares; lists and dicts
    are JSON. All that is wrong with them is said before anything starts.
    """
    from gradtricks.lab.commands import running
    from gradtricks.lab.commands.terminal import near, output

    stored = running.run(
        notebook,
        parameters or (),
        threads=threads,
        timeout_s=timeout,
        store=store,
        mlflow=mlflow,
        console=output,
    )
    yield f"Finished: {near(stored.location)}"


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
    dry_run: given.DryRun = False,
    scheduler: given.SchedulerAddress = None,
    tls_ca: given.TlsCa = None,
    tls_cert: given.TlsCert = None,
    tls_key: given.TlsKey = None,
    plain_tcp: given.PlainTcp = False,
    store: given.StoreLocation = DEFAULT_STORE,
    mlflow: given.Mlflow = None,
) -> Shown:
    """Run a notebook over many values, several runs at once, and draw what came out.

    A file says what varies; the book's chapter on sweeps says how. A run that
    fails doesn't stop the others. Interrupted or killed, the same command goes
    on: what is finished isn't done again.
    """
    from gradtricks.lab.commands import arguments, running
    from gradtricks.lab.commands.reporting import dry_run_of, summary
    from gradtricks.lab.commands.terminal import output

    varied = {"grid": grid, "zip": zip_, "seeds": seeds, "given": parameters, "shown": shown}
    asked = (scheduler, tls_ca, tls_cert, tls_key, plain_tcp)
    planned, cluster = arguments.plan(source, asked, threads=threads, **varied)
    if dry_run:
        yield dry_run_of(planned, store=store, workers=workers)
        return
    found = running.sweep(
        planned,
        workers=workers,
        scheduler=cluster,
        timeout_s=timeout,
        retry_failed=retry == "failed",
        store=store,
        mlflow=mlflow,
        console=output,
    )
    yield summary(found)
    raise typer.Exit(1 if found.failed else 0)


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
) -> Shown:
    """Run the sweeps that are too long for the book's build, and keep their records with the sources.

    They are those whose files say [bold]published: true[/bold]. When all runs of one have
    finished, they replace its former ones in experiments/published, which belongs
    into git, and which [bold]--store experiments/published[/bold] shows. Runs that a
    [bold]sweep[/bold] has done in the same store, on a cluster for example, aren't done again.
    """
    from gradtricks.lab.commands import publishing
    from gradtricks.lab.commands.reporting import dry_run_of, summary
    from gradtricks.lab.commands.terminal import output

    if dry_run:
        for planned in publishing.plan_published(files or ()):
            yield f"{planned.name}:"
            yield dry_run_of(planned, store=store, workers=workers)
        return
    how = {"workers": workers, "timeout_s": timeout, "retry_failed": retry == "failed", "store": store}
    failed = 0
    for found in publishing.publish(files or (), console=output, **how):
        yield summary(found)
        failed += len(found.failed)
    raise typer.Exit(1 if failed else 0)


@command("Results", "gradtricks status", "gradtricks status --watch")
def status(watch: given.Watch = False, store: given.StoreLocation = DEFAULT_STORE) -> Shown:
    """Show how far each sweep of a store is, whichever process runs it: done, failed, running now, left."""
    from gradtricks.lab.commands import overviews, terminal
    from gradtricks.lab.commands.reporting import statuses_table

    if watch:
        terminal.watch(lambda: overviews.status(store=store), statuses_table)
    else:
        yield statuses_table(overviews.status(store=store))


@command(
    "Results",
    "gradtricks table unrolling",
    "gradtricks table unrolling --all",
    "gradtricks table --sql \"SELECT parameters.seed, duration_s FROM runs WHERE stem = 'unrolling'\"",
    "gradtricks table unrolling --to parquet --output unrolling.parquet",
)
def table(
    sweep_name: given.SweepName = None,
    notebook: given.OfNotebook = None,
    sql: given.Sql = None,
    everything: given.All = False,
    to: given.To = None,
    path: given.Output = None,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Shown:
    """Tabulate what a sweep found: the mean, its interval and the number of runs of each configuration.

    Without a sweep, list the runs of the store. --all, --sql and files have a row for each
    run, with the columns run, status, error, stem, parameters.NAME, results.NAME,
    varying.NAME, provenance.NAME, started and duration_s.
    """
    from gradtricks.lab.commands import reporting, views

    frame = views.table(sweep_name, notebook=notebook, sql=sql, store=store)
    if everything or sql is not None or to or path:
        yield from reporting.write_frame(frame, to, path)
    else:
        sweep = None if frame.empty else sweep_name
        yield reporting.table_of(frame, views.found(sweep, frame, store=store) if sweep else ())


@command("Results", "gradtricks plot unrolling", "gradtricks plot unrolling --show results.loss_after")
def plot(
    sweep_name: given.SweepName = None,
    shown: given.Results = None,
    folder: given.Folder = None,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Shown:
    """Draw what a sweep has found so far, as SVG and PNG."""
    from gradtricks.lab.commands import views

    yield from map(str, views.plot(sweep_name, shown=shown or (), folder=folder, store=store))


@command("Results", "gradtricks show masking-torch --no-open")
def show(
    name: given.StoredName, no_open: given.NoOpen = False, store: given.StoreLocation = DEFAULT_STORE
) -> Shown:
    """Show what a run recorded, and open its executed notebook in the browser."""
    from gradtricks.lab.commands import views
    from gradtricks.lab.commands.reporting import record_of
    from gradtricks.lab.commands.terminal import near

    stored, page = views.show(name, open_it=not no_open, store=store)
    yield record_of(stored)
    if stored.executed:
        yield f"Notebook: {page or near(stored.location) + '/notebook.ipynb'}"


@command("Results", "gradtricks reproduce masking-torch", "gradtricks reproduce --book")
def reproduce(
    name: given.OptionalStoredName = None,
    book: given.Book = False,
    timeout: given.Timeout = None,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Shown:
    """Run a recorded run again, and say value by value: identical, within tolerance, or different.

    It also says what differs in the environment. Nothing of the rerun is kept.
    """
    from gradtricks.lab.commands import repeating
    from gradtricks.lab.commands.reporting import verdict_of
    from gradtricks.lab.notebooks.schema import ParameterError

    if book == (name is not None):
        raise ParameterError("expected either a run or --book; got both or none")
    found = (
        repeating.reproduce_book(timeout_s=timeout, store=store)
        if name is None
        else [repeating.reproduce(name, timeout_s=timeout, store=store)]
    )
    code = 0
    for verdict in found:
        yield verdict_of(verdict)
        code = 1 if verdict.verdict == "different" else code
    raise typer.Exit(code)


@command("Results", "gradtricks clean --stale --dry-run", "gradtricks clean --failed")
def clean(
    failed: given.Failed = False,
    stale: given.Stale = False,
    dry_run: given.DryRun = False,
    store: given.StoreLocation = DEFAULT_STORE,
) -> Shown:
    """Delete from a store what killed processes left behind, damaged records, and what is asked for."""
    from gradtricks.lab.commands import running

    gone = running.clean(failed=failed, stale=stale, dry_run=dry_run, store=store)
    yield from gone
    yield f"{len(gone)} {'would be deleted' if dry_run else 'deleted'}."
